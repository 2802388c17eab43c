"""`millrace user`, `millrace token`, `millrace key`."""

from __future__ import annotations

import asyncio
import stat

import pytest

import millrace
from millrace.server.auth.access import VERBS, digest_of, is_token
from millrace.server.auth.index import PrincipalIndex
from millrace.server.auth.store import UserStore
from tests.cli.desk import Desk

RULE = "allow publish,read default/*"


@pytest.fixture
def ada(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("home"))
    desk.text("user", "add", "ada", "--rule", RULE, "--quota", "requests=2.5")
    return desk


def roll_of(desk: Desk) -> PrincipalIndex:
    async def read() -> PrincipalIndex:
        async with millrace.open(desk.data) as m:
            return (await UserStore.open(m, follower=None)).roll

    return asyncio.run(read())


def test_users_are_added_shown_and_removed(ada: Desk) -> None:
    assert "no users" not in ada.call("user", "list").stderr
    quota = {"requests": 2.5}
    assert ada.one("user", "list") == {
        "type": "user",
        "user": "ada",
        "rules": [RULE],
        "quota": quota,
        "tokens": 0,
        "keys": 0,
    }
    assert ada.text("user", "list").splitlines()[1].split() == [
        "ada",
        "1",
        "0",
        "0",
        "requests=2.5",
    ]
    shown = ada.text("user", "show", "ada")
    assert RULE in shown
    refused = ada.call("user", "add", "ada")
    assert refused.exit_code == 1
    assert "already" in refused.stderr
    assert "millrace user set" in refused.stderr
    assert ada.call("user", "remove", "ada").exit_code == 2, "nobody is there to be asked"
    assert ada.one("user", "remove", "ada", "--yes")["secrets"] == 0
    assert "no users" in ada.call("user", "list").stderr


def test_users_are_changed(ada: Desk) -> None:
    other = "deny publish default/secret"
    ada.text("user", "set", "ada", "--add-rule", other, "--quota", "pins=3")
    shown = ada.one("user", "show", "ada")
    assert shown["rules"] == [RULE, other]
    assert shown["quota"] == {"requests": 2.5, "pins": 3}
    ada.text("user", "set", "ada", "--drop-rule", RULE, "--quota", "requests=0")
    shown = ada.one("user", "show", "ada")
    assert (shown["rules"], shown["quota"]) == ([other], {"pins": 3})
    ada.text("user", "set", "ada", "--rule", "allow * */*")
    assert ada.one("user", "show", "ada")["rules"] == ["allow * */*"]
    assert ada.call("user", "set", "ada").exit_code == 2


def test_it_is_told_which_rule_decides(ada: Desk) -> None:
    assert ada.text("user", "may", "ada", "publish", "orders") == (
        f"yes: '{RULE}': a rule allows it, and none denies it\n"
    )
    refused = ada.call("user", "may", "ada", "work", "orders")
    assert (refused.exit_code, refused.stdout) == (1, "no: no rule allows it\n")
    refused = ada.call("user", "may", "ada", "read", "system/access")
    assert refused.exit_code == 1
    assert "takes admin" in refused.stdout
    ada.text("user", "set", "ada", "--add-rule", "deny publish default/o*")
    refused = ada.call("user", "may", "ada", "publish", "orders")
    assert "deny publish default/o*" in refused.stdout
    assert ada.one("user", "may", "ada", "publish", "x")["may"] is True


def test_a_token_is_told_once_and_good_until_it_is_revoked(ada: Desk) -> None:
    text = ada.text("token", "new", "ada", "--name", "laptop", "--for", "90d").strip()
    assert is_token(text)
    found = roll_of(ada).who(text, 1)
    assert found is not None
    [listed] = ada.lines("token", "list", "ada")
    assert listed["id"] == digest_of(text)[:6].hex()
    made, expires = listed["made_ms"], listed["expires_ms"]
    assert isinstance(made, int)
    assert expires == made + 90 * 86_400_000
    for shown in (ada.text("token", "list"), ada.text("user", "show", "ada"), str(listed)):
        assert text not in shown
        assert text[3:] not in shown
    ada.text("token", "revoke", "ada", "laptop")
    assert roll_of(ada).who(text, 1) is None


def test_a_token_is_revoked_by_its_id(ada: Desk) -> None:
    first, second = (ada.one("token", "new", "ada") for _ in range(2))
    ada.text("token", "revoke", "ada", first["id"])
    assert [one["id"] for one in ada.lines("token", "list")] == [second["id"]]


def test_a_token_goes_to_a_file_that_nobody_else_reads(ada: Desk) -> None:
    path = ada.home / "ci.token"
    said = ada.text("token", "new", "ada", "--file", path)
    text = path.read_text().strip()
    assert is_token(text)
    assert text not in said
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    digest = ada.text("token", "digest", given=path.read_bytes()).strip()
    assert digest == f"sha256:{digest_of(text).hex()}"
    assert ada.call("token", "digest", given="secret").exit_code == 1


def test_a_key_has_a_secret_that_follows_from_the_file(ada: Desk) -> None:
    made = ada.one("key", "new", "ada", "--name", "boto")
    path = ada.data / "access.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [listed] = ada.lines("key", "list")
    assert (listed["id"], listed["name"]) == (made["id"], "boto")
    assert "secret" not in listed
    assert listed["account"] is None
    other = ada.one("key", "new", "ada", "--name", "far", "--account", "123456789012")
    assert other["account"] == "123456789012"
    assert "123456789012" in ada.text("key", "list")
    ada.text("key", "revoke", "ada", other["id"])
    shown = ada.text("key", "new", "ada")
    assert shown.startswith("aws_access_key_id")
    ada.text("key", "revoke", "ada", made["id"])
    assert len(ada.lines("key", "list", "ada")) == 1
    path.chmod(0o644)
    refused = ada.call("key", "new", "ada")
    assert refused.exit_code == 1
    assert "chmod 600" in refused.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("user", "show", "adda"), "did you mean 'ada'?"),
        (("user", "set", "bob", "--rule", "allow read */*"), "user add bob"),
        (("user", "remove", "bob", "--yes"), "user add bob"),
        (("user", "may", "bob", "read", "x"), "user add bob"),
        (("token", "new", "bob"), "user add bob"),
        (("token", "list", "bob"), "user add bob"),
        (("token", "revoke", "ada", "x"), "token list ada"),
        (("key", "new", "bob"), "user add bob"),
        (("key", "revoke", "ada", "x"), "key list ada"),
    ],
)
def test_who_is_not_known_is_told_with_a_hint(ada: Desk, words: tuple[str, ...], hint: str) -> None:
    refused = ada.call(*words)
    assert refused.exit_code == 1
    assert hint in refused.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("user", "add", "bob", "--rule", "fly */*"),
        ("user", "add", "bob", "--quota", "cats=1"),
        ("user", "add", "bob", "--quota", "pins=-1"),
        ("user", "add", "bob", "--quota", "pins=1.5"),
        ("user", "add", "bob", "--quota", "pins"),
        ("user", "may", "ada", "fly", "orders"),
    ],
)
def test_what_is_wrong_is_usage(ada: Desk, words: tuple[str, ...]) -> None:
    assert ada.call(*words).exit_code == 2
    assert len(ada.lines("user", "list")) == 1


def test_names_that_no_user_has_are_refused(ada: Desk) -> None:
    for name in ("a b", "local", "x" * 81):
        assert ada.call("user", "add", name).exit_code == 1


def test_the_help_names_every_verb_of_a_rule(ada: Desk) -> None:
    text = " ".join(ada.text("user", "--help").split())
    assert f"verbs are {', '.join(VERBS[:-1])} and {VERBS[-1]}, joined by commas" in text
