"""Bodies that stand still, or of which one has too many: nobody else is refused for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace import limits
from millrace.server.http.connection import ClientConnection
from millrace.server.http.listener_context import ListenerContext
from millrace.server.http.memory_limits import (
    BodyLimits,
    BodyRate,
    ConnectionBodies,
    address_holder,
)
from millrace.server.http.parser import Request
from millrace.server.http.response import Response
from tests.server.http.test_connection import GET, complain, echo, serving
from tests.server.http.test_connection_bad_clients import POST, Transport, is_cut
from tests.server.rest.harness import served, until

RATE = limits.HTTP_BODY_BYTES_PER_SECOND_MIN
SECONDS = limits.HTTP_HEAD_SECONDS_MAX


def look_for(site: ListenerContext, begin: float, seconds: int) -> None:
    """As the listener does once a second, for so long."""
    for second in range(seconds + 1):
        site.look(begin + second)


@pytest.mark.parametrize("length", [60_000, 1_000_000])
def test_a_body_that_stands_still_is_cut_off_however_much_of_it_came(length: int) -> None:
    async def main() -> None:
        async with serving() as (site, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(POST % length + bytes(length - 1))
            await until(lambda: site.bodies.size == length - 1)
            now = asyncio.get_running_loop().time()
            look_for(site, now, SECONDS - 1)
            assert site.bodies.size
            site.look(now + SECONDS + 1)
            await is_cut(reader)
            await until(lambda: not site.connections)
            assert site.bodies.size == 0
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("behind", "is_late"),
    [
        (POST % 60_000 + b"x", True),
        (POST.replace(b"Host", b"Expect: 100-continue\r\nHost") % 60_000 + b"x", True),
        (POST.replace(b"Host", b"Expect: 100-continue\r\nHost") % 60_000, False),
        (GET % b"second", False),
    ],
)
def test_a_body_behind_a_request_under_way_is_not_waited_for(
    behind: bytes, *, is_late: bool
) -> None:
    async def main() -> None:
        async def wait(request: Request) -> Response:
            await asyncio.Event().wait()
            raise AssertionError

        site = ListenerContext(lambda request, length, peer: None, wait, complain)
        connection, transport = ClientConnection(site), Transport()
        connection.connection_made(transport)
        connection.data_received(GET % b"first" + behind)
        now = asyncio.get_running_loop().time()
        look_for(site, now, SECONDS - 1)
        assert not transport.is_closing()
        site.look(now + SECONDS + 1)
        assert transport.is_closing() is is_late
        connection.connection_lost(None)
        assert site.bodies.size == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("first", "rate", "is_late"),
    [(0, RATE, False), (0, RATE // 2, True), (2**26, RATE, False), (2**26, RATE // 2, True)],
)
def test_a_body_comes_at_its_rate_to_the_end(first: int, rate: int, *, is_late: bool) -> None:
    pace = BodyRate(0.0)
    late = [
        pace.is_too_slow(float(second), first + rate * second, is_awaited=True)
        for second in range(1, 3 * SECONDS)
    ]
    assert any(late) is is_late
    assert not any(late[: SECONDS - 1])


def test_whoever_is_not_read_is_not_waited_for() -> None:
    pace = BodyRate(0.0)
    assert not pace.is_too_slow(10.0 * SECONDS, 1, is_awaited=False)
    assert not pace.is_too_slow(11.0 * SECONDS - 1, 1, is_awaited=True)
    assert pace.is_too_slow(11.0 * SECONDS + 1, 1, is_awaited=True)


def test_one_who_asks_holds_no_more_than_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_BODIES_BYTES_MAX", 11_000)

    def admit(request: Request, length: int | None, _: str) -> Response | None:
        request.owner = request.path
        return None

    async def main() -> None:
        site = ListenerContext(admit, echo, complain, body_bytes_max=4_000)

        def send(name: bytes, size: int) -> tuple[ClientConnection, Transport]:
            connection, transport = ClientConnection(site), Transport()
            connection.connection_made(transport)
            connection.data_received(POST.replace(b"/x", name) % 4_000 + bytes(size))
            return connection, transport

        wanted = [(b"/one", 3_000), (b"/one", 3_000), (b"/two", 2_500), (b"/two", 1)]
        sent = [send(*one) for one in wanted]
        assert [transport.unsent > 0 for _, transport in sent] == [False, True, False, True]
        for connection, _ in sent:
            connection.connection_lost(None)
        assert site.bodies.size == 0

    asyncio.run(main())


def test_a_body_of_the_greatest_size_has_room() -> None:
    size = limits.HTTP_BODIES_BYTES_MAX
    assert BodyLimits(size).excess("one", size) is None
    assert BodyLimits(1024).excess("one", size) is not None


def test_those_who_work_together_leave_room_for_others() -> None:
    bodies = BodyLimits(limits.HTTP_BODY_BYTES_MAX)
    step = 1024 * 1024
    for name in ("one", "two"):
        while bodies.excess(name, step) is None:
            bodies.add(name, step)
    assert bodies.excess("three", 32 * step) is None
    for number in range(10):
        while bodies.excess(f"more {number}", step) is None:
            bodies.add(f"more {number}", step)
    assert bodies.size < limits.HTTP_BODIES_BYTES_MAX
    assert bodies.excess("the last", step // 2) is None


def test_what_one_sends_counts_as_theirs(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            bodies, share = server.app.site.bodies, limits.HTTP_BODIES_BYTES_MAX // 2
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            head = POST.replace(b"/x", b"/v1/spaces/default/queues/orders/messages")
            head = head.replace(b"Host", b"Authorization: Bearer producer\r\nHost")
            writer.write(head % 100 + bytes(99))
            await until(lambda: bodies.size == 99)
            assert bodies.excess("producer", share - 99) is None
            assert bodies.excess("producer", share - 98) is not None
            assert bodies.excess("root", share - 50) is None
            assert bodies.excess("root", share) is not None
            writer.close()
            await until(lambda: bodies.size == 0)

    asyncio.run(main())


def test_the_others_are_served_while_one_holds_a_share(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            path = "/v1/spaces/default/queues/orders/messages"
            share = limits.HTTP_BODIES_BYTES_MAX // 2
            bodies = server.app.site.bodies
            bodies.add("producer", share)
            refused = await server.ask("POST", path, {"body": "x"}, role="producer")
            assert (refused.status, refused.json["limit"]) == (503, share)
            assert (await server.ask("POST", path, {"body": "x"})).status == 201
            bodies.add("producer", -share)
            taken = await server.ask("POST", path, {"body": "x"}, role="producer")
            assert taken.status == 201
            assert bodies.size == 0

    asyncio.run(main())


def test_sec_11_addresses_hold_what_is_not_proved_in_a_share_of_its_own() -> None:
    bodies, step = BodyLimits(limits.HTTP_BODY_BYTES_MAX), 1024 * 1024
    for peer in ("192.0.2.1", "192.0.2.2"):
        while bodies.excess(address_holder(peer), step) is None:
            bodies.shares_of(address_holder(peer)).add(address_holder(peer), step)
    assert bodies.size == 0
    assert 0 < bodies.unproved.size <= limits.HTTP_UNPROVED_BYTES_MAX
    assert bodies.excess(address_holder("192.0.2.3"), 7 * step) is None
    assert bodies.excess("ada", limits.HTTP_BODY_BYTES_MAX) is None


def test_sec_11_addresses_of_one_ipv6_network_share() -> None:
    bodies, step = BodyLimits(limits.HTTP_BODY_BYTES_MAX), 1024 * 1024
    first, second = address_holder("2001:db8::1"), address_holder("2001:db8::ffff:2")
    while bodies.excess(first, step) is None:
        bodies.shares_of(first).add(first, step)
    assert bodies.excess(second, step) is not None
    assert bodies.excess(address_holder("2001:db8:0:1::1"), step) is None


def test_sec_11_a_body_counts_for_its_owner_once_they_are_proved() -> None:
    bodies = BodyLimits(limits.HTTP_BODY_BYTES_MAX)
    kept, holder, request = ConnectionBodies(bodies), address_holder("192.0.2.1"), Request()
    request.owner, request.holder, request.body = "ada", holder, bytes(1_000)
    assert kept.take([], (holder, 400)) is None
    assert (bodies.held("ada"), bodies.unproved.held(holder)) == (0, 400)
    assert kept.take([request], ("", 0)) is None
    assert (bodies.held("ada"), bodies.unproved.held(holder)) == (0, 1_000)
    assert request.on_proved is not None
    request.on_proved()
    assert (bodies.held("ada"), bodies.unproved.held(holder)) == (1_000, 0)
    kept.end()
    request.on_proved()
    assert (bodies.size, bodies.unproved.size) == (0, 0)
