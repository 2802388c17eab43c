"""The look over connections once a second, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millrace import limits
from millrace.server.http.connection import ClientConnection
from millrace.server.http.listener import look_over
from millrace.server.http.listener_context import ListenerContext
from tests.server.http.test_connection import admit, complain, echo
from tests.server.http.test_connection_bad_clients import Transport

HALF_A_HEAD = b"GET /x HTTP/1.1\r\nHost: h"


class Clock:
    """Time that passes while somebody sleeps: as long as they asked for, and a stall on top."""

    def __init__(self, stall: Callable[[int], float], rounds: int) -> None:
        self.seconds = asyncio.get_running_loop().time()
        self._begin = self.seconds
        self._stall = stall
        self._rounds = rounds
        self._round = 0

    @property
    def passed(self) -> float:
        return self.seconds - self._begin

    def read(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        if self._round == self._rounds:
            raise asyncio.CancelledError
        self.seconds += seconds + self._stall(self._round)
        self._round += 1


async def seconds_until_cut(stall: Callable[[int], float], rounds: int = 200) -> float | None:
    """When a client is cut off that sends half a head and no more; None: it never is."""
    site = ListenerContext(admit, echo, complain)
    connection, transport = ClientConnection(site), Transport()
    connection.connection_made(transport)
    connection.data_received(HALF_A_HEAD)
    clock, cut = Clock(stall, rounds), list[float]()

    async def sleep(seconds: float) -> None:
        if transport.is_closing() and not cut:
            cut.append(clock.passed)
        await clock.sleep(seconds)

    task = asyncio.create_task(look_over(site, clock.read, sleep))
    await asyncio.wait([task])
    connection.connection_lost(None)
    assert task.cancelled()
    return cut[0] if cut else None


def test_a_slow_client_is_cut_off_on_time() -> None:
    found = asyncio.run(seconds_until_cut(lambda _: 0.0))
    assert found is not None
    assert found <= limits.HTTP_HEAD_SECONDS_MAX + 1


def test_sec_08_a_stall_does_not_count_against_clients() -> None:
    stall = float(limits.HTTP_HEAD_SECONDS_MAX * 2)
    found = asyncio.run(seconds_until_cut(lambda number: stall if number == 1 else 0.0))
    assert found is not None
    assert stall + limits.HTTP_HEAD_SECONDS_MAX - 1 <= found
    assert found <= stall + limits.HTTP_HEAD_SECONDS_MAX + 2


def test_sec_08_a_slow_client_is_cut_off_under_an_overload_that_lasts() -> None:
    for stall in (limits.HTTP_STALL_SECONDS * 1.2, limits.HTTP_STALL_SECONDS * 20):
        found = asyncio.run(seconds_until_cut(lambda _, late=stall: late))  # type: ignore[misc]
        assert found is not None, stall
        most = limits.HTTP_FORGIVEN_SECONDS_MAX + limits.HTTP_HEAD_SECONDS_MAX
        assert found <= most + 2 * (1 + stall)


def test_sec_08_every_round_after_a_late_one_looks() -> None:
    """So that who has lost the right to ask is noticed then, too."""

    class Version:
        asked = 0

        def version(self) -> int:
            self.asked += 1
            return 0

        def judge(self, request: object) -> None:
            raise AssertionError

    async def main() -> int:
        standing = Version()
        site = ListenerContext(admit, echo, complain, standing=standing)
        clock = Clock(lambda number: 1.0, 10)
        task = asyncio.create_task(look_over(site, clock.read, clock.sleep))
        await asyncio.wait([task])
        return standing.asked

    assert asyncio.run(main()) == 9
