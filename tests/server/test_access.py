"""Who may do what."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import Invalid
from millrace.server.access import (
    VERBS,
    Book,
    Rule,
    Token,
    User,
    Verb,
    digest_of,
    make_token,
    may,
    parse_rule,
)

NAMES = st.text("ab-", min_size=1, max_size=4)
PATTERNS = st.text("ab-*", min_size=1, max_size=4)
RULES = st.lists(
    st.builds(
        Rule,
        st.booleans(),
        st.lists(st.sampled_from(VERBS), min_size=1, unique=True).map(tuple),
        PATTERNS,
        PATTERNS,
    ),
    max_size=4,
).map(tuple)


@given(RULES, st.sampled_from(VERBS), NAMES, NAMES)
def test_deny_wins_and_silence_denies(
    rules: tuple[Rule, ...], verb: Verb, space: str, name: str
) -> None:
    fitting = {
        rule.allow
        for rule in rules
        if verb in rule.verbs and fnmatchcase(space, rule.space) and fnmatchcase(name, rule.name)
    }
    assert may(rules, verb, space, name) is (fitting == {True})


@pytest.mark.parametrize(
    "text",
    ["allow * */*", "deny publish default/orders-*", "allow publish,work,read a/b"],
)
def test_rules_read_as_they_are_written(text: str) -> None:
    assert str(parse_rule(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "allow",
        "permit * */*",
        "allow fly */*",
        "allow *,read */*",
        "allow read a",
        "allow , a/b",
    ],
)
def test_no_rules(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_rule(text)
    assert caught.value.field == "rule"


def test_a_token_is_good_until_it_expires_or_is_revoked() -> None:
    book = Book()
    text = make_token(bytes(range(32)))
    digest = digest_of(text)
    book.put_user("ada", User("ada"))
    book.put_token(digest, Token("ada", "laptop", digest, made_ms=1, expires_ms=100))
    assert book.who(text, 99) == User("ada")
    assert book.who(text, 100) is None
    assert book.who(text + "x", 99) is None
    book.put_user("ada", None)
    assert book.who(text, 99) is None
    book.put_user("ada", User("ada"))
    book.put_token(digest, None)
    assert book.who(text, 99) is None
