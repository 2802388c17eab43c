"""Requests in, answers out, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from millrace import limits
from millrace.server.http.connection import ClientConnection
from millrace.server.http.listener_context import Answer, ListenerContext
from millrace.server.http.parser import BadRequest, Request
from millrace.server.http.response import Response
from tests.support.timeouts import scaled

GET = b"GET /%s HTTP/1.1\r\nHost: h\r\n\r\n"


def admit(request: Request, length: int | None, _: str) -> Response | None:
    return Response(401, b"no", type="text/plain") if request.path == "/secret" else None


async def echo(request: Request) -> Response:
    return Response(200, request.path.encode() + bytes(request.body), type="text/plain")


def complain(error: BadRequest) -> Response:
    return Response(error.status, error.detail.encode(), type="text/plain")


@asynccontextmanager
async def serving(
    handle: Callable[[Request], Awaitable[Response]] = echo,
) -> AsyncIterator[tuple[ListenerContext, int]]:
    site = ListenerContext(admit, handle, complain)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ClientConnection(site), "127.0.0.1", 0)
    try:
        yield site, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await site.stop(1)


async def talk(port: int, data: bytes) -> bytes:
    """Send all, read until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


def test_answers_come_in_order() -> None:
    async def main() -> None:
        async with serving() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET % b"a" + GET % b"b" + b"BAD\r\n\r\n")
            answer = await asyncio.wait_for(reader.read(), 60)
            assert [part[:12] for part in answer.split(b"HTTP/1.1 ")[1:]] == [
                b"200 OK\r\ndate",
                b"200 OK\r\ndate",
                b"400 Bad Requ",
            ]
            assert answer.index(b"/a") < answer.index(b"/b")
            writer.close()

    asyncio.run(main())


def test_a_refused_body_is_dropped_and_the_connection_stays() -> None:
    async def main() -> None:
        async with serving() as (site, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /secret HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody")
            writer.write(GET % b"next")
            got = await asyncio.wait_for(reader.readuntil(b"/next"), 60)
            assert got.startswith(b"HTTP/1.1 401")
            assert site.bodies.size == 0
            writer.close()

    asyncio.run(main())


def test_a_stream_goes_in_chunks_and_is_cut_where_it_fails() -> None:
    async def parts(*, fails: bool) -> AsyncIterator[bytes]:
        yield b"abc"
        if fails:
            raise OSError("the disk")
        yield b"de"

    async def handle(request: Request) -> Response:
        return Response(200, parts=parts(fails=request.path == "/fails"))

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with serving(handle) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET % b"whole")
            got = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 60)
            assert got.endswith(b"\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
            writer.write(GET % b"fails")
            try:
                rest = await asyncio.wait_for(reader.read(), 60)
            except ConnectionResetError:
                rest = b""
            assert not rest.endswith(b"0\r\n\r\n")
            writer.close()

    asyncio.run(main())


def test_who_leaves_is_not_waited_for() -> None:
    async def main() -> None:
        began, cancelled = asyncio.Event(), asyncio.Event()

        async def handle(request: Request) -> Response:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

        async with serving(handle) as (site, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET % b"x")
            await asyncio.wait_for(began.wait(), 60)
            writer.transport.abort()
            await asyncio.wait_for(cancelled.wait(), 60)
            assert not site.connections

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sent", "after"),
    [
        (b"", limits.HTTP_IDLE_SECONDS_MAX),
        (b"GET / HT", limits.HTTP_HEAD_SECONDS_MAX),
        (
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99\r\n\r\nx",
            limits.HTTP_HEAD_SECONDS_MAX + 1,
        ),
    ],
)
def test_who_is_slow_is_cut_off(sent: bytes, after: float) -> None:
    async def main() -> None:
        async with serving() as (site, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET % b"first" + sent)
            await asyncio.wait_for(reader.readuntil(b"/first"), 60)
            now = asyncio.get_running_loop().time()
            site.look(now + after - 2)
            assert site.connections
            site.look(now + after + 2)
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()

    asyncio.run(main())


def test_who_was_answered_is_looked_at_again() -> None:
    async def main() -> None:
        began, may_end = asyncio.Event(), asyncio.Event()

        async def handle(request: Request) -> Response:
            began.set()
            await may_end.wait()
            return Response(200, b"done", type="text/plain")

        async with serving(handle) as (site, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET % b"x")
            await asyncio.wait_for(began.wait(), 60)
            now = asyncio.get_running_loop().time()
            site.look(now + 2 * limits.HTTP_IDLE_SECONDS_MAX)
            assert site.connections, "it is our turn, however long that takes"
            assert not site.awaited
            may_end.set()
            await asyncio.wait_for(reader.readuntil(b"done"), 60)
            site.look(now + 2 * limits.HTTP_IDLE_SECONDS_MAX)
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()

    asyncio.run(main())


def test_who_has_left_is_not_looked_at() -> None:
    async def main() -> None:
        began, ended = asyncio.Event(), asyncio.Event()

        async def handle(request: Request) -> Response:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError("its client has left")

        async with serving(handle) as (site, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET % b"x")
            await asyncio.wait_for(began.wait(), 60)
            [connection] = site.connections
            writer.transport.abort()
            await asyncio.wait_for(asyncio.gather(ended.wait(), connection.gone), 60)
            assert connection.is_waited_for
            assert not site.awaited

    asyncio.run(main())


def test_stopping_finishes_what_was_asked() -> None:
    async def main() -> None:
        began, may_end = asyncio.Event(), asyncio.Event()

        async def handle(request: Request) -> Response:
            began.set()
            await may_end.wait()
            return Response(200, b"done", type="text/plain")

        async with serving(handle) as (site, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET % b"x")
            await asyncio.wait_for(began.wait(), 60)
            stopping = asyncio.create_task(site.stop(30))
            await asyncio.sleep(0)
            may_end.set()
            answer = await asyncio.wait_for(reader.read(), 60)
            assert b"connection: close" in answer
            assert answer.endswith(b"done")
            await asyncio.wait_for(stopping, scaled(60))
            assert not site.connections
            writer.close()

    asyncio.run(main())


class Handed:
    """An answer that is told by the test."""

    def __init__(self) -> None:
        self.tell: Callable[[Answer], None]
        self.is_begun = asyncio.Event()

    def then(self, tell: Callable[[Answer], None]) -> None:
        self.tell = tell
        self.is_begun.set()

    def cancel(self) -> None:
        raise AssertionError("it was told before")


class Revoked:
    """Whoever asks may not any more."""

    def __init__(self) -> None:
        self.changes = 1

    def version(self) -> int:
        return self.changes

    def judge(self, request: Request) -> Response | None:
        return Response(401, b"no", type="text/plain")


@pytest.mark.parametrize("has_left", [True, False])
def test_what_was_handed_out_is_given_back_however_soon_it_is_given_up(*, has_left: bool) -> None:
    async def main() -> None:
        handed, given_back = Handed(), asyncio.Event()

        async def fetch() -> Response:
            try:
                await asyncio.Event().wait()
            finally:
                given_back.set()
            raise AssertionError("it was given up")

        async with serving() as (site, port):
            site.begin = lambda request: handed
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET % b"lease")
            await handed.is_begun.wait()
            [connection] = site.connections
            handed.tell(fetch())
            if has_left:
                connection.connection_lost(None)
            else:
                connection.judge(Revoked())
            await asyncio.wait_for(given_back.wait(), 60)
            if not has_left:
                answer = await asyncio.wait_for(reader.read(), 60)
                assert answer.startswith(b"HTTP/1.1 401 ")
            connection.cut()
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("length", [20, limits.HTTP_LARGE_BYTES_MIN])
def test_whoever_waits_to_send_a_body_behind_another_request_is_told_to(length: int) -> None:
    async def main() -> None:
        began, may_end = asyncio.Event(), asyncio.Event()

        async def handle(request: Request) -> Response:
            if request.path == "/first":
                began.set()
                await may_end.wait()
            return Response(200, b"%d bytes" % len(request.body), type="text/plain")

        async with serving(handle) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = b"POST /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
            writer.write(GET % b"first" + head + b"Content-Length: %d\r\n\r\n" % length)
            await asyncio.wait_for(began.wait(), 60)
            may_end.set()
            first = await asyncio.wait_for(reader.readuntil(b"0 bytes"), 60)
            assert first.startswith(b"HTTP/1.1 200")
            told = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            assert told == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(bytes(length))
            second = await asyncio.wait_for(reader.readuntil(b" bytes"), 60)
            assert second.startswith(b"HTTP/1.1 200")
            assert second.endswith(b"\r\n\r\n%d bytes" % length)
            writer.close()

    asyncio.run(main())


def test_whoever_was_answered_although_refused_is_judged_the_next_time() -> None:
    async def main() -> None:
        began, standing = asyncio.Queue[str](), Revoked()

        async def handle(request: Request) -> Response:
            began.put_nowait(request.path)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if request.path == "/second":
                    raise
            return Response(200, b"decided", type="text/plain")

        async with serving(handle) as (site, port):
            site.standing = standing
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET % b"first")
            assert await asyncio.wait_for(began.get(), 60) == "/first"
            site.look(asyncio.get_running_loop().time())
            await asyncio.wait_for(reader.readuntil(b"decided"), 60)
            writer.write(GET % b"second")
            assert await asyncio.wait_for(began.get(), 60) == "/second"
            standing.changes += 1
            site.look(asyncio.get_running_loop().time())
            answer = await asyncio.wait_for(reader.read(), 60)
            assert answer.startswith(b"HTTP/1.1 401")
            writer.close()

    asyncio.run(main())
