"""Following over REST: server-sent events."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest

import millrace
from millrace import Position, limits
from millrace.server.rest import events
from tests.server.rest.harness import Events, Served, served, until, until_told
from tests.support.stall import ATTEMPTS, STEP_CPU_SECONDS_MAX, StallMonitor

SPACE = "/v1/spaces/default"
ORDERS = f"{SPACE}/queues/orders"


async def publish(server: Served, *bodies: str, path: str = ORDERS) -> None:
    told = {"messages": [{"body": body, "key": body} for body in bodies]}
    assert (await server.ask("POST", f"{path}/messages", told)).status == 201


async def following(events: Events) -> tuple[str, str, object]:
    found = await events.next()
    assert found is not None
    return found["event"], found["id"], json.loads(found["data"]).get("body")


async def read(events: Events, count: int) -> list[tuple[str, int, object]]:
    """The next events, with the seq that each one's id names."""
    found = [await following(events) for _ in range(count)]
    return [(name, Position.parse(id).seq, body) for name, id, body in found]


def test_a_queue_is_followed_and_the_last_id_resumes(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await publish(server, "old")
            events = await server.events(f"{ORDERS}/events")
            assert await read(events, 1) == [("begin", 1, None)]
            await publish(server, "a", "b")
            _, last, body = await following(events)
            assert (Position.parse(last).seq, body) == (2, "a")
            assert await read(events, 1) == [("message", 3, "b")]
            events.close()
            await publish(server, "c")
            # A bare seq is an id of earlier versions, and means the present history.
            for id in (last, "2"):
                again = await server.events(f"{ORDERS}/events", headers={"last-event-id": id})
                assert await read(again, 3) == [
                    ("begin", 2, None),
                    ("message", 3, "b"),
                    ("message", 4, "c"),
                ]
                again.close()
            again = await server.events(f"{ORDERS}/events?after={last}")
            assert await read(again, 1) == [("begin", 2, None)]
            whole = await server.events(f"{ORDERS}/events?after=0")
            assert [body for _, _, body in await read(whole, 5)] == [None, "old", "a", "b", "c"]
            position = (await server.ask("GET", f"{ORDERS}/position")).text("position")
            server.app.stop()
            for one in (again, whole):
                while await one.next() is not None:
                    pass
                one.close()
            queue = await server.millrace.find("orders")
            assert position == str(await queue.position())

            async def is_clean() -> bool:
                return await queue.cursors() == {} and server.app.streams.taken == 0

            await until_told(is_clean)

    asyncio.run(main())


def test_the_last_event_of_a_snapshot_stands_for_all_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await publish(server, "a", "b", "c")
            queue = await server.millrace.find("orders")
            leases = await queue.lease(3)
            await leases[2].settle()
            events = await server.events(f"{ORDERS}/events?after=0")
            ids = [(await following(events))[1] for _ in range(3)]
            events.close()
            # Message 3 is gone; the reader has seen the snapshot up to there all the same.
            assert ids[2] == str(await queue.position())
            middle = Position.parse(ids[1])
            assert (middle.snapshot_start, middle.seq, middle.snapshot_end) == (0, 1, 3)

    asyncio.run(main())


@pytest.mark.parametrize("is_front", [False, True], ids=["owner", "front"])
def test_after_a_restore_the_last_id_is_told_where_to_go_back(
    tmp_path: Path, *, is_front: bool
) -> None:
    async def main() -> None:
        async with served(tmp_path / "data", is_front=is_front) as server:
            await publish(server, "a", "b")
            events = await server.events(f"{ORDERS}/events?after=0")
            kept = [await following(events) for _ in range(3)][-1][1]
            await server.millrace.backup(tmp_path / "backup")
            await publish(server, "lost", "lost too")
            lost = [(await following(events))[1] for _ in range(2)]
            events.close()
        await millrace.restore(tmp_path / "backup", tmp_path / "restored")
        async with served(tmp_path / "restored", is_front=is_front) as server:
            # Other messages get the seqs of the lost ones: bare seqs went on after them.
            new = ["new", "newer", "newest"]
            await publish(server, *new)
            back = ""
            for id in lost:
                for path, headers in (
                    (f"{ORDERS}/events", {"last-event-id": id}),
                    (f"{ORDERS}/events?after={id}", None),
                ):
                    # HEAD first: it ends also where the stream would begin.
                    seen = await server.ask("HEAD", path, headers=headers)
                    assert seen.status == 410
                    refused = await server.ask("GET", path, headers=headers)
                    assert (refused.status, refused.json["code"]) == (410, "rolled_back")
                    back = refused.text("position")
                    assert Position.parse(back).seq == 2
            for id in (back, kept):
                again = await server.events(f"{ORDERS}/events", headers={"last-event-id": id})
                assert [body for _, _, body in await read(again, 4)] == [None, *new]
                again.close()
            await (await server.millrace.find("orders")).purge()
            for id in (kept, *lost, "1"):
                headers = {"last-event-id": id}
                expired = await server.ask("GET", f"{ORDERS}/events", headers=headers)
                assert (expired.status, expired.json["code"]) == (410, "cursor_expired")

    asyncio.run(main())


def test_an_id_of_another_queue_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await publish(server, "a")
            other = await server.millrace.queue("tea")
            headers = {"last-event-id": str(await other.position())}
            refused = await server.ask("GET", f"{ORDERS}/events", headers=headers)
            assert (refused.status, refused.json["field"]) == (404, "position")
            damaged = await server.ask("GET", f"{ORDERS}/events?after=pos1.x")
            assert (damaged.status, damaged.json["field"]) == (400, "position")

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
        monkeypatch.setattr(limits, "HTTP_STREAMS_MAX", 1)
        async with served(tmp_path) as server:
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
                stream = events._follow(None, queue, "end")  # type: ignore[arg-type]
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


@pytest.mark.slow
def test_sec_08_an_event_of_a_large_message_stops_nobody(tmp_path: Path) -> None:
    """Each byte of its body is six bytes of JSON."""
    body = b"\x01" * limits.BODY_BYTES_MAX

    async def main() -> None:
        async with served(tmp_path, settings=millrace.Settings()) as server:
            queue = await server.millrace.find("orders")
            steps: list[float] = []
            while len(steps) < ATTEMPTS and (not steps or steps[-1] > STEP_CPU_SECONDS_MAX):
                await queue.purge()
                events = await server.events(f"{ORDERS}/events")
                assert (await following(events))[0] == "begin"
                await queue.publish(body)
                async with StallMonitor() as monitor:
                    found = await events.next()
                assert found is not None
                steps.append(monitor.longest_cpu_seconds)
                assert json.loads(found["data"])["body"] == body.decode()
                await publish(server, "small")
                assert (await following(events))[2] == "small"
                events.close()
            assert min(steps) < STEP_CPU_SECONDS_MAX, steps

    asyncio.run(main())
