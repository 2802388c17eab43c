"""CassieQ's accounts, their keys, and addresses that are signed for others."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.server.auth.access import User, parse_rule
from tests.client.harness import run
from tests.server.cassieq.harness import ACCOUNTS, BY, error, site, told_of
from tests.server.rest.harness import Answer

PERMISSIONS = "/api/v1/permissions"


def keys_of(answer: Answer) -> dict[str, str]:
    found = answer.json["keys"]
    assert isinstance(found, dict)
    return found


def test_an_account_is_made_shown_and_ended_with_its_queues(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            made = await server.admin("POST", ACCOUNTS, "beta")
            assert made.status == 201
            assert set(made.json) == {"accountName", "keys"}
            assert set(keys_of(made)) == {"primary", "secondary"}
            assert len({*server.keys.values(), *keys_of(made).values()}) == 4
            shown = await server.admin("GET", f"{ACCOUNTS}/beta")
            assert (shown.status, shown.json) == (200, made.json)
            listed = await server.admin("GET", ACCOUNTS)
            assert listed.status == 200
            acme = {"accountName": "acme", "keys": server.keys}
            assert told_of(listed) == [acme, made.json], "whoever else is known is no account"
            again = await server.admin("POST", ACCOUNTS, "beta")
            assert error(again) == (409, "Conflict", "CreateAccount")

            await server.put("x")
            await server.millrace.topic("news", space="acme")
            assert (await server.key("POST", "", {"queueName": "a"})).status == 201
            body = {"queueName": "b", "dlqName": "a"}
            assert (await server.key("POST", "", body)).status == 201
            gone = await server.admin("DELETE", f"{ACCOUNTS}/acme")
            assert (gone.status, gone.body) == (204, b"")
            assert await server.millrace.queues(space="acme") == []
            assert await server.millrace.topics(space="acme") == []
            assert (await server.key("GET", "jobs")).status == 401
            missing = await server.admin("DELETE", f"{ACCOUNTS}/acme")
            assert error(missing) == (404, "NotFound", "DeleteAccount")
            missing = await server.admin("GET", f"{ACCOUNTS}/acme")
            assert error(missing) == (404, "NotFound", "GetAccount")

            anew = await server.admin("POST", ACCOUNTS, "acme")
            assert (await server.key("GET", "")).status == 401, "the keys are others"
            found = await server.key("GET", "", key=keys_of(anew)["primary"])
            assert told_of(found) == []

    run(main())


def test_ending_an_account_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            rules = ("allow publish,work,read,watch,manage acme/*", "deny * acme/*")
            await server.book.set_user(User("acme", tuple(map(parse_rule, rules))), BY)
            assert (await server.key("GET", "jobs")).status == 403, "it is known, and may nothing"
            assert (await server.admin("DELETE", f"{ACCOUNTS}/acme")).status == 204
            assert await server.millrace.queues(space="acme") == []

    run(main())


def test_users_who_are_no_accounts_are_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            for method, path in (
                ("GET", "chief"),
                ("DELETE", "chief"),
                ("DELETE", "chief/keys/primary"),
            ):
                assert (await server.admin(method, f"{ACCOUNTS}/{path}")).status == 404
            more = await server.admin("POST", f"{ACCOUNTS}/chief/keys", {"keyName": "x"})
            assert more.status == 404
            taken = await server.admin("POST", ACCOUNTS, "chief")
            assert error(taken) == (409, "Conflict", "CreateAccount")
            for name in ("system", "local", "a b", "", "x" * 81):
                refused = await server.admin("POST", ACCOUNTS, name)
                assert refused.status in (400, 413), name
            for body in ({"accountName": "x"}, 5, b"acme"):
                refused = await server.admin("POST", ACCOUNTS, body)
                assert refused.status == 400
                assert '"acme"' in refused.text("message")
            assert (await server.admin("GET", f"{ACCOUNTS}?x=1")).status == 400

    run(main())


def test_keys_are_changed_one_after_the_other(tmp_path: Path) -> None:
    """So that programs can go from one to the other without a pause."""

    async def main() -> None:
        async with site(tmp_path) as server:
            keys = f"{ACCOUNTS}/acme/keys"
            secondary = server.keys["secondary"]
            assert (await server.key("GET", "jobs", key=secondary)).status == 200
            taken = await server.admin("POST", keys, {"keyName": "primary"})
            assert error(taken) == (409, "Conflict", "AddAccountKey")
            assert (await server.admin("DELETE", f"{keys}/primary")).status == 204
            assert (await server.key("GET", "jobs")).status == 401
            assert (await server.key("GET", "jobs", key=secondary)).status == 200
            missing = await server.admin("DELETE", f"{keys}/primary")
            assert error(missing) == (404, "NotFound", "DeleteAccountKey")
            made = await server.admin("POST", keys, {"keyName": "primary"})
            assert made.status == 201
            new = str(told_of(made))
            assert new not in server.keys.values()
            assert (await server.key("GET", "jobs", key=new)).status == 200
            shown = await server.admin("GET", f"{ACCOUNTS}/acme")
            assert keys_of(shown) == {"primary": new, "secondary": secondary}
            for body in ({}, {"keyName": "a b"}, {"keyName": "x", "y": 1}):
                assert (await server.admin("POST", keys, body)).status == 400

    run(main())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", ACCOUNTS),
        ("GET", ACCOUNTS),
        ("GET", f"{ACCOUNTS}/acme"),
        ("DELETE", f"{ACCOUNTS}/acme"),
        ("POST", f"{ACCOUNTS}/acme/keys"),
        ("DELETE", f"{ACCOUNTS}/acme/keys/primary"),
    ],
)
def test_accounts_are_the_affair_of_administrators(tmp_path: Path, method: str, path: str) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            await server.book.add_user(User("op", (parse_rule("allow manage,read */*"),)), BY)
            _, token = await server.book.new_token("op", "t", BY)
            headers = {"authorization": f"Bearer {token}"}
            refused = await server.plain(method, path, headers=headers)
            assert refused.status == 403
            assert refused.json["reason"] == "Error"
            # An account cares for itself no more than for others.
            own = await server.plain(
                method, path, headers={"authorization": f"Key {server.primary}"}
            )
            assert own.status == (403 if "acme" in path else 401)
            assert (await server.plain(method, path)).status == 401

    run(main())


def test_an_administrator_signs_addresses_for_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            await server.put("x")
            body = {
                "accountName": "acme",
                "keyName": "secondary",
                "levels": ["AckMessage", "r"],
                "startTime": server.time(-60),
                "endTime": "2099-01-01T01:00:00+01:00",
                "queueName": "jobs",
            }
            made = await server.admin("POST", PERMISSIONS, body)
            assert made.status == 201
            query = made.text("queryParam")
            assert query.startswith(
                f"auth=ra&q=jobs&st={server.time(-60)}&et=2099-01-01T00:00:00Z&"
            )
            told = await server.plain("GET", f"jobs/messages/next?{query}")
            assert told.status == 200
            at = f"jobs/messages?popReceipt={told.text('popReceipt')}&{query}"
            assert (await server.plain("PUT", at, {"message": "y"})).status == 403
            assert (await server.plain("DELETE", at)).status == 204
            assert (await server.plain("GET", f"other/messages/next?{query}")).status == 403
            await server.admin("DELETE", f"{ACCOUNTS}/acme/keys/secondary")
            assert (await server.plain("GET", f"jobs/messages/next?{query}")).status == 401

    run(main())


def test_what_cannot_be_signed_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            good = {"accountName": "acme", "keyName": "primary", "levels": ["r"]}
            assert (await server.admin("POST", PERMISSIONS, good)).status == 201
            for change, status in (
                ({"accountName": "none"}, 404),
                ({"accountName": "chief"}, 404),
                ({"keyName": "third"}, 404),
                ({"levels": []}, 400),
                ({"levels": ["x"]}, 400),
                ({"levels": ["r", "n"]}, 400),
                ({"endTime": "tomorrow"}, 400),
                ({"startTime": "2026-01-31T12:00:00"}, 400),
                ({"queueName": "a b"}, 400),
                ({"more": 1}, 400),
            ):
                refused = await server.admin("POST", PERMISSIONS, good | change)
                assert refused.status == status, change
                assert refused.json["operation"] == "CreateSignedQuery"
            levels = await server.admin("GET", f"{PERMISSIONS}/supportedAuthorizationLevels")
            assert told_of(levels) == [
                {"level": "ReadMessage", "shortForm": "r"},
                {"level": "PutMessage", "shortForm": "p"},
                {"level": "UpdateMessage", "shortForm": "u"},
                {"level": "AckMessage", "shortForm": "a"},
                {"level": "GetQueueInformation", "shortForm": "g"},
                {"level": "CreateQueue", "shortForm": "c"},
                {"level": "DeleteQueue", "shortForm": "d"},
            ]
            await server.book.add_user(User("op", (parse_rule("allow admin acme/*"),)), BY)
            _, token = await server.book.new_token("op", "t", BY)
            headers = {"authorization": f"Bearer {token}"}
            assert (await server.plain("POST", PERMISSIONS, good, headers)).status == 201
            await server.admin("POST", ACCOUNTS, "beta")
            other = good | {"accountName": "beta"}
            refused = await server.plain("POST", PERMISSIONS, other, headers)
            assert error(refused) == (403, "Error", "CreateSignedQuery")

    run(main())


def test_no_note_of_the_audit_tells_a_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            rows = await (await server.millrace.find("audit", space="system")).peek(100)
            text = b"".join(row.body or b"" for row in rows).decode()
            assert "user.add" in text
            assert "key.new" in text
            for key in server.keys.values():
                assert key not in text

    run(main())
