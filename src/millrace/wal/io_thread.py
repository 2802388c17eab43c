"""An I/O thread: a worker that runs blocking calls in order, away from the event loop.

Blocking code is written as plain functions and submitted to an `IoThread`; the simulator has its
own implementation, which runs them on the loop's thread at a later virtual time.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class IoThread(Protocol):
    """Runs blocking calls in the order of submission, one at a time."""

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` after all earlier submissions; the future gives its result or error.

        A cancelled future does not stop work that has begun.
        """
        ...

    def close(self) -> None:
        """Run all submitted work, then end. Nothing may be submitted afterwards."""
        ...


class RealIoThread:
    """An I/O thread of the operating system; created and used on one event loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = work()
            except BaseException as error:
                self._tell(_fail, future, error)
            else:
                self._tell(_finish, future, result)

        self._waiting.put(run)
        return future

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _tell(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # A closed loop has no future to complete.

    def _run(self) -> None:
        while (run := self._waiting.get()) is not None:
            run()
            # Free the objects that it refers to now, not when the next work arrives.
            del run


def _finish(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
