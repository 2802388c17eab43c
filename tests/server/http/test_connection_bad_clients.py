"""Clients that are slow, greedy or gone: they are cut off, and nobody else notices."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from millrace import limits
from millrace.errors import Invalid
from millrace.server.http.connection import ClientConnection
from millrace.server.http.listener import Listener
from millrace.server.http.listener_context import ListenerContext
from millrace.server.http.parser import Request
from millrace.server.http.response import Response
from tests.server.authority import Authority
from tests.server.http.test_connection import GET, admit, complain, echo, serving
from tests.server.rest.harness import served
from tests.server.rest.harness import until as until_so

UNKNOWN = b"HTTP/1.1 401 Unauthorized\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"


async def until(site: ListenerContext, *, count: int) -> None:
    """Wait until so many are connected."""
    await until_so(lambda: len(site.connections) + site.handshakes == count)


async def is_cut(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 60)


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_whoever_connects_and_asks_nothing_has_as_long_as_for_a_head(sent: bytes) -> None:
    async def main() -> None:
        async with serving() as (site, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            await until(site, count=1)
            now = asyncio.get_running_loop().time()
            site.look(now + limits.HTTP_HEAD_SECONDS_MAX - 1)
            assert site.connections
            site.look(now + limits.HTTP_HEAD_SECONDS_MAX + 1)
            await is_cut(reader)
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("role", ["none", "root"])
def test_sec_25_a_connection_of_nobody_is_kept_for_five_seconds(tmp_path: Path, role: str) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            site = server.app.site
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            known = b"GET /v1/spaces HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %b\r\n\r\n"
            writer.write(known % role.encode())
            status = await asyncio.wait_for(reader.readline(), 60)
            assert status == (b"HTTP/1.1 200 OK\r\n" if role == "root" else UNKNOWN)
            await until_so(lambda: not any(made._under for made in site.connections))
            limit = limits.HTTP_STRANGER_IDLE_SECONDS_MAX
            if role == "root":
                limit = limits.HTTP_IDLE_SECONDS_MAX
            now = asyncio.get_running_loop().time()
            site.look(now + limit - 1)
            assert site.connections
            assert not any(made._transport.is_closing() for made in site.connections)
            site.look(now + limit + 1)
            await is_cut(reader)
            writer.close()

    asyncio.run(main())


def test_sec_25_an_address_leaves_places_for_others(tmp_path: Path) -> None:
    """Whoever is known counts no more: so a proxy may have many connections."""

    async def main() -> None:
        async with served(tmp_path) as server:
            site = server.app.site
            site.connections_max = 4
            known = b"GET /v1/spaces HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer root\r\n\r\n"
            made = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
            await until(site, count=2)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            refused = await asyncio.wait_for(reader.read(), 60)
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"connections on which nobody is known" in refused
            writer.close()
            for reader, writer in made:
                writer.write(known)
                assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 200")
            await until_so(lambda: not site.strangers)
            made += [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
            await until(site, count=4)
            for _, writer in made:
                writer.close()
            await until(site, count=0)
            assert not site.strangers

    asyncio.run(main())


def test_sec_25_a_network_of_ipv6_leaves_places_for_others() -> None:
    """One host has all addresses of its /64."""

    async def main() -> None:
        site = ListenerContext(admit, echo, complain)
        site.connections_max = 4

        def connect(peer: str) -> tuple[ClientConnection, Transport]:
            connection, transport = ClientConnection(site), Transport(peer)
            connection.connection_made(transport)
            return connection, transport

        made = [connect(f"2001:db8::{number:x}") for number in range(1, 4)]
        assert [transport.is_closing() for _, transport in made] == [False, False, True]
        made[2][0].connection_lost(None)
        made.append(connect("2001:db8:0:1::1"))
        assert not made[3][1].is_closing(), "a neighbour's network"
        for connection, _ in (*made[:2], made[3]):
            connection.connection_lost(None)
        assert not site.strangers

    asyncio.run(main())


def test_empty_lines_do_not_keep_a_connection_alive() -> None:
    async def main() -> None:
        site = ListenerContext(admit, echo, complain)
        connection = ClientConnection(site)
        transport = Transport()
        connection.connection_made(transport)
        connection.data_received(GET % b"a")
        await asyncio.sleep(0)
        begin = connection._since
        connection.data_received(b"\r\n")
        assert connection._since == begin
        site.look(begin + limits.HTTP_IDLE_SECONDS_MAX + 1)
        assert transport.is_closing()

    asyncio.run(main())


class Transport(asyncio.Transport):
    """Keeps what is written, and says how much of it has not been sent."""

    def __init__(self, peer: str = "") -> None:
        super().__init__()
        self.unsent = 0
        self._closing = False
        self._peer = peer

    def get_extra_info(self, name: str, default: object = None) -> object:
        return (self._peer, 1) if name == "peername" and self._peer else default

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        self.unsent += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        """What comes is what the test hands over."""

    resume_reading = pause_reading

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close


@pytest.mark.parametrize(
    ("rate", "is_cut_off"),
    [
        (0, True),
        (1, True),
        (limits.HTTP_WRITE_BYTES_PER_SECOND_MIN // 2, True),
        (limits.HTTP_WRITE_BYTES_PER_SECOND_MIN, False),
    ],
)
def test_whoever_takes_an_answer_in_too_slowly_is_cut_off(rate: int, *, is_cut_off: bool) -> None:
    async def big(request: Request) -> Response:
        return Response(200, bytes(1_000_000))

    async def main() -> None:
        site = ListenerContext(admit, big, complain)
        connection = ClientConnection(site)
        transport = Transport()
        connection.connection_made(transport)
        connection.data_received(GET % b"a")
        await asyncio.sleep(0)
        connection.pause_writing()
        begin = asyncio.get_running_loop().time()
        for second in range(2 * limits.HTTP_WRITE_SECONDS_MAX + 2):
            site.look(begin + second)
            transport.unsent -= rate
        assert transport.is_closing() is is_cut_off
        connection.connection_lost(None)

    asyncio.run(main())


def test_bodies_count_until_their_requests_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_BODIES_BYTES_MAX", 10_000)

    async def main() -> None:
        began, may_end = asyncio.Event(), asyncio.Event()

        async def slow(request: Request) -> Response:
            began.set()
            await may_end.wait()
            return Response(200, b"done")

        async with serving(slow) as (site, port):
            first = await asyncio.open_connection("127.0.0.1", port)
            first[1].write(2 * (POST % 4_000 + bytes(4_000)))
            await asyncio.wait_for(began.wait(), 60)
            assert site.bodies.size == 8_000
            second = await asyncio.open_connection("127.0.0.1", port)
            second[1].write(POST % 5_000 + bytes(4_000))
            answer = await asyncio.wait_for(second[0].read(), 60)
            assert answer.startswith(b"HTTP/1.1 503 ")
            second[1].close()
            may_end.set()
            await first[0].readuntil(b"done")
            await first[0].readuntil(b"done")
            await until(site, count=1)
            assert site.bodies.size == 0
            first[1].write(POST % 4_000 + bytes(2_000))
            await until_so(lambda: site.bodies.size == 2_000)
            first[1].transport.abort()
            await until(site, count=0)
            assert site.bodies.size == 0

    asyncio.run(main())


def test_whoever_sends_too_much_is_told_so_although_it_is_not_read() -> None:
    async def main() -> None:
        async with serving() as (site, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(POST % (limits.HTTP_BODY_BYTES_MAX + 1) + bytes(200_000))
            answer = await asyncio.wait_for(reader.read(), 60)
            assert answer.startswith(b"HTTP/1.1 413 ")
            writer.close()
            await until(site, count=0)

    asyncio.run(main())


def test_requests_sent_ahead_are_answered_once_each_and_in_order() -> None:
    async def main() -> None:
        async with serving() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            count = 10 * limits.HTTP_AHEAD_MAX
            writer.write(b"".join(GET % b"n%d." % number for number in range(count)))
            for number in range(count):
                got = await asyncio.wait_for(reader.readuntil(b"/n%d." % number), 60)
                assert got.count(b"HTTP/1.1 200") == 1
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", "203.0.113.7", "none.invalid"])
def test_an_address_that_cannot_be_had_is_named(host: str, *, is_tls: bool) -> None:
    async def main() -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if is_tls else None
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = held.getsockname()[1]
            listener = Listener(ListenerContext(admit, echo, complain))
            with pytest.raises(Invalid, match=f"{host}:{port} cannot be listened at") as caught:
                await listener.listen(host, port, tls=tls)
            assert caught.value.field == "listen"
            await listener.stop(0)

    asyncio.run(main())


# --- TLS ------------------------------------------------------------------------------------------


@asynccontextmanager
async def secure(
    folder: Path, most: int = 100
) -> AsyncIterator[tuple[ListenerContext, int, ssl.SSLContext]]:
    authority = Authority(folder)
    pair = authority.sign("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    site = ListenerContext(admit, echo, complain)
    site.connections_max = most
    listener = Listener(site)
    _, port = await listener.listen("127.0.0.1", 0, tls=context)
    try:
        yield site, port, ssl.create_default_context(cafile=str(authority.path))
    finally:
        await listener.stop(0)


async def ask(port: int, trust: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=trust, server_hostname="localhost"
    )
    writer.write(GET % b"asked")
    got = await asyncio.wait_for(reader.readuntil(b"/asked"), 60)
    writer.close()
    return got


def test_a_handshake_that_never_ends_takes_a_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with secure(tmp_path, most=3) as (site, port, trust):
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            held[0][1].write(b"\x16\x03\x01")
            await until(site, count=3)
            beyond, writer = await asyncio.open_connection("127.0.0.1", port)
            await is_cut(beyond)
            writer.close()
            assert site.handshakes == 3
            for _, one in held:
                one.transport.abort()
            await until(site, count=0)
            assert (await ask(port, trust)).startswith(b"HTTP/1.1 200")

    asyncio.run(main())


def test_a_handshake_that_never_ends_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TLS_HANDSHAKE_SECONDS_MAX", 0.2)

    async def main() -> None:
        async with secure(tmp_path) as (site, port, _):
            for sent in (b"", b"\x16\x03\x01"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                await is_cut(reader)
                writer.close()
                await until(site, count=0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sent", "is_told"),
    [
        (GET % b"x" + bytes(200_000), True),
        (b"\0" * 100, True),
        (b"\x16\x03", False),
        (b"\x16" * 100, False),
        (b"", False),
    ],
)
def test_whoever_speaks_no_tls_is_told_and_forgotten(
    tmp_path: Path, sent: bytes, *, is_told: bool
) -> None:
    async def main() -> None:
        failed: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: failed.append(context))
        async with secure(tmp_path) as (site, port, trust):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            writer.write_eof()
            got = b""
            with suppress(ConnectionResetError):
                got = await asyncio.wait_for(reader.read(), 60)
            assert (b"https://" in got) is is_told
            writer.close()
            await until(site, count=0)
            assert (await ask(port, trust)).startswith(b"HTTP/1.1 200")
        assert not failed

    asyncio.run(main())


def test_what_comes_with_the_end_of_the_handshake_is_read(tmp_path: Path) -> None:
    """A client of TLS 1.3 may send its request with its last word of the handshake."""

    async def main() -> None:
        async with secure(tmp_path) as (_, port, trust):
            got = await asyncio.to_thread(_at_once, port, trust)
            assert got.startswith(b"HTTP/1.1 200")

    asyncio.run(main())


def _at_once(port: int, trust: ssl.SSLContext) -> bytes:
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trust.wrap_bio(into, out, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(out.read())
                into.write(plain.recv(65536))
        tls.write(GET % b"early")
        plain.sendall(out.read())
        while True:
            try:
                return tls.read(1000)
            except ssl.SSLWantReadError:
                into.write(plain.recv(65536))
