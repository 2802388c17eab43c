"""Following over REST: server-sent events."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest

from millrace import limits
from millrace.server.rest import events
from tests.server.rest.harness import Events, Served, served, until, until_told

SPACE = "/v1/spaces/default"
ORDERS = f"{SPACE}/queues/orders"


async def publish(server: Served, *bodies: str, path: str = ORDERS) -> None:
    told = {"messages": [{"body": body, "key": body} for body in bodies]}
    assert (await server.ask("POST", f"{path}/messages", told)).status == 201


async def following(events: Events) -> tuple[str, str, object]:
    found = await events.next()
    assert found is not None
    return found["event"], found["id"], json.loads(found["data"]).get("body")


def test_a_queue_is_followed_and_the_last_id_resumes(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await publish(server, "old")
            events = await server.events(f"{ORDERS}/events")
            assert await following(events) == ("begin", "1", None)
            await publish(server, "a", "b")
            assert await following(events) == ("message", "2", "a")
            assert await following(events) == ("message", "3", "b")
            events.close()
            await publish(server, "c")
            again = await server.events(f"{ORDERS}/events", headers={"last-event-id": "2"})
            assert [await following(again) for _ in range(3)] == [
                ("begin", "2", None),
                ("message", "3", "b"),
                ("message", "4", "c"),
            ]
            whole = await server.events(f"{ORDERS}/events?after=0")
            assert (await following(whole))[0] == "begin"
            assert [(await following(whole))[2] for _ in range(4)] == ["old", "a", "b", "c"]
            server.app.stop()
            for one in (again, whole):
                assert await one.next() is None
                one.close()
            queue = await server.millrace.find("orders")

            async def is_clean() -> bool:
                return await queue.cursors() == {} and server.app.streams.taken == 0

            await until_told(is_clean)

    asyncio.run(main())


def test_several_shards_are_followed_by_a_place_in_each(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            path = f"{SPACE}/queues/wide"
            await server.ask("PUT", path, {"shards": 2})
            await publish(server, *(str(number) for number in range(10)), path=path)
            events = await server.events(f"{path}/events?after=0")
            seen = [await following(events) for _ in range(11)]
            assert {one[2] for one in seen[1:]} == {str(number) for number in range(10)}
            events.close()
            again = await server.events(f"{path}/events", headers={"last-event-id": seen[6][1]})
            rest = [await following(again) for _ in range(5)]
            assert rest[1:] == seen[7:]
            again.close()

    asyncio.run(main())


def test_a_queue_that_ends_ends_its_events_with_a_problem(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            events = await server.events(f"{ORDERS}/events")
            await following(events)
            await server.ask("DELETE", ORDERS)
            last = await events.next()
            assert last is not None
            assert (last["event"], json.loads(last["data"])["status"]) == ("problem", 404)
            assert await events.next() is None
            events.close()

    asyncio.run(main())


def test_counters_are_told_when_they_change(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.millrace.queue("secret")
            one = await server.events(f"{ORDERS}/stats/events?every=0.2")
            every = await server.events(f"{SPACE}/stats/events?every=0.2", role="reader")
            first, whole = await one.next(), await every.next()
            assert first is not None
            assert whole is not None
            assert json.loads(first["data"])["published"] == 0
            assert list(json.loads(whole["data"])["queues"]) == ["orders"]
            await publish(server, "a")
            second, more = await one.next(), await every.next()
            assert second is not None
            assert more is not None
            assert json.loads(second["data"])["published"] == 1
            assert json.loads(more["data"])["queues"]["orders"]["published"] == 1
            await server.ask("DELETE", ORDERS)
            gone, last = await every.next(), await one.next()
            assert gone is not None
            assert last is not None
            assert json.loads(gone["data"]) == {"queues": {}, "gone": ["orders"]}
            assert last["event"] == "problem"
            for events in (one, every):
                events.close()

    asyncio.run(main())


def test_a_quiet_stream_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            monkeypatch.setattr(limits, "EVENT_SECONDS", 0.2)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(
                f"GET {ORDERS}/events HTTP/1.1\r\nhost: x\r\n"
                "authorization: Bearer root\r\n\r\n".encode()
            )
            await reader.readuntil(b"\r\n:\n\n\r\n")
            writer.close()

    asyncio.run(main())


def test_streams_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            monkeypatch.setattr(limits, "HTTP_STREAMS_MAX", 1)
            events = await server.events(f"{ORDERS}/events")
            await following(events)
            full = await server.ask("GET", f"{ORDERS}/events")
            assert (full.status, full.json["field"]) == (503, "streams")
            head = await server.ask("HEAD", f"{ORDERS}/events")
            assert head.headers["content-type"] == "text/event-stream"
            events.close()

            async def has_room() -> bool:
                return server.app.streams.taken == 0

            await until_told(has_room)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/events?after=x", "after"),
        ("/events?after=1,2", "after"),
        ("/events?after=-1", "after"),
        ("/events?after=1", "after"),
        ("/events?after=99999999999999999999", "after"),
        ("/events?what=1", "what"),
        ("/stats/events?every=0", "every"),
        ("/stats/events?every=1e9", "every"),
        ("/stats/events?every=x", "every"),
    ],
)
def test_bad_streams_are_refused(tmp_path: Path, path: str, field: str) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            refused = await server.ask("GET", f"{ORDERS}{path}")
            assert (refused.status, refused.json["field"]) == (400, field), refused
            assert server.app.streams.taken == 0

    asyncio.run(main())


def test_whoever_leaves_while_a_stream_begins_leaves_no_cursor(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            queue = await server.millrace.find("orders")
            begun, turns = False, 0
            while not begun:  # the first leaves at once, the last when its stream has begun
                stream = events._follow(None, queue, None)  # type: ignore[arg-type]
                first = asyncio.ensure_future(anext(stream))
                for _ in range(turns):
                    await asyncio.sleep(0)
                begun, turns = first.done(), turns + 1 + turns // 4
                first.cancel()
                with suppress(asyncio.CancelledError):
                    await first
                await stream.aclose()
            assert turns > 1, "not even the first found it begun"
            assert await queue.cursors() == {}

    asyncio.run(main())


def test_whoever_leaves_while_rows_are_sent_leaves_no_pin(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            queue = await server.millrace.find("orders")
            await queue.publish(b"x")
            head = (
                f"GET {ORDERS}/rows HTTP/1.1\r\nhost: a\r\nauthorization: Bearer root\r\n"
                "accept: application/vnd.apache.arrow.stream\r\n\r\n"
            )
            for turns in range(40):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(head.encode())
                for _ in range(turns):
                    await asyncio.sleep(0)
                writer.transport.abort()
            await until(lambda: not server.app.site.connections)

            async def is_free() -> bool:
                return not (await queue.holders()).held

            await until_told(is_free)

    asyncio.run(main())
