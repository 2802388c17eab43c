"""Stopping on the signals by which people and service managers end a program."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from millrace.errors import Invalid


class Stop(Protocol):
    """Asks for the end; it may be called at any moment, in the middle of anything."""

    def __call__(self, *, at_once: bool = False) -> None: ...


@contextmanager
def stopping_on_signals(stop: Stop) -> Iterator[None]:
    """SIGINT and SIGTERM stop; the second one at once. What was set before is set again after.

    Raises:
        Invalid: this is not the main thread, which alone can take signals.
    """
    at_once = False

    def take(number: int, frame: FrameType | None) -> None:
        nonlocal at_once
        stop(at_once=at_once)
        at_once = True

    try:
        before = {each: signal.signal(each, take) for each in (signal.SIGINT, signal.SIGTERM)}
    except ValueError as error:
        raise Invalid("signals can be taken by the main thread only", field="signals") from error
    try:
        yield
    finally:
        for each, old in before.items():
            signal.signal(each, signal.SIG_DFL if old is None else old)
