"""The bridge from blocking code to an event loop in another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from millrace import errors
from millrace.client.portal import Opened, Portal
from tests.support.timeouts import scaled


async def nothing() -> None:
    await asyncio.sleep(0)


async def thread() -> int:
    return threading.get_ident()


def test_calls_run_on_one_other_thread() -> None:
    portal = Portal()
    first = portal.run(thread)
    assert first != threading.get_ident()
    assert portal.run(thread) == first
    portal.end(nothing)
    portal.end(nothing)
    with pytest.raises(errors.Closed):
        portal.run(nothing)


def test_its_own_thread_must_not_wait_for_itself() -> None:
    portal = Portal()

    async def inside() -> None:
        with pytest.raises(errors.Invalid, match="own thread"):
            portal.run(nothing)

    portal.run(inside)
    portal.end(nothing)


def test_what_still_waits_at_the_end_is_told() -> None:
    portal = Portal()
    waiting = threading.Event()
    found: list[BaseException] = []

    async def wait() -> None:
        waiting.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            portal.run(wait)
        except errors.Closed as error:
            found.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert waiting.wait(scaled(30))
    portal.end(nothing)
    caller.join(scaled(30))
    assert len(found) == 1


def test_items_come_as_they_are_asked_for() -> None:
    portal = Portal()
    given: list[int] = []

    async def count() -> AsyncIterator[int]:
        for number in range(5):
            given.append(number)
            yield number

    numbers = portal.iterate(count())
    assert next(numbers) == 0
    assert given == [0]
    assert list(numbers) == [1, 2, 3, 4]
    portal.end(nothing)


def test_a_failed_beginning_ends_the_thread() -> None:
    before = threading.active_count()
    portal = Portal()

    async def fail() -> Opened:
        raise errors.Corrupt("damaged")

    with pytest.raises(errors.Corrupt):
        portal.begin(fail())
    assert threading.active_count() == before
