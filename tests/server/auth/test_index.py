"""Who is known, and by what."""

from __future__ import annotations

import hmac
from collections.abc import Callable

import pytest

from millrace import limits
from millrace.server.auth import index as module
from millrace.server.auth.access import (
    AccessKey,
    Principal,
    Quota,
    Token,
    User,
    digest_of,
    is_token,
    make_token,
    parse_rule,
)
from millrace.server.auth.index import EVERYTHING, PrincipalIndex, local_principal

TEXT = make_token(bytes(range(32)))
DIGEST = digest_of(TEXT)
READER = User("ada", (parse_rule("allow read default/*"),), Quota(requests=5))


def known(*, expires_ms: int = 0) -> PrincipalIndex:
    roll = PrincipalIndex()
    roll.put_user("ada", READER)
    roll.put_token(DIGEST, Token("ada", "laptop", DIGEST, 1, expires_ms))
    return roll


def test_a_token_is_good_until_it_expires() -> None:
    roll = known(expires_ms=100)
    found = roll.who(TEXT, 99)
    assert found is not None
    assert (found.name, found.rules, found.quota) == ("ada", READER.rules, READER.quota)
    assert roll.who(TEXT, 100) is None
    assert known().who(TEXT, 10**15) is not None


def test_a_token_is_good_until_it_is_revoked() -> None:
    roll = known()
    roll.put_token(DIGEST, None)
    assert roll.who(TEXT, 1) is None


def test_the_tokens_of_one_who_is_gone_know_nobody() -> None:
    roll = known()
    roll.put_user("ada", None)
    assert roll.who(TEXT, 1) is None
    assert roll.principal("ada") is None


@pytest.mark.parametrize("text", ["", "mr_", TEXT + "x", TEXT[:-1], TEXT.upper(), "\x00", "ü" * 99])
def test_another_token_knows_nobody(text: str) -> None:
    assert known().who(text, 1) is None


def test_what_has_not_the_shape_of_a_token_is_none_though_its_digest_is_known() -> None:
    roll = known()
    for word in ("test", "mr_test", f"{TEXT}x"):
        digest = digest_of(word)
        roll.put_token(digest, Token("ada", "weak", digest, 1))
        assert roll.who(word, 1) is None


def test_a_token_of_nobody_knows_nobody() -> None:
    roll = PrincipalIndex()
    roll.put_token(DIGEST, Token("-", "", DIGEST, 1))
    assert roll.who(TEXT, 1) is None


def test_the_same_work_whatever_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is unknown, expired, revoked and of nobody: the same calls in the same order."""
    calls: list[str] = []

    def noted(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def noting(*arguments: object) -> object:
            calls.append(name)
            return call(*arguments)

        return noting

    monkeypatch.setattr(module, "digest_of", noted("digest", digest_of))
    monkeypatch.setattr(module, "is_token", noted("shape", is_token))
    monkeypatch.setattr(hmac, "compare_digest", noted("compare", hmac.compare_digest))
    nobody, revoked = known(), known()
    nobody.put_user("ada", None)
    revoked.put_token(DIGEST, None)
    said: list[tuple[object, list[str]]] = []
    for roll, text in (
        (known(), TEXT),
        (known(), "mr_unknown"),
        (known(expires_ms=1), TEXT),
        (nobody, TEXT),
        (revoked, TEXT),
    ):
        calls.clear()
        said.append((roll.who(text, 5), list(calls)))
    assert said[0][0] is not None
    assert [who for who, _ in said[1:]] == [None] * 4
    assert {tuple(made) for _, made in said} == {("digest", "shape", "compare")}


def test_keys_are_known_as_tokens_are() -> None:
    roll = known()
    key = AccessKey("MRAK1", "ada", "boto", 1, 100)
    roll.put_key("MRAK1", key)
    found = roll.key("MRAK1", 99)
    assert found is not None
    assert (found[0], found[1].name) == (key, "ada")
    assert roll.key("MRAK1", 100) is None
    assert roll.key("MRAK2", 1) is None
    assert roll.access_keys("ada") == [key]
    assert roll.secrets == 2
    roll.put_user("ada", None)
    assert roll.key("MRAK1", 1) is None
    roll.put_key("MRAK1", None)
    assert roll.access_keys() == []


def test_a_principal_stays_the_same_until_its_user_changes() -> None:
    roll = known()
    first = roll.who(TEXT, 1)
    roll.put_user("ada", User("ada", READER.rules, READER.quota))
    assert roll.who(TEXT, 1) is first
    roll.put_user("ada", User("ada"))
    second = roll.who(TEXT, 1)
    assert second is not first
    assert second is not None
    assert not second.may("read", "default", "x")


def test_a_principal_remembers_a_bounded_number_of_answers() -> None:
    principal = Principal("ada", READER.rules)
    for number in range(limits.RULINGS_KEPT_MAX + 10):
        assert principal.may("read", "default", f"q{number}")
        assert not principal.may("read", "other", f"q{number}")
    assert len(principal._known) <= limits.RULINGS_KEPT_MAX
    assert principal.judge("read", "default", "x").rule == READER.rules[0]
    assert local_principal().rules == EVERYTHING
