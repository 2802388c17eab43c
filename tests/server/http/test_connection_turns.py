"""Connections that something has come for go on together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from millrace import limits
from millrace.server.http.connection import ClientConnection
from millrace.server.http.listener_context import Answer, ListenerContext
from millrace.server.http.parser import Request
from millrace.server.http.response import Response
from millrace.server.rest.routes import ROUTES as REST
from tests.server.http.test_connection import GET, admit, complain, echo
from tests.server.http.test_connection_bad_clients import Transport


class _Later:
    """What is answered by whoever has it, or never."""

    def then(self, tell: Callable[[Answer], None]) -> None:
        self.tell = tell

    def cancel(self) -> None:
        """Nothing was handed out."""


class _Site(ListenerContext):
    """Begins everything but what is at /wrong, and keeps what it has begun."""

    def __init__(self) -> None:
        super().__init__(self._admit, echo, complain, begin=self._begin)
        self.begun: list[str] = []
        self.under: list[_Later] = []

    def _admit(self, request: Request, length: int | None, peer: str) -> Response | None:
        request.kind = request.path.rpartition(".")[2]
        return admit(request, length, peer)

    def _begin(self, request: Request) -> _Later:
        if request.path == "/wrong":
            raise RuntimeError("nobody foresaw it")
        self.begun.append(request.path)
        self.under.append(_Later())
        return self.under[-1]

    def connect(self) -> tuple[ClientConnection, Transport]:
        connection, transport = ClientConnection(self), Transport()
        connection.connection_made(transport)
        return connection, transport


def test_all_have_read_before_the_first_goes_on() -> None:
    async def main() -> None:
        site = _Site()
        for name in (b"1.a", b"2.a"):
            site.connect()[0].data_received(GET % name)
            assert site.begun == []
        await asyncio.sleep(0)
        assert site.begun == ["/1.a", "/2.a"]

    asyncio.run(main())


def test_many_do_not_wait_for_more() -> None:
    """Whoever decides works on them while others are read."""

    async def main() -> None:
        site = _Site()
        for number in range(limits.HTTP_TURNS_MAX + 1):
            assert site.begun == []
            site.connect()[0].data_received(GET % b"%d" % number)
            if len(site.begun) == limits.HTTP_TURNS_MAX:
                break
        else:
            pytest.fail("all of them wait")
        site.connect()[0].data_received(GET % b"last")
        assert "/last" not in site.begun
        await asyncio.sleep(0)
        assert len(site.begun) == limits.HTTP_TURNS_MAX + 1
        assert site.begun[-1] == "/last"

    asyncio.run(main())


def test_those_of_a_kind_go_on_in_a_row_publishes_before_leases() -> None:
    async def main() -> None:
        site = _Site()
        for name in (b"1.lease", b"2.publish", b"3.lease", b"4.publish"):
            site.connect()[0].data_received(GET % name)
        await asyncio.sleep(0)
        assert site.begun == ["/2.publish", "/4.publish", "/1.lease", "/3.lease"]

    asyncio.run(main())


def test_what_came_from_one_who_has_gone_is_not_begun() -> None:
    async def main() -> None:
        site = _Site()
        connection, _ = site.connect()
        connection.data_received(GET % b"a")
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert site.begun == []

    asyncio.run(main())


def test_nothing_is_begun_after_the_last_answer() -> None:
    """Whoever sent it is told that it was not handled: the connection ends before."""

    async def main() -> None:
        site = _Site()
        connection, transport = site.connect()
        connection.data_received(GET % b"a")
        await asyncio.sleep(0)
        site.stopping = True
        connection.data_received(GET % b"b")
        site.under[0].tell(Response(200, b"done"))
        await asyncio.sleep(0)
        assert site.begun == ["/a"]
        assert transport.is_closing()

    asyncio.run(main())


def test_an_error_that_nobody_foresaw_ends_one_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        site = _Site()
        (wrong, cut), (right, whole) = site.connect(), site.connect()
        wrong.data_received(GET % b"wrong")
        right.data_received(GET % b"a")
        await asyncio.sleep(0)
        assert site.begun == ["/a"]
        assert (cut.is_closing(), whole.is_closing()) == (True, False)

    asyncio.run(main())
    assert "nobody foresaw it" in caplog.text


def test_routes_are_named_so_that_publishes_come_before_leases() -> None:
    """A turn goes by names in reverse: a renamed route must not put leases first."""
    named = {route.path.rpartition("/")[2]: route.name for route in REST.all if route.quick}
    assert set(named) == {"messages", "leases", "settle"}
    assert named["messages"] > named["leases"]
