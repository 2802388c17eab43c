"""Bridge from blocking code to an engine on an event loop in its own thread.

Everything of the engine runs on that thread; callers on other threads block until the answer.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from millrace import event_loop, limits
from millrace.client.cursor import Snapshot, return_unread
from millrace.client.lease import Lease
from millrace.client.work import give_back
from millrace.errors import Closed, Invalid

T = TypeVar("T")
R = TypeVar("R")


class Opened(Protocol):
    """Something that was opened and must be closed."""

    async def close(self) -> None:
        """Close it."""
        ...


M = TypeVar("M", bound=Opened)

Make = Callable[[], Coroutine[Any, Any, T]]
"""Starts a call on the loop's thread; its arguments were validated before."""


class _Call(Generic[T]):
    """A pending call. All methods but `wait` run on the loop's thread, in the order of the calls.

    The coroutine is created there, too: if an interrupted thread held it, it would never be
    awaited.
    """

    def __init__(self, make: Make[T], undo: Callable[[T], None]) -> None:
        self._make = make
        self.is_on_its_way = False
        self._undo = undo
        self._task: asyncio.Task[T] | None = None
        self._is_abandoned = False
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def wait(self) -> T:
        """Block until the answer arrives, and return it."""
        while not self._ended.acquire(timeout=limits.SIGNALS_SECONDS):
            # A signal just before the wait does not end it: give Python a chance to handle it.
            continue
        if self._results:
            return self._results[0]
        # Avoid a reference cycle: the raised error references the frames that reference it.
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        raise Closed("the engine was closed before the call was answered; open it again")

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the call, on the loop."""
        self._task = loop.create_task(self._call())
        self._task.add_done_callback(self._end)

    async def _call(self) -> T:
        return await self._make()

    def _end(self, task: asyncio.Task[T]) -> None:
        # Free the task on this thread: finalizers on the caller's thread could swallow the
        # exception of a signal handler.
        self._task = None
        if not task.cancelled():
            self._error = task.exception()
            if self._error is None:
                self._results.append(task.result())
        if self._is_abandoned:
            self._take_back()
        self._ended.release()

    def abandon(self) -> None:
        """Cancel the call, or undo its result: the caller was interrupted."""
        self._is_abandoned = True
        if self._task is None:
            self._take_back()
        else:
            self._task.cancel()

    def _take_back(self) -> None:
        for result in self._results:
            self._undo(result)


class Portal:
    """An event loop in its own thread, and calls into it from other threads."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self._at_exit: Callable[[], None] | None = None
        self._runner = asyncio.Runner(loop_factory=new_loop or event_loop.new_loop)
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(
            target=self._serve, args=(started,), name="millrace", daemon=True
        )
        self._thread.start()
        self._loop, self._stop = started.result()

    def _serve(self, started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
        async def wait_for_end() -> None:
            stop = asyncio.Event()
            started.set_result((asyncio.get_running_loop(), stop))
            await stop.wait()

        # At its end the runner cancels pending tasks, so that no caller blocks forever.
        with self._runner as runner:
            runner.run(wait_for_end())

    # --- Calls --------------------------------------------------------------------------------

    def run(self, make: Make[T]) -> T:
        """Run the call that `make` starts and return its result; if interrupted, cancel it.

        Raises:
            Closed: the engine was closed before or during the call.
            Invalid: this is the engine's own thread, which must not wait for itself.
        """
        return self._run(make, _same, _nothing)

    def receive(self, make: Make[T], wrap: Callable[[T], R]) -> R:
        """As `run`, wrapped; what the call was granted (leases, pins) is either returned or
        released.

        An interruption may occur at any step, even after the answer arrived.
        """
        return self._run(make, wrap, release_abandoned)

    def _run(self, make: Make[T], wrap: Callable[[T], R], undo: Callable[[T], None]) -> R:
        call = _Call(make, undo)
        is_heard = False
        try:
            self._begin(call)
            result = wrap(call.wait())
            is_heard = True
            # No signal handler runs between this assignment and the return.
            return result
        finally:
            if not is_heard:
                self._abandon(call)

    def _begin(self, call: _Call[T]) -> None:
        if os.getpid() != self._process:
            # A fork does not copy the thread, and two processes must not write one log.
            raise Closed("the engine belongs to the process that this one was forked from")
        if threading.get_ident() == self._thread.ident:
            raise Invalid(
                "blocking calls cannot be made on the engine's own thread", field="thread"
            )
        with self._lock:
            if self._closed:
                raise Closed("the engine was closed; open it again")
            call.is_on_its_way = True
            self._loop.call_soon_threadsafe(call.begin, self._loop)

    def _abandon(self, call: _Call[T]) -> None:
        if not call.is_on_its_way:
            return
        # A closed loop has ended its calls already.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call.abandon)

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over an asynchronous iterator; each item is fetched on demand."""

        async def step() -> T:
            return await anext(source)

        while True:
            try:
                item = self.run(step)
            except StopAsyncIteration:
                return
            yield item

    # --- Beginning and end --------------------------------------------------------------------

    def begin(self, opening: Awaitable[M]) -> M:
        """Open the engine; if that fails or is interrupted, close it and end the thread."""
        opened: list[M] = []
        begun, ended = asyncio.Event(), asyncio.Event()

        async def wait() -> M:
            begun.set()
            try:
                opened.append(await opening)
            finally:
                ended.set()
            return opened[0]

        async def close() -> None:
            if begun.is_set():
                await ended.wait()
            for item in opened:
                await item.close()

        try:
            return self.run(wait)
        except BaseException:
            try:
                self.run(close)
            finally:
                self._end()
            raise

    def close_at_exit(self, close: Callable[[], None]) -> None:
        """Register `close` to be called at interpreter exit, unless the engine is closed before."""
        self._at_exit = close
        atexit.register(close)

    def end(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close the engine and end the thread; harmless a second time, and in a forked process."""
        if self._closed or os.getpid() != self._process:
            return
        try:
            self.run(close)
        finally:
            self._end()

    def _end(self) -> None:
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


def once(make: Make[T]) -> T:
    """Run a call that needs no engine, in a temporary thread; return its result."""
    portal = Portal()
    try:
        return portal.run(make)
    finally:
        portal.end(_rest)


async def _rest() -> None:
    """Close nothing."""


def _same(result: T) -> T:
    return result


def _nothing(_: object) -> None:
    """Undo nothing: the call was granted nothing."""


def release_abandoned(answer: object) -> None:
    """Release the leases, or the pin, in an answer whose caller was interrupted; on the engine's
    thread."""
    if isinstance(answer, Lease):
        give_back([answer])
    elif isinstance(answer, list):
        give_back([item for item in answer if isinstance(item, Lease)])
    elif isinstance(answer, Snapshot):
        return_unread(answer)
