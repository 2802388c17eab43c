"""Reading rows on the engine's own thread, whichever thread asks for them.

A store belongs to the thread of its engine's event loop. Arrow readers are pulled by whoever has
them: the loop's thread, a worker thread of a program, or one of Arrow's own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import TimeoutError as TimedOut
from contextlib import suppress

import pyarrow as pa

from millrace import limits
from millrace.errors import Closed, Retry


class Batches:
    """An iterator whose every step is made on the event loop's thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, thread: int, source: Generator[pa.RecordBatch]
    ) -> None:
        self._loop = loop
        self._thread = thread
        self._source = source

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> pa.RecordBatch:
        if threading.get_ident() == self._thread:
            return next(self._source)
        batch = self._ask()
        if batch is None:
            raise StopIteration
        return batch

    def _ask(self) -> pa.RecordBatch | None:
        step = self._step()
        try:
            answer = asyncio.run_coroutine_threadsafe(step, self._loop)
        except RuntimeError as error:
            step.close()
            raise Closed("the engine was closed while its rows were being read") from error
        try:
            return answer.result(limits.READ_SECONDS_MAX)
        except TimedOut as error:
            # The loop's thread may itself wait for these rows: without an end, for ever.
            answer.cancel()
            raise Retry(
                f"the engine's event loop did not answer for {limits.READ_SECONDS_MAX} s: it is "
                "blocked, perhaps by whoever reads these rows; read them in asyncio.to_thread"
            ) from error

    async def _step(self) -> pa.RecordBatch | None:
        return next(self._source, None)

    def __del__(self) -> None:
        # What a half-read scan holds is given back on the thread that it was taken on.
        if threading.get_ident() == self._thread:
            self._source.close()
            return
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._source.close)
