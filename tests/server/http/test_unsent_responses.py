"""What is answered and not taken in is bounded over all connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millrace import limits
from millrace.server.http.connection import ClientConnection
from millrace.server.http.listener_context import ListenerContext
from millrace.server.http.memory_limits import UnsentResponses
from millrace.server.http.parser import Request
from millrace.server.http.response import Response
from tests.server.http.test_connection import complain
from tests.server.http.test_connection_bad_clients import Transport, secure
from tests.server.rest.harness import until

MIB = 1024 * 1024
LARGE = 32 * MIB
"""More than the system takes in for a client that reads nothing."""
GET = b"GET /%s HTTP/1.1\r\nHost: h\r\n\r\n"

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def admit(request: Request, length: int | None, _: str) -> Response | None:
    request.owner = request.path
    return None


class Served:
    """A site, where it listens, and what it has begun to answer."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.site = ListenerContext(admit, self.handle, complain)
        self.port = 0

    async def handle(self, request: Request) -> Response:
        self.begun[request.path] += 1
        return Response(200, bytes(LARGE))

    async def ask(self, name: bytes) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(GET % name)
        return reader, writer


@asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    served = Served()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ClientConnection(served.site), "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        await served.site.stop(0)
        assert served.site.unsent.size == 0


async def read(client: Client) -> int:
    """Take the whole answer in; how much it was, without its head."""
    reader, writer = client
    await reader.readuntil(b"\r\n\r\n")
    size = len(await reader.readexactly(LARGE))
    writer.close()
    return size


def test_whoever_takes_nothing_in_is_answered_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_UNSENT_BYTES_MAX", 4 * MIB)

    async def main() -> None:
        async with serving() as served:
            slow = [await served.ask(b"slow")]
            await until(lambda: served.site.unsent.held("/slow") > 4 * MIB)
            slow += [await served.ask(b"slow") for _ in range(3)]
            await until(lambda: len(served.site.connections) == 4)
            assert await read(await served.ask(b"other")) == LARGE, "others go on"
            assert served.begun == {"/slow": 1, "/other": 1}
            assert await asyncio.gather(*map(read, slow)) == [LARGE] * 4
            await until(lambda: served.site.unsent.size == 0)

    asyncio.run(main())


def test_over_tls_answers_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_UNSENT_BYTES_MAX", 4 * MIB)

    async def main() -> None:
        async with secure(tmp_path) as (site, port, trust):
            begun: Counter[str] = Counter()

            async def handle(request: Request) -> Response:
                begun[request.path] += 1
                return Response(200, bytes(LARGE))

            site.admit, site.handle = admit, handle

            async def ask() -> Client:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=trust, server_hostname="localhost"
                )
                writer.write(GET % b"slow")
                return reader, writer

            slow = [await ask()]
            await until(lambda: site.unsent.held("/slow") > 4 * MIB)
            slow += [await ask(), await ask()]
            await until(lambda: len(site.connections) == 3)
            assert begun == {"/slow": 1}
            assert await asyncio.gather(*map(read, slow)) == [LARGE] * 3
            await until(lambda: site.unsent.size == 0)

    asyncio.run(main())


def test_streams_together_hold_no_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    most, count, part, parts = 8_000, 6, 1_000, 20
    monkeypatch.setattr(limits, "HTTP_UNSENT_BYTES_MAX", most)
    begun: Counter[str] = Counter()

    async def stream(path: str) -> AsyncIterator[bytes]:
        for _ in range(parts):
            begun[path] += 1
            yield bytes(part)

    async def handle(request: Request) -> Response:
        return Response(200, parts=stream(request.path))

    async def main() -> None:
        site = ListenerContext(admit, handle, complain)

        def ask(name: bytes) -> tuple[ClientConnection, Transport]:
            connection, transport = ClientConnection(site), Transport()
            connection.connection_made(transport)
            connection.data_received(GET % name)
            return connection, transport

        slow = [ask(b"slow") for _ in range(count)]
        await turns()
        assert site.unsent.size < most // 2 + (count + 1) * part
        found = begun["/slow"]
        await turns()
        assert begun["/slow"] == found < count * parts, "they wait"
        other = ask(b"other")
        await turns()
        assert begun["/other"] >= 1, "others go on"
        for _ in range(count * parts):
            for connection, transport in [*slow, other]:
                transport.unsent = 0
                connection.resume_writing()
            await turns()
        assert begun == {"/slow": count * parts, "/other": parts}
        for connection, _ in [*slow, other]:
            connection.connection_lost(None)
        assert site.unsent.size == 0

    asyncio.run(main())


def test_only_those_who_owe_are_counted_again() -> None:
    """Ten thousand who wait are not counted every second."""

    async def main() -> None:
        async with serving() as served:
            slow, quick = await served.ask(b"slow"), await served.ask(b"quick")
            await until(lambda: len(served.site.owed) == 2)
            reader, writer = quick
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(LARGE)

            def look() -> bool:
                served.site.look(0.0)
                return len(served.site.owed) == 1

            await until(look)
            assert served.site.unsent.held("/quick") == 0 < served.site.unsent.held("/slow")
            assert len(served.site.connections) == 2
            slow[1].transport.abort()
            await until(lambda: not served.site.owed)
            writer.close()

    asyncio.run(main())


async def turns() -> None:
    """Let whoever can go on do so."""
    for _ in range(100):
        await asyncio.sleep(0)


def test_whoever_waits_for_room_may_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_UNSENT_BYTES_MAX", 4 * MIB)

    async def main() -> None:
        async with serving() as served:
            first = await served.ask(b"slow")
            await until(lambda: served.site.unsent.held("/slow") > 4 * MIB)
            second, third = await served.ask(b"slow"), await served.ask(b"slow")
            await until(lambda: len(served.site.connections) == 3)
            second[1].transport.abort()
            await until(lambda: len(served.site.connections) == 2)
            first[1].transport.abort()
            assert await read(third) == LARGE, "what a connection held goes with it"
            assert served.begun == {"/slow": 2}

    asyncio.run(main())


def test_each_holds_a_share_of_what_others_leave() -> None:
    unsent, half = UnsentResponses(), limits.HTTP_UNSENT_BYTES_MAX // 2
    unsent.add("one", half - 1)
    assert unsent.has_room("one")
    unsent.add("one", 1)
    assert not unsent.has_room("one")
    unsent.add("two", half)
    assert not unsent.has_room("two")
    assert unsent.has_room("three"), "though nothing is left"
