"""Large bodies, read into their own place: whole, in their turn, and within bounds."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import limits
from millrace.rpc.tls import client_context
from millrace.server.http.connection import ClientConnection
from millrace.server.http.large_body import BufferPool, LargeBody
from millrace.server.http.listener_context import ListenerContext
from millrace.server.http.parser import Request, RequestParser
from millrace.server.http.response import Response
from millrace.server.process.tls import Certificates
from tests.server.authority import Authority
from tests.server.http.test_connection import GET, admit, complain
from tests.server.http.test_parser import CHUNKED, POST, admit_all
from tests.support.timeouts import scaled

LEAST = limits.HTTP_LARGE_BYTES_MIN
BODY = os.urandom(LEAST + 4711)
SMALL = b"POST /small HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"


def post(body: bytes, path: bytes = b"/large", length: int | None = None) -> bytes:
    head = b"POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
    return head % (path, len(body) if length is None else length) + body


@given(st.lists(st.integers(min_value=1, max_value=2 * LEAST), max_size=8))
@settings(max_examples=50)
def test_however_it_is_cut_a_large_body_is_the_same(steps: list[int]) -> None:
    data = POST + post(BODY) + CHUNKED + post(b"x" * LEAST) + POST
    parser = RequestParser(admit_all)
    found: list[Request] = []
    at = 0
    for step in [*steps, len(data)]:
        if data[at : at + step]:
            found += parser.feed(data[at : at + step])
        at += step
    assert [(request.path, bytes(request.body)) for request in found] == [
        ("/v1/x", b"hello"),
        ("/large", BODY),
        ("/y", b"abcde"),
        ("/large", b"x" * LEAST),
        ("/v1/x", b"hello"),
    ]
    assert parser.is_between
    assert parser.body_bytes == 0


def test_heads_do_not_add_up_beside_large_bodies() -> None:
    parser = RequestParser(admit_all)
    head, body = post(b"", length=LEAST), bytes(LEAST)
    for _ in range(2 * limits.HTTP_HEAD_BYTES_MAX // len(head)):
        assert parser.feed(head) == []
        assert parser.large is not None
        room = parser.large.room()
        room[:] = body
        assert len(parser.filled(len(room))) == 1


def test_what_a_head_claims_is_not_kept_ready() -> None:
    body = LargeBody(limits.HTTP_BODY_BYTES_MAX, BufferPool())
    assert len(body.room()) == limits.HTTP_LARGE_STEP_BYTES
    whole = os.urandom(limits.HTTP_LARGE_STEP_BYTES)
    assert body.take(memoryview(whole)) == len(whole)
    assert len(body.room()) == limits.HTTP_LARGE_STEP_BYTES
    rest = bytes(limits.HTTP_BODY_BYTES_MAX - len(whole))
    assert body.take(memoryview(rest + b"next")) == len(rest)
    assert body.is_whole
    assert body.whole() == whole + rest


def test_memory_is_used_again_when_nothing_refers_to_it() -> None:
    spare = BufferPool(bytes_max=2 * LEAST)
    first = spare.take(LEAST - 100)
    first[:4] = b"held"
    buffer = pa.py_buffer(first).slice(0, 4)
    del first
    second = spare.take(LEAST)
    second[:4] = b"next"
    assert (spare.size, buffer.to_pybytes()) == (0, b"held")
    address = buffer.address
    del buffer
    assert spare.size == LEAST
    third = spare.take(LEAST)
    assert pa.py_buffer(third).address == address
    many = [spare.take(LEAST) for _ in range(4)]
    del second, third, many
    assert spare.size == 2 * LEAST


async def echo(request: Request) -> Response:
    # As whoever judges a request: they refer to each other.
    request.context = [request]
    told = f"{request.path} {hashlib.sha256(request.body).hexdigest()}"
    return Response(200, told.encode(), type="text/plain")


def told(body: bytes) -> bytes:
    return b"/large " + hashlib.sha256(body).hexdigest().encode()


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[ListenerContext, int]]:
    site = ListenerContext(admit, echo, complain)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ClientConnection(site), "127.0.0.1", 0, ssl=tls)
    try:
        yield site, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await site.stop(1)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(scaled(60)):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0)


LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
Loop = Callable[[], asyncio.AbstractEventLoop]


@LOOPS
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_large_bodies_and_small_ones_take_turns(loop: Loop, scheme: str, tmp_path: Path) -> None:
    large = os.urandom(3 * limits.HTTP_LARGE_STEP_BYTES + 1)
    server_tls = client_tls = None
    if scheme == "https":
        authority = Authority(tmp_path)
        pair = authority.sign("localhost")
        server_tls = Certificates(pair.certificate, pair.key).context
        client_tls = client_context(authority.path)

    async def main() -> None:
        async with serving(server_tls) as (site, port):
            reader, writer = await asyncio.open_connection("localhost", port, ssl=client_tls)
            writer.write(SMALL + post(large) + SMALL + post(BODY) + GET % b"last")
            got = await asyncio.wait_for(reader.readuntil(b"/last "), 60)
            first, second = got.index(told(large)), got.index(told(BODY))
            assert got.index(b"/small ") < first < got.rindex(b"/small ") < second
            writer.write(post(large)[:-1])
            await writer.drain()
            writer.write(large[-1:] + post(BODY))
            await asyncio.wait_for(reader.readuntil(told(BODY)), 60)
            assert site.bodies.size == 0
            writer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


def test_a_body_is_let_go_with_its_answer() -> None:
    async def main() -> None:
        async with serving() as (site, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post(BODY))
            await asyncio.wait_for(reader.readuntil(told(BODY)), 60)
            await until(lambda: site.spare.size > 0)
            writer.close()

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


@LOOPS
def test_what_is_refused_is_not_kept(loop: Loop) -> None:
    async def main() -> None:
        async with serving() as (site, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post(BODY, b"/secret") + post(BODY))
            got = await asyncio.wait_for(reader.readuntil(told(BODY)), 60)
            assert got.startswith(b"HTTP/1.1 401")
            assert site.bodies.size == 0
            writer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@LOOPS
def test_who_sends_a_large_body_too_slowly_is_cut_off(loop: Loop) -> None:
    async def main() -> None:
        async with serving() as (site, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET % b"first" + post(BODY[:100], length=len(BODY)))
            await asyncio.wait_for(reader.readuntil(b"/first "), 60)
            await until(lambda: site.bodies.size >= 100)
            now = asyncio.get_running_loop().time()
            site.look(now + limits.HTTP_HEAD_SECONDS_MAX - 1)
            assert site.connections
            site.look(now + limits.HTTP_HEAD_SECONDS_MAX + 2)
            with suppress(ConnectionResetError):
                assert b"HTTP" not in await asyncio.wait_for(reader.read(), 60)
            await until(lambda: not site.connections)
            assert site.bodies.size == 0
            writer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@LOOPS
def test_who_leaves_in_the_middle_leaves_nothing(loop: Loop) -> None:
    async def main() -> None:
        async with serving() as (site, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post(BODY[:-1], length=len(BODY)))
            await until(lambda: site.bodies.size >= len(BODY) - 1)
            writer.transport.abort()
            await until(lambda: not site.connections)
            assert site.bodies.size == 0

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
