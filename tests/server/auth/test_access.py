"""Who may do what."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import Invalid
from millrace.server.auth.access import (
    SYSTEM,
    VERBS,
    Rule,
    Verb,
    digest_of,
    is_token,
    judge,
    make_token,
    may,
    narrowed,
    parse_rule,
)

SPACES = st.one_of(st.text("ab-", min_size=1, max_size=4), st.just(SYSTEM))
NAMES = st.text("ab-", min_size=1, max_size=6)
PATTERNS = st.text("ab-*", min_size=1, max_size=6)
RULE = st.builds(
    Rule,
    st.booleans(),
    st.lists(st.sampled_from(VERBS), min_size=1, unique=True).map(tuple),
    st.one_of(PATTERNS, st.sampled_from(["*", SYSTEM, "sys*"])),
    PATTERNS,
)
RULES = st.lists(RULE, max_size=5).map(tuple)


def naive(rules: tuple[Rule, ...], verb: Verb, space: str, name: str) -> bool:
    """The rules again, without regard to how long it takes."""

    def said(one: Verb) -> set[bool]:
        return {
            rule.allow
            for rule in rules
            if one in rule.verbs and fnmatchcase(space, rule.space) and fnmatchcase(name, rule.name)
        }

    if space != SYSTEM:
        return said(verb) == {True}
    return said("admin") == {True} and False not in said(verb)


@given(RULES, st.sampled_from(VERBS), SPACES, NAMES)
def test_deny_wins_and_silence_denies(
    rules: tuple[Rule, ...], verb: Verb, space: str, name: str
) -> None:
    assert may(rules, verb, space, name) is naive(rules, verb, space, name)


@given(RULES, st.randoms(use_true_random=False), st.sampled_from(VERBS), SPACES, NAMES)
def test_the_order_of_rules_does_not_matter(
    rules: tuple[Rule, ...], chance: object, verb: Verb, space: str, name: str
) -> None:
    others = list(rules)
    chance.shuffle(others)  # type: ignore[attr-defined]
    assert may(tuple(others), verb, space, name) is may(rules, verb, space, name)


@given(RULES, RULE, st.sampled_from(VERBS), SPACES, NAMES)
def test_one_more_denial_never_allows_more(
    rules: tuple[Rule, ...], extra: Rule, verb: Verb, space: str, name: str
) -> None:
    denial = Rule(False, extra.verbs, extra.space, extra.name)
    assert may((*rules, denial), verb, space, name) <= may(rules, verb, space, name)


@given(RULES, st.sampled_from(VERBS), SPACES, NAMES)
def test_the_rule_that_decided_would_decide_alone(
    rules: tuple[Rule, ...], verb: Verb, space: str, name: str
) -> None:
    ruling = judge(rules, verb, space, name)
    if ruling.rule is None:
        assert not ruling.allowed
    else:
        assert ruling.rule in rules
        assert ruling.rule.allow is ruling.allowed
        assert judge((ruling.rule,), verb, space, name).allowed is ruling.allowed
    assert ruling.why


@pytest.mark.parametrize("verb", VERBS)
def test_the_servers_own_space_takes_admin(verb: Verb) -> None:
    all_but_admin = (parse_rule("allow publish,work,read,manage */*"),)
    assert not may(all_but_admin, verb, SYSTEM, "access")
    assert may((parse_rule("allow admin system/*"),), verb, SYSTEM, "access")
    assert may((parse_rule("allow * */*"),), verb, SYSTEM, "audit")
    denied = (parse_rule("allow * */*"), parse_rule(f"deny {verb} system/*"))
    assert not may(denied, verb, SYSTEM, "audit")


def test_a_contrived_pattern_takes_no_time() -> None:
    rule = Rule(True, VERBS, "*", "*a" * 127 + "*b")
    assert not may((rule,), "read", "default", "a" * 256)
    assert may((rule,), "read", "default", "a" * 255 + "b")


@pytest.mark.parametrize(
    "text",
    [
        "allow * */*",
        "deny publish default/orders-*",
        "allow publish,work,read a/b",
        f"allow read {'a' * 80}/{'b' * 256}",
    ],
)
def test_rules_read_as_they_are_written(text: str) -> None:
    assert str(parse_rule(text)) == text


@given(RULE)
def test_rules_survive_being_written(rule: Rule) -> None:
    in_order = Rule(
        rule.allow, tuple(one for one in VERBS if one in rule.verbs), rule.space, rule.name
    )
    assert parse_rule(str(rule)) == in_order


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
        "allow read a/b c/d",
        "allow read a/b\ndeny read c/d",
        f"allow read {'a' * 81}/b",
        f"allow read a/{'b' * 257}",
    ],
)
def test_no_rules(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_rule(text)
    assert caught.value.field == "rule"


def test_a_token_says_nothing_but_itself() -> None:
    text = make_token(bytes(range(32)))
    assert is_token(text)
    assert not is_token(text[:-1])
    assert not is_token("xx_" + text[3:])
    assert len(digest_of(text)) == 32
    assert digest_of("\udc80") != digest_of("")


VERB_LISTS = st.lists(st.sampled_from(VERBS), unique=True).map(tuple)


@given(RULES, VERB_LISTS, SPACES, st.none() | NAMES, st.sampled_from(VERBS), SPACES, NAMES)
def test_narrowed_rules_allow_what_both_do(
    rules: tuple[Rule, ...],
    verbs: tuple[Verb, ...],
    space: str,
    queue: str | None,
    verb: Verb,
    where: str,
    name: str,
) -> None:
    found = may(narrowed(rules, verbs, space, queue or "*"), verb, where, name)
    is_within = verb in verbs and where == space and queue in (None, name)
    both = is_within and may(rules, verb, where, name)
    if where == SYSTEM and "admin" not in verbs:
        # Nothing there is to be had without it.
        assert not found
    elif where == SYSTEM:
        assert not found or may(rules, verb, where, name)
    else:
        assert found == both
