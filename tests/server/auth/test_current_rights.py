"""Whoever loses the right to ask loses what they wait for and what they are being sent."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from millrace.server.web.request_log import AccessLog, RequestLog
from tests.server.rest.harness import Answer, Events, Served, served, until
from tests.server.web.test_request_log import logged

ORDERS = "/v1/spaces/default/queues/orders"
SPACE = "/v1/spaces/default"


def look(server: Served) -> None:
    """As the listener does once a second."""
    server.app.site.look(asyncio.get_running_loop().time())


async def poll(server: Served, role: str) -> asyncio.Task[Answer]:
    """A lease call that waits, and has arrived."""
    before = server.app.stopping.waiting
    task = asyncio.create_task(
        server.ask("POST", f"{ORDERS}/leases", {"wait": 60, "seconds": 600}, role=role)
    )
    await until(lambda: server.app.stopping.waiting > before)
    return task


async def end_of(events: Events) -> None:
    """Wait until a stream is cut off."""
    with suppress(ConnectionResetError):
        while await events.next() is not None:
            continue
    events.close()


def test_a_long_poll_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            revoked, kept = await poll(server, "worker"), await poll(server, "root")
            server.door.forget("worker")
            look(server)
            answer = await revoked
            assert (answer.status, answer.json["code"]) == (401, "unauthenticated")
            assert answer.headers["connection"] == "close"
            queue = await server.millrace.find("orders")
            await queue.publish(b"x")
            assert [one["body"] for one in (await kept).items("messages")] == ["x"]

    asyncio.run(main())


@pytest.mark.parametrize("is_logged", [False, True])
def test_what_was_refused_or_left_meanwhile_is_counted_and_logged(
    tmp_path: Path, *, is_logged: bool
) -> None:
    route = "/v1/spaces/{space}/queues/{queue}/leases"

    def counted(server: Served) -> dict[int, int]:
        found = server.app.counted().requests
        return {status: count for _, path, status, count in found if path == route}

    async def main(found: io.StringIO) -> None:
        async with served(tmp_path) as server:
            server.app.use(RequestLog(None, AccessLog(1)) if is_logged else None)
            queue = await server.millrace.find("orders")
            revoked, kept = await poll(server, "worker"), await poll(server, "root")
            _, left = await asyncio.open_connection("127.0.0.1", server.port)
            head = f"POST {ORDERS}/leases HTTP/1.1\r\nhost: x\r\nauthorization: Bearer root\r\n"
            rest = 'content-type: application/json\r\ncontent-length: 11\r\n\r\n{"wait":60}'
            left.write((head + rest).encode())
            await until(lambda: server.app.stopping.waiting == 3)
            server.door.forget("worker")
            look(server)
            assert (await revoked).status == 401
            left.close()
            await until(lambda: counted(server) == {401: 1, 499: 1})
            await queue.publish(b"x")
            assert (await kept).status == 200
            assert counted(server) == {200: 1, 401: 1, 499: 1}
            lines = [json.loads(line) for line in found.getvalue().splitlines()]
            told = [(line["who"], line["status"], line["route"]) for line in lines]
            own = [("worker", 401, route), ("root", 499, route), ("root", 200, route)]
            assert told == (own if is_logged else [])

    with logged("json") as found:
        asyncio.run(main(found))


def test_a_long_poll_ends_when_its_rule_is_taken_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            waiting = await poll(server, "worker")
            server.door.know("worker", ("allow work default/*", "allow read */*"))
            look(server)
            server.door.know("worker", ("allow read */*",))
            look(server)
            answer = await waiting
            assert (answer.status, answer.json["code"]) == (403, "denied")

    asyncio.run(main())


@pytest.mark.parametrize("path", [f"{ORDERS}/events", f"{SPACE}/stats/events?every=60"])
def test_a_stream_is_cut_off_when_its_reader_may_not_read(tmp_path: Path, path: str) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            changes: tuple[Callable[[], None], ...] = (
                lambda: server.door.forget("reader"),
                lambda: server.door.know("reader", ()),
            )
            for change in changes:
                server.door.know("reader", ("allow read default/orders",))
                events = await server.events(path, role="reader")
                other = await server.events(path)
                assert await events.next()
                assert await other.next()
                change()
                look(server)
                await end_of(events)
                queue = await server.millrace.find("orders")
                await queue.publish(b"x")
                if path.startswith(ORDERS):
                    assert await other.next(), "others go on"
                other.close()
            await until(lambda: server.app.streams.taken == 0)

    asyncio.run(main())


def test_what_goes_through_rules_that_changed_is_asked_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.millrace.queue("other")
            events = await server.events(f"{SPACE}/stats/events?every=60", role="reader")
            assert await events.next()
            server.door.know("reader", ("allow read default/other",))
            look(server)
            await end_of(events)

    asyncio.run(main())


def post(path: str, role: str, body: bytes) -> tuple[bytes, bytes]:
    """A request: its head, and its body."""
    head = (
        f"POST {ORDERS}/{path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {role}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode(), body


def test_whoever_loses_the_right_before_the_last_byte_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            head, body = post("messages", "producer", b'{"body": "x"}')
            writer.write(head + body[:5])
            await until(lambda: server.app.site.bodies.size == 5)
            server.door.forget("producer")
            writer.write(body[5:])
            assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
            writer.close()
            stats = await (await server.millrace.find("orders")).stats()
            assert stats["live"] == 0

    asyncio.run(main())


@pytest.mark.parametrize("rules", [None, (), ("allow work default/orders", "deny publish */*")])
def test_what_was_sent_ahead_is_judged_when_its_turn_comes(
    tmp_path: Path, rules: tuple[str, ...] | None
) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            server.door.know("both", ("allow work,publish default/orders",))
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            first = post("leases", "worker", b'{"wait": 60, "seconds": 600}')
            second = post("messages", "both", b'{"body": "y"}')
            writer.write(b"".join(first + second))
            await until(lambda: server.app.stopping.waiting == 1)
            if rules is None:
                server.door.forget("both")
            else:
                server.door.know("both", rules)
            queue = await server.millrace.find("orders")
            await queue.publish(b"x")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            status = b"HTTP/1.1 401 " if rules is None else b"HTTP/1.1 403 "
            await reader.readuntil(status)
            writer.close()
            assert (await queue.stats())["published"] == 1

    asyncio.run(main())


def test_what_was_sent_ahead_goes_by_the_rules_of_its_turn(tmp_path: Path) -> None:
    """Rights that are kept are kept, and others changed meanwhile count as they are then."""

    async def main() -> None:
        async with served(tmp_path) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            first = post("leases", "worker", b'{"wait": 60, "seconds": 600}')
            second = post("messages", "producer", b'{"body": "y"}')
            writer.write(b"".join(first + second))
            await until(lambda: server.app.stopping.waiting == 1)
            server.door.forget("nobody")
            queue = await server.millrace.find("orders")
            await queue.publish(b"x")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            await reader.readuntil(b"HTTP/1.1 201 ")
            writer.close()

    asyncio.run(main())
