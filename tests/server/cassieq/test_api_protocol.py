"""Who is let in: keys, signed requests, signed addresses, tokens; and who is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import limits
from millrace.errors import Unauthenticated
from millrace.server.auth.access import (
    VERBS,
    Principal,
    User,
    parse_rule,
)
from millrace.server.auth.authenticator import Authenticator
from millrace.server.cassieq.api_protocol import CassieqApi
from millrace.server.cassieq.routes import ROUTES
from millrace.server.http.parser import Request
from tests.client.harness import run
from tests.server.cassieq.harness import ACCOUNTS, BY, Site, at, error, receipt, signature, site
from tests.server.cassieq.harness import told_of as listed
from tests.server.rest.harness import Answer

LETTERS = "rpuagcd"


def query(key: str, letters: str, *more: str, account: str = "acme", **told: str) -> str:
    """What goes behind the question mark: lines that are signed, and what is told of them."""
    sig = signature(key, account, letters, *more)
    return "&".join([f"auth={letters}", *(f"{name}={told[name]}" for name in told), f"sig={sig}"])


async def beta(server: Site) -> str:
    """Another account's key."""
    made = await server.admin("POST", ACCOUNTS, "beta")
    keys = made.json["keys"]
    assert isinstance(keys, dict)
    return str(keys["primary"])


def unknown(answer: Answer) -> bool:
    """Whether nobody was known."""
    assert answer.headers["www-authenticate"].startswith("Key ")
    return error(answer)[:2] == (401, "Error")


def test_a_key_is_good_for_its_account_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            other = await beta(server)
            for key in server.keys.values():
                assert (await server.key("GET", "jobs", key=key)).status == 200
            small = {"authorization": f"key   {server.primary}"}
            assert (await server.plain("GET", "jobs", headers=small)).status == 200
            for key in (other, "x", server.primary[:-1], server.primary + "=", "ü" * 40):
                headers = {"authorization": f"Key {key}".encode().decode("latin-1")}
                assert unknown(await server.plain("GET", "jobs", headers=headers))
            for value in ("Key", f"Keys {server.primary}", server.primary, "Key " + "x" * 5000):
                refused = await server.plain("GET", "jobs", headers={"authorization": value})
                assert unknown(refused)
            server.clock.forward(seconds=60)
            elsewhere = f"{ACCOUNTS}/beta/queues"
            assert unknown(await server.key("GET", elsewhere))
            assert unknown(await server.key("GET", f"{ACCOUNTS}/none/queues"))
            assert (await server.key("GET", elsewhere, key=other)).status == 200
            assert unknown(await server.plain("GET", "jobs"))

    run(main())


def test_a_key_that_expires_is_good_until_then(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            _, secret = await server.book.new_key("acme", "short", BY, seconds=60)
            assert (await server.key("GET", "jobs", key=secret)).status == 200
            server.clock.forward(seconds=61)
            assert unknown(await server.key("GET", "jobs", key=secret))
            assert (await server.key("GET", "jobs")).status == 200

    run(main())


def test_signed_requests_do_everything_an_account_may(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            assert (await server.signed("POST", "", {"queueName": "q"})).status == 201
            assert (await server.signed("POST", "q/messages", b"x")).status == 201
            told = await server.signed("GET", "q/messages/next?invisibilityTimeSeconds=9")
            assert told.status == 200
            where = f"q/messages?popReceipt={receipt(told.json)}"
            told = await server.signed("PUT", where, {"message": "y"})
            assert told.status == 200
            where = f"q/messages?popReceipt={receipt(told.json)}"
            assert (
                await server.signed("DELETE", where, key=server.keys["secondary"])
            ).status == 204
            for path in ("", "q", "q/statistics"):
                assert (await server.signed("GET", path)).status == 200
            assert (await server.signed("DELETE", "q")).status == 200

    run(main())


def test_a_signature_is_of_one_request_and_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            other = await beta(server)
            time = server.time()
            path = at("jobs")
            right = signature(server.primary, "acme", "GET", path, time)

            async def ask(sig: str, when: str | None, to: str = "jobs", how: str = "GET") -> Answer:
                headers = {"authorization": f"Signed {sig}"}
                if when is not None:
                    headers["x-cassieq-request-time"] = when
                return await server.plain(how, to, headers=headers)

            assert (await ask(right, time)).status == 200
            zone = time.replace("Z", "+00:00")
            assert (await ask(right, zone)).status == 200, "the same time, written otherwise"
            for answer in (
                await ask(right, None),
                await ask(right, "now"),
                await ask(right, server.time(1)),
                await ask(right, time, "jobs/statistics"),
                await ask(right, time, "jobs", "DELETE"),
                await ask(right, time, f"{ACCOUNTS}/beta/queues/jobs"),
                await ask(right[:-1], time),
                await ask("", time),
                await ask(signature(other, "acme", "GET", path, time), time),
                await ask(signature(other, "beta", "GET", path, time), time),
                await ask(signature(server.primary, "acme", "GET", path), time),
            ):
                assert unknown(answer)

    run(main())


@pytest.mark.parametrize("way", [1, -1])
def test_a_signature_is_good_for_a_few_seconds(tmp_path: Path, way: int) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            seconds = limits.CASSIEQ_SKEW_MS_MAX // 1000
            near = await server.signed("GET", "jobs", seconds=way * seconds)
            assert near.status == 200
            far = await server.signed("GET", "jobs", seconds=way * (seconds + 2))
            assert unknown(far)
            assert "clock" in far.text("message")

    run(main())


async def of_each_letter(server: Site, signed: str) -> dict[str, int]:
    """What is answered to a request for each right."""
    await server.put("x")
    held = receipt(await server.get())
    found: dict[str, int] = {}
    for letter, method, path, body in (
        ("r", "GET", "jobs/messages/next?", None),
        ("p", "POST", "jobs/messages?", b"y"),
        ("u", "PUT", f"jobs/messages?popReceipt={held}&", {}),
        ("a", "DELETE", f"jobs/messages?popReceipt={held}&", None),
        ("g", "GET", "jobs?", None),
        ("c", "POST", "?", {"queueName": "made"}),
        ("d", "DELETE", "jobs?", None),
    ):
        found[letter] = (await server.plain(method, f"{path}{signed}", body)).status
    return found


@pytest.mark.parametrize("letter", LETTERS)
def test_a_signed_address_is_good_for_what_its_letters_say(tmp_path: Path, letter: str) -> None:
    done = {"r": 204, "p": 201, "u": 200, "a": 204, "g": 200, "c": 201, "d": 200}

    async def main() -> None:
        async with site(tmp_path) as server:
            found = await of_each_letter(server, query(server.primary, letter))
            assert found.pop(letter) == done[letter]
            assert set(found.values()) == {403}

    run(main())


def test_a_signed_address_with_all_letters_does_everything(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            found = await of_each_letter(server, query(server.keys["secondary"], LETTERS))
            assert max(found.values()) < 300
            told = await server.plain("GET", f"{ACCOUNTS}/acme?{query(server.primary, LETTERS)}")
            assert error(told) == (403, "Error", "GetAccount"), "accounts are no affair of theirs"

    run(main())


def test_a_signed_address_of_one_queue_is_good_for_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            await server.key("POST", "", {"queueName": "other"})
            mine = query(server.primary, LETTERS, "q:jobs", q="jobs")
            assert (await server.plain("GET", f"jobs?{mine}")).status == 200
            for path in ("other", "other/statistics", "other/messages/next"):
                refused = await server.plain("GET", f"{path}?{mine}")
                assert error(refused)[:2] == (403, "Error"), path
            assert (await server.plain("DELETE", f"other?{mine}")).status == 403
            found = listed(await server.plain("GET", f"?{mine}"))
            assert isinstance(found, list)
            assert [one["queueName"] for one in found] == ["jobs"]
            made = await server.plain("POST", f"?{mine}", {"queueName": "more"})
            assert error(made) == (403, "Error", "CreateQueue")
            assert (await server.plain("DELETE", f"jobs?{mine}")).status == 200
            dead = {"queueName": "jobs", "dlqName": "other"}
            made = await server.plain("POST", f"?{mine}", dead)
            assert made.status == 403, "dead letters are messages that are put"
            assert (await server.plain("POST", f"?{mine}", {"queueName": "jobs"})).status == 201

    run(main())


def test_a_signed_address_has_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            start, end = server.time(10), server.time(20)
            told = query(
                server.primary, "g", f"startTime:{start}", f"endTime:{end}", st=start, et=end
            )
            early = await server.plain("GET", f"jobs?{told}")
            assert unknown(early)
            assert "not good yet" in early.text("message")
            server.clock.forward(seconds=11)
            assert (await server.plain("GET", f"jobs?{told}")).status == 200
            server.clock.forward(seconds=10)
            late = await server.plain("GET", f"jobs?{told}")
            assert unknown(late)
            assert "over" in late.text("message")

    run(main())


def test_nothing_that_was_signed_can_be_changed(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            other = await beta(server)
            end = server.time(60)
            told = query(server.primary, "g", f"endTime:{end}", "q:jobs", et=end, q="jobs")
            assert (await server.plain("GET", f"jobs?{told}")).status == 200
            shuffled = "&".join(reversed(told.split("&")))
            assert (await server.plain("GET", f"jobs?{shuffled}")).status == 200
            for changed in (
                told.replace("auth=g", "auth=gd"),
                told.replace("auth=g", "auth="),
                told.replace("auth=g&", ""),
                told.replace("q=jobs&", ""),
                told.replace("q=jobs", "q=other"),
                told.replace(f"et={end}&", ""),
                told.replace(f"et={end}", f"et={server.time(61)}"),
                told[:-1],
                f"{told}&auth=g",
                f"{told}&st={server.time(-1)}",
                query(other, "g", f"endTime:{end}", "q:jobs", et=end, q="jobs"),
            ):
                assert unknown(await server.plain("GET", f"jobs?{changed}")), changed
            server.clock.forward(seconds=50)
            elsewhere = f"{ACCOUNTS}/beta/queues?{query(server.primary, 'g')}"
            assert unknown(await server.plain("GET", elsewhere))

    run(main())


def test_who_has_a_signed_address_may_do_no_more_than_the_account(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            rules = ("allow read,publish acme/*", "deny publish acme/jobs")
            await server.book.set_user(User("acme", tuple(map(parse_rule, rules))), BY)
            found = await of_each_letter_of(server, query(server.primary, LETTERS))
            assert found == {"g": 200, "p": 403, "r": 403, "c": 403}

    run(main())


async def of_each_letter_of(server: Site, signed: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for letter, method, path, body in (
        ("g", "GET", "jobs?", None),
        ("p", "POST", "jobs/messages?", b"y"),
        ("r", "GET", "jobs/messages/next?", None),
        ("c", "POST", "?", {"queueName": "made"}),
    ):
        found[letter] = (await server.plain(method, f"{path}{signed}", body)).status
    return found


def test_a_header_says_more_than_an_address(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            signed = query(server.primary, "g")
            wrong = {"authorization": "Key x"}
            assert unknown(await server.plain("GET", f"jobs?{signed}", headers=wrong))
            right = {"authorization": f"Key {server.primary}"}
            deleted = await server.plain("DELETE", f"jobs?{signed}", headers=right)
            assert deleted.status == 200

    run(main())


def test_another_method_is_told_of_to_who_is_known(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            told = await server.key("GET", "jobs/messages")
            assert (told.status, told.headers["allow"]) == (405, "DELETE, POST, PUT")
            assert (await server.plain("GET", "jobs/messages")).status == 401
            signed = query(server.primary, LETTERS)
            assert (await server.plain("GET", f"jobs/messages?{signed}")).status == 403

    run(main())


def test_who_was_let_in_is_judged_again_by_all_but_the_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            face = CassieqApi(Authenticator(lambda: server.book.roll, server.clock), server.book)
            params = {"space": "acme", "queue": "jobs"}
            time = server.time()
            sig = signature(server.primary, "acme", "GET", at("jobs"), time)
            signed = asked({"authorization": f"Signed {sig}", "x-cassieq-request-time": time})
            lines = query(server.primary, "g", f"endTime:{server.time(9)}", et=server.time(9))
            address = asked({}, lines)
            for request in (signed, address):
                assert isinstance(face.admit(request, params, "::1"), Principal)
            server.clock.forward(seconds=60)
            for request in (signed, address):
                assert isinstance(face.admit(request, params, "::1"), Unauthenticated)
                found = face.who(request, params, "::1")
                assert found is not None
                assert (found.name, found.where) == ("acme", "::1")
            await server.admin("DELETE", f"{ACCOUNTS}/acme/keys/primary")
            for request in (signed, address):
                assert face.who(request, params, "::1") is None

    run(main())


def asked(headers: dict[str, str], query: str = "") -> Request:
    """A request for the definition of the queue."""
    request = Request()
    request.method, request.path = "GET", at("jobs")
    request.headers, request.query = headers, query
    return request


def test_tokens_of_the_server_are_good_here_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            await server.book.add_user(User("op", (parse_rule("allow publish acme/jobs"),)), BY)
            _, token = await server.book.new_token("op", "t", BY)
            headers = {"authorization": f"Bearer {token}"}
            assert (await server.plain("POST", "jobs/messages", b"x", headers)).status == 201
            refused = await server.plain("GET", "jobs/messages/next", headers=headers)
            assert error(refused) == (403, "Error", "GetMessage")
            assert (await server.admin("GET", at("jobs"))).status == 200

    run(main())


def test_who_may_do_all_else_is_refused_everywhere(tmp_path: Path) -> None:
    names = {"space": "acme", "queue": "jobs", "key": "primary"}

    async def main() -> None:
        async with site(tmp_path) as server:
            await server.book.add_user(User("weak"), BY)
            _, token = await server.book.new_token("weak", "t", BY)
            headers = {"authorization": f"Bearer {token}"}
            for route in ROUTES.all:
                verb = "manage" if route.name == "create_queue" else route.verb
                if verb == "known":
                    continue
                others = ",".join(one for one in VERBS if one != verb)
                rules = (f"allow {others} */*", "allow * other/*", "allow * acme/other")
                await server.book.set_user(User("weak", tuple(map(parse_rule, rules))), BY)
                path = route.path.format(**names)
                refused = await server.plain(
                    route.method, path, {"queueName": "jobs"}, headers=headers
                )
                assert error(refused)[:2] == (403, "Error"), route.path
            assert await server.size() == 0

    run(main())


def test_keys_of_accounts_are_no_tokens_of_the_server(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            own = "/v1/spaces/acme/queues/jobs"
            for headers in (
                {"authorization": f"Key {server.primary}"},
                {"authorization": f"Bearer {server.primary}"},
            ):
                assert (await server.plain("GET", own, headers=headers)).status == 401
            assert (await server.plain("GET", f"{own}?{query(server.primary, 'g')}")).status == 401

    run(main())


def test_wrong_credentials_are_answered_so_often_and_right_ones_always(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            found: list[int] = []
            for number in range(limits.FAILURES_BURST + 1):
                way = number % 3
                if way == 0:
                    answer = await server.key("GET", "jobs", key="x")
                elif way == 1:
                    answer = await server.signed("GET", "jobs", key="a" * 40)
                else:
                    answer = await server.plain("GET", f"jobs?{query('a' * 40, 'g')}")
                found.append(answer.status)
            assert found == [401] * limits.FAILURES_BURST + [429]
            assert (await server.key("GET", "jobs")).status == 200
            assert (await server.signed("GET", "jobs")).status == 200

    run(main())
