"""The way from blocking code to an engine that runs on an event loop in a thread of its own.

Everything of the engine happens on that thread; whoever calls waits for the answer.
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

from millrace import limits, loop
from millrace.client.unheard import take_back
from millrace.errors import Closed, Invalid

T = TypeVar("T")
R = TypeVar("R")


class Opened(Protocol):
    """What was opened, and must be closed."""

    async def close(self) -> None:
        """Let it go."""
        ...


M = TypeVar("M", bound=Opened)

Make = Callable[[], Coroutine[Any, Any, T]]
"""Begins a call, on the loop's thread; its arguments were looked at before."""


class _Call(Generic[T]):
    """A call on its way. All but `wait` happens on the loop's thread, in the order of asking.

    The coroutine, too, is made there: one that an interrupted thread holds would never be awaited.
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
        """The answer, once it is there."""
        while not self._ended.acquire(timeout=limits.SIGNALS_SECONDS):
            # A signal that came just before the wait began did not end it: Python looks now.
            continue
        if self._results:
            return self._results[0]
        # What is raised holds the frames that it comes through, and must not be held by them.
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        raise Closed("the engine was closed before the call was answered; open it again")

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, on the loop."""
        self._task = loop.create_task(self._call())
        self._task.add_done_callback(self._end)

    async def _call(self) -> T:
        return await self._make()

    def _end(self, task: asyncio.Task[T]) -> None:
        # It goes where it was made: what a thread drops runs code there, which must not be where a
        # signal is raised and lost.
        self._task = None
        if not task.cancelled():
            self._error = task.exception()
            if self._error is None:
                self._results.append(task.result())
        if self._is_abandoned:
            self._take_back()
        self._ended.release()

    def abandon(self) -> None:
        """Nobody waits any more, and nobody has the answer."""
        self._is_abandoned = True
        if self._task is None:
            self._take_back()
        else:
            self._task.cancel()

    def _take_back(self) -> None:
        for result in self._results:
            self._undo(result)


class Portal:
    """An event loop in a thread of its own, and calls into it from any other thread."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self._at_exit: Callable[[], None] | None = None
        self._runner = asyncio.Runner(loop_factory=new_loop or loop.new_loop)
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

        # At its end the runner cancels what still runs, so that nobody waits for ever.
        with self._runner as runner:
            runner.run(wait_for_end())

    # --- Calls --------------------------------------------------------------------------------

    def run(self, make: Make[T]) -> T:
        """The result of the call that `make` begins, once it has one. Interrupted, it is cancelled.

        Raises:
            Closed: the engine was closed, before or meanwhile.
            Invalid: this is the engine's own thread, which must not wait for itself.
        """
        return self._run(make, _same, _nothing)

    def receive(self, make: Make[T], wrap: Callable[[T], R]) -> R:
        """As `run`, wrapped. What the call hands out is either returned, or was given back.

        An interruption may come at any step, also when the answer is there already.
        """
        return self._run(make, wrap, take_back)

    def _run(self, make: Make[T], wrap: Callable[[T], R], undo: Callable[[T], None]) -> R:
        call = _Call(make, undo)
        is_heard = False
        try:
            self._begin(call)
            found = wrap(call.wait())
            is_heard = True
            # Python looks for signals between some steps, but not between those that are left.
            return found
        finally:
            if not is_heard:
                self._abandon(call)

    def _begin(self, call: _Call[T]) -> None:
        if os.getpid() != self._process:
            # The thread did not come along, and two processes must not write one log.
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
        # A loop that was closed has ended its calls.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call.abandon)

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """The items of an asynchronous iterator, each fetched when it is asked for."""

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
        """Open the engine; where that fails or is interrupted, it is closed and the thread ends."""
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
            for each in opened:
                await each.close()

        try:
            return self.run(wait)
        except BaseException:
            try:
                self.run(close)
            finally:
                self._end()
            raise

    def close_at_exit(self, close: Callable[[], None]) -> None:
        """Have `close` called when the program ends, unless the engine was closed before."""
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
    """The result of a call that needs no engine, on a thread of its own that ends with it."""
    portal = Portal()
    try:
        return portal.run(make)
    finally:
        portal.end(_rest)


async def _rest() -> None:
    """There is nothing to close."""


def _same(found: T) -> T:
    return found


def _nothing(_: object) -> None:
    """Nothing was handed out."""
