"""Sessions over REST."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from millrace import limits
from tests.server.rest.harness import Served, served, until, until_told

ORDERS = "/v1/spaces/default/queues/orders"


async def opened(server: Served, **told: object) -> str:
    made = await server.ask("POST", f"{ORDERS}/sessions", told)
    assert made.status == 201, made
    return f"{ORDERS}/sessions/{made.text('session')}"


async def publish(server: Served, *bodies: str) -> None:
    told = {"messages": [{"body": body} for body in bodies]}
    assert (await server.ask("POST", f"{ORDERS}/messages", told)).status == 201


def test_r4_messages_come_with_numbers_and_are_settled_by_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            session = await opened(server, credit=3, name="web")
            waiting = asyncio.create_task(
                server.ask("POST", f"{session}/receive", {"wait": 30, "count": 1})
            )
            await until(lambda: server.app.stopping.waiting == 1)
            await publish(server, *"abcde")
            [first] = (await waiting).items("messages")
            assert (first["number"], first["body"]) == (0, "a")

            async def received() -> bool:
                found.extend((await server.ask("POST", f"{session}/receive")).items("messages"))
                return len(found) == 2

            found: list[dict[str, object]] = []
            await until_told(received)
            assert [(one["number"], one["body"]) for one in found] == [(1, "b"), (2, "c")]
            # An answer that was lost is told again, under the same numbers.
            await server.ask("POST", f"{session}/redeliver", {"number": 1})
            found = []
            await until_told(received)
            assert [one["number"] for one in found] == [1, 2]
            done = await server.ask("POST", f"{session}/settle", {"upto": 1})
            assert done.json == {"done": 2, "refused": []}
            again = await server.ask("POST", f"{session}/settle", {"numbers": [0, 1, 77]})
            assert again.json == {"done": 0, "refused": []}
            given = await server.ask("POST", f"{session}/release", {"numbers": [2]})
            assert given.json["done"] == 1
            gone = await server.ask("DELETE", session)
            assert gone.json == {"was_there": True}
            assert (await server.ask("POST", f"{session}/receive")).status == 404
            stats = await (await server.millrace.find("orders")).stats()
            assert (stats["settled"], stats["live"]) == (2, 3)

    asyncio.run(main())


def test_r6_credit_is_granted_and_drained(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            session = await opened(server, credit=0, refill=False)
            await publish(server, "a", "b")
            nothing = await server.ask("POST", f"{session}/receive")
            assert nothing.json == {"messages": [], "over": False}
            drained = await server.ask("POST", f"{session}/grant", {"credit": 5, "drain": True})
            assert drained.json == {"drained": 3}
            one = await server.ask("POST", f"{session}/receive", {"count": 1, "wait": 30})
            two = await server.ask("POST", f"{session}/receive", {"count": 1, "wait": 30})
            bodies = [answer.items("messages")[0]["body"] for answer in (one, two)]
            assert bodies == ["a", "b"]
            assert one.items("messages")[0]["deadline_ms"] is None, "as long as it lasts"
            await server.ask("POST", f"{session}/cancel")
            over = await server.ask("POST", f"{session}/receive", {"wait": 30})
            assert over.json == {"messages": [], "over": True}
            assert (await server.ask("POST", f"{session}/discard", {"upto": 9})).json["done"] == 2

    asyncio.run(main())


def test_r7_a_session_that_nobody_asks_about_ends_and_its_messages_return(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            queue = await server.millrace.queue("orders")
            # However long it would keep its messages if it were suspected.
            session = await opened(server, suspect=3600)
            await publish(server, "a")
            answer = await server.ask("POST", f"{session}/receive", {"wait": 30})
            [one] = answer.items("messages")
            server.app.sessions.silence_seconds = 0.01
            await server.ask("POST", f"{session}/heartbeat")
            [again] = await queue.lease(wait=30)
            assert (again.seq, again.failures) == (one["seq"], 1)
            gone = await server.ask("POST", f"{session}/heartbeat")
            assert (gone.status, gone.json["field"]) == (404, "session")
            told = {"resume": session.rpartition("/")[2]}
            refused = await server.ask("POST", f"{ORDERS}/sessions", told)
            assert (refused.status, refused.json["field"]) == (410, "session")

    asyncio.run(main())


def test_r7_a_session_that_is_heard_of_stays_and_can_be_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            session = await opened(server)
            await publish(server, "a")
            answer = await server.ask("POST", f"{session}/receive", {"wait": 30})
            [one] = answer.items("messages")
            server.app.sessions.silence_seconds = 2
            loop = asyncio.get_running_loop()
            until = loop.time() + 3
            while loop.time() < until:
                # A word is said again and again, and nothing else.
                heard = await server.ask("POST", f"{session}/heartbeat")
                assert (heard.status, heard.json) == (200, {})
            told = {"resume": session.rpartition("/")[2]}
            server.app.sessions.silence_seconds = 60
            again = await server.ask("POST", f"{ORDERS}/sessions", told)
            assert (again.status, again.json["idle_seconds"]) == (201, 60)
            path = f"{ORDERS}/sessions/{again.text('session')}"
            answer = await server.ask("POST", f"{path}/receive", {"wait": 30})
            [same] = answer.items("messages")
            assert (same["number"], same["seq"]) == (one["number"], one["seq"])
            assert (await server.ask("POST", f"{path}/settle", {"upto": 0})).json["done"] == 1

    asyncio.run(main())


def test_a_session_is_its_owners_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            session = await opened(server)
            for path, role in (
                (session, "worker"),
                (session.replace("/orders/", "/none/"), "root"),
                (f"{ORDERS}/sessions/x", "root"),
            ):
                refused = await server.ask("POST", f"{path}/receive", role=role)
                assert (refused.status, refused.json["field"]) == (404, "session"), path

    asyncio.run(main())


def test_events_of_a_session_are_resumed_by_the_last_id(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            session = await opened(server)
            await publish(server, "a", "b", "c")
            events = await server.events(f"{session}/events")
            for number in range(3):
                event = await events.next()
                assert event is not None
                assert (event["event"], event["id"]) == ("message", str(number))
            events.close()
            again = await server.events(f"{session}/events", headers={"last-event-id": "0"})
            event = await again.next()
            assert event is not None
            assert (event["id"], json.loads(event["data"])["body"]) == ("1", "b")
            await again.next()
            server.app.stop()
            assert await again.next() is None
            again.close()

    asyncio.run(main())


def test_sessions_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(limits, "HTTP_SESSIONS_MAX", 1)
        async with served(tmp_path) as server:
            await opened(server)
            full = await server.ask("POST", f"{ORDERS}/sessions")
            assert (full.status, full.json["field"]) == (503, "sessions")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "told", "field"),
    [
        ("", {"credit": -1}, "credit"),
        ("", {"credit": 10**9}, "credit"),
        ("", {"lease": -1}, "lease"),
        ("", {"suspect": 1e9}, "suspect"),
        ("", {"name": "a b"}, "name"),
        ("", {"resume": "x"}, "receipt"),
        ("/receive", {"count": 0}, "count"),
        ("/receive", {"wait": 1e9}, "wait"),
        ("/grant", {"credit": 1}, "credit"),
        ("/grant", {}, "credit"),
        ("/settle", {}, "numbers"),
        ("/settle", {"numbers": [1], "upto": 1}, "numbers"),
        ("/settle", {"numbers": []}, "numbers"),
        ("/settle", {"numbers": [-1]}, "numbers[0]"),
        ("/release", {"upto": 1, "delay": -1}, "delay"),
        ("/redeliver", {"number": 2**70}, "number"),
    ],
)
def test_bad_sessions_are_refused(tmp_path: Path, path: str, told: object, field: str) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            address = f"{ORDERS}/sessions" if not path else f"{await opened(server)}{path}"
            refused = await server.ask("POST", address, told)
            assert refused.status in (400, 413), refused
            assert refused.json["field"] == field, refused

    asyncio.run(main())
