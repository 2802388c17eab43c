"""The way from blocking code to an engine that runs on an event loop in a thread of its own.

Everything of the engine happens on that thread; whoever calls waits for the answer.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from millrace.errors import Closed, Invalid

T = TypeVar("T")


class Portal:
    """An event loop in a thread of its own, and calls into it from any other thread."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self._at_exit: Callable[[], None] | None = None
        self._runner = asyncio.Runner(loop_factory=new_loop or _new_loop)
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

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of the call, once it has one. Interrupted, the call is cancelled.

        Raises:
            Closed: the engine was closed, before or meanwhile.
            Invalid: this is the engine's own thread, which must not wait for itself.
        """
        future = self._submit(call)
        try:
            return future.result()
        except CancelledError as error:
            raise Closed("the engine was closed before the call was answered") from error
        finally:
            future.cancel()

    def _submit(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        try:
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
                return asyncio.run_coroutine_threadsafe(call, self._loop)
        except (Closed, Invalid):
            call.close()
            raise

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """The items of an asynchronous iterator, each fetched when it is asked for."""

        async def step() -> T:
            return await anext(source)

        while True:
            try:
                item = self.run(step())
            except StopAsyncIteration:
                return
            yield item

    # --- Beginning and end --------------------------------------------------------------------

    def begin(self, opening: Awaitable[T]) -> T:
        """Open the engine; where that fails, the thread ends."""

        async def wait() -> T:
            return await opening

        try:
            return self.run(wait())
        except BaseException:
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
            self.run(close())
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


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, which costs less per call."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
