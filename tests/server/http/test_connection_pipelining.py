"""Requests that are sent ahead of answers: few are parsed, and of strangers nothing is kept."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from millrace import limits
from millrace.server.http.parser import Request, RequestParser
from millrace.server.http.response import Response
from tests.server.http.test_connection import serving
from tests.server.rest.harness import served, until
from tests.support.stall import StallMonitor

SMALL = b"GET / HTTP/1.1\r\nHost:a\r\n\r\n"
CHUNKED = b"PUT / HTTP/1.1\r\nHost:a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
LENGTH = b"PUT / HTTP/1.1\r\nHost:a\r\nContent-Length:3\r\n\r\nabc"
READ_BYTES = 256 * 1024
"""What an event loop reads at once."""
CONNECTIONS = 200


def admit(request: Request, length: int | None) -> Response | None:
    return Response(401) if "cookie" in request.headers else None


@pytest.mark.parametrize("sent", [SMALL, CHUNKED, LENGTH], ids=["small", "chunked", "length"])
def test_sec_07_parsing_stops_behind_as_many_requests_as_may_wait(sent: bytes) -> None:
    parser = RequestParser(admit)
    data = sent * (READ_BYTES // len(sent))
    counts = [len(parser.feed(data))]
    while parser.rest:
        counts.append(len(parser.feed(b"")))
    beyond = limits.HTTP_STEP_BYTES // len(SMALL)
    assert max(counts) <= limits.HTTP_AHEAD_MAX + beyond
    assert sum(counts) == READ_BYTES // len(sent), "none is lost"
    assert parser.is_between


def test_sec_07_parsing_stops_behind_a_refused_request() -> None:
    parser = RequestParser(admit)
    refused = SMALL.replace(b"Host", b"Cookie:a\r\nHost")
    data = SMALL + refused + SMALL * 100
    assert [request.refusal is None for request in parser.feed(data)] == [True, False]
    assert len(parser.feed(b"")) == limits.HTTP_AHEAD_MAX


def test_sec_07_a_body_that_waits_behind_others_is_read_on() -> None:
    """Of a large body with requests before and behind it, in one read."""
    body = bytes(limits.HTTP_LARGE_BYTES_MIN)
    large = b"PUT /large HTTP/1.1\r\nHost:a\r\nContent-Length:%d\r\n\r\n%b" % (len(body), body)

    async def main() -> None:
        async with serving() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
            writer.write(SMALL * 100 + large + SMALL * 100 + b"GET /end HTTP/1.1\r\nHost:a\r\n\r\n")
            answer = await asyncio.wait_for(reader.readuntil(b"/end"), 60)
            assert answer.count(b"HTTP/1.1 200") == 202
            assert answer.count(b"/large" + body) == 1
            writer.close()

    asyncio.run(main())


def _flood(port: int, data: bytes) -> list[socket.socket]:
    """Connect so often, and send all that is taken on each connection; no answer is read."""
    made = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    for connection in made:
        connection.setblocking(False)
    for _ in range(4):
        for connection in made:
            with suppress(OSError):
                while connection.send(data):
                    continue
    return made


@pytest.mark.parametrize(
    "head", [b"", b"Authorization: Bearer nobody\r\n"], ids=["stranger", "user"]
)
def test_sec_07_many_connections_take_no_more_than_their_reads(tmp_path: Path, head: bytes) -> None:
    data = SMALL.replace(b"\r\n\r\n", b"\r\n" + head + b"\r\n") * 8_000

    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("GET", "/v1")
            async with StallMonitor() as monitor:
                made = await asyncio.to_thread(_flood, server.port, data)
                # Whoever else asks is answered meanwhile.
                assert (await server.ask("GET", "/v1")).status == 200
                assert len(server.app.site.connections) <= CONNECTIONS + 1
            monitor.assert_responsive()
            if head:
                # What was read at once, and the requests that may wait.
                assert monitor.rss_growth_bytes < CONNECTIONS * 2 * READ_BYTES
            else:
                assert monitor.rss_growth_bytes < CONNECTIONS * 64 * 1024 + 2**24
            for connection in made:
                connection.close()
            await until(lambda: not server.app.site.connections)

    asyncio.run(main())


def test_sec_07_a_stranger_is_answered_and_cut_off(tmp_path: Path) -> None:
    """They are told why, once, and the answer arrives."""

    async def main() -> None:
        async with served(tmp_path) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(SMALL.replace(b" /", b" /v1/spaces") * 1_000)
            answer = await asyncio.wait_for(reader.read(), 60)
            assert answer.count(b"HTTP/1.1 401") == 1
            assert b"connection: close" in answer
            writer.close()

    asyncio.run(main())
