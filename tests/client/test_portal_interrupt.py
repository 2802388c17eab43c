"""Blocking calls interrupted by a signal release whatever they were granted."""

from __future__ import annotations

import gc
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count as count_up
from pathlib import Path
from types import FrameType
from typing import TypeVar

import pytest

import millrace.sync
from millrace.client.queue import engine_and_shard
from millrace.sync import Millrace, Queue, Snapshot
from tests.client.harness import SMALL
from tests.support.timeouts import scaled

MESSAGES = 200
TRIES = 150


T = TypeVar("T")


class Interrupted(BaseException):
    """Raised by the signal handler, like KeyboardInterrupt."""


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with millrace.sync.open(tmp_path, settings=SMALL) as m:
        queue = m.queue("orders")
        queue.publish_many([b"%d" % number for number in range(MESSAGES)])
        yield queue


@contextmanager
def interrupts() -> Iterator[Callable[[float], None]]:
    """Set a timer whose signal interrupts the main thread."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def interrupted(call: Callable[[], list[T]]) -> tuple[int, list[T]]:
    """Repeat the call; return how often it was interrupted, and the other results.

    The call must do nothing with its result, since that could be interrupted as well.
    """
    chance = random.Random(7)
    count, got = 0, list[T]()
    with interrupts() as interrupt_after:
        for _ in range(TRIES):
            found: list[T] = []
            try:
                try:
                    interrupt_after(chance.uniform(10e-6, 1500e-6))
                    found = call()
                finally:
                    interrupt_after(0)
            except Interrupted:
                count += 1
            got += found
    return count, got


def interrupted_at(step: int, call: Callable[[], object]) -> bool:
    """Make the call and interrupt it when it enters its n-th function; False if it has fewer.

    Python checks for signals there.
    """
    left = step

    def trace(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        left -= "millrace" in frame.f_code.co_filename
        if left == 0:
            raise Interrupted

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.slow
def test_an_interrupt_leaves_no_coroutine_behind(queue: Queue) -> None:
    """It would warn on the terminal: "was never awaited"."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in count_up(1):
            if not interrupted_at(step, lambda: queue.publish(b"x")):
                break
            gc.collect()
        queue.peek(1)
    assert step > 5
    assert [str(one.message) for one in told] == []


def rest_of(queue: Queue) -> list[int]:
    """Return what can still be leased; a cancelled call may take a moment to release its own."""
    rest: list[int] = []
    while found := queue.lease(MESSAGES, seconds=3600, wait=1):
        rest += [lease.seq for lease in found]
    return rest


def test_a_lease_call_leaves_nothing_leased_to_nobody(queue: Queue) -> None:
    count, got = interrupted(lambda: queue.lease(1, seconds=3600))
    assert count > 0
    assert sorted([one.seq for one in got] + rest_of(queue)) == list(range(1, MESSAGES + 1))


def test_work_leaves_nothing_leased_to_nobody(queue: Queue) -> None:
    work = queue.work(batch=3, seconds=3600)
    count, got = interrupted(lambda: [work.__next__()])
    assert count > 0
    work.close()
    assert sorted([one.seq for one in got] + rest_of(queue)) == list(range(1, MESSAGES + 1))


def test_a_cursor_skips_no_snapshot(queue: Queue) -> None:
    cursor = queue.cursor("follower")
    got: list[Snapshot | None] = []
    for _ in range(5):
        queue.publish(b"more")
        got += interrupted(lambda: [cursor.next()])[1]
    # One that nobody heard is given again as it was, however much came since.
    while (rest := cursor.next()) is not None:
        got.append(rest)
    boundary = 0
    for snapshot in got:
        if snapshot is not None:
            assert snapshot.after == boundary
            boundary = snapshot.boundary
    assert boundary == queue.stats()["published"]


def test_no_snapshot_stays_pinned_for_nobody(queue: Queue) -> None:
    count, got = interrupted(lambda: [queue.snapshot(seconds=3600).__enter__()])
    assert count > 0
    for snapshot in got:
        assert snapshot.unpin()
    engine, shard = engine_and_shard(queue._twin)
    until = time.monotonic() + scaled(60)
    while any(one.pin for one in queue._portal.run(partial(engine.meta, shard)).intervals):
        assert time.monotonic() < until
        queue.publish(b"a cancelled call may take a moment")


def test_an_interrupted_open_leaves_the_folder_free(tmp_path: Path) -> None:
    chance = random.Random(7)
    millrace.sync.open(tmp_path, settings=SMALL).close()
    count = 0
    with interrupts() as interrupt_after:
        for _ in range(30):
            opened: Millrace | None = None
            try:
                try:
                    interrupt_after(chance.uniform(1e-3, 30e-3))
                    opened = millrace.sync.open(tmp_path, settings=SMALL)
                finally:
                    interrupt_after(0)
            except Interrupted:
                count += 1
            if opened is not None:
                opened.close()
    assert count > 0
    millrace.sync.open(tmp_path, settings=SMALL).close()
