"""Graceful stop on the signals SIGINT and SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from millrace.errors import Invalid


class StopCallback(Protocol):
    """Requests a stop; may be called at any moment, even from a signal handler."""

    def __call__(self, *, at_once: bool = False) -> None: ...


@contextmanager
def stopping_on_signals(stop: StopCallback) -> Iterator[None]:
    """Call `stop` on SIGINT and SIGTERM, the second time with `at_once`; restore the handlers
    after.

    Raises:
        Invalid: this is not the main thread; only that can receive signals.
    """
    at_once = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal at_once
        stop(at_once=at_once)
        at_once = True

    try:
        previous = {
            signum: signal.signal(signum, on_signal) for signum in (signal.SIGINT, signal.SIGTERM)
        }
    except ValueError as error:
        raise Invalid("signals can be taken by the main thread only", field="signals") from error
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
