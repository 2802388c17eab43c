"""Reading rows outside of the event loop, on any thread.

Arrow readers are iterated by the event loop's thread, a worker thread of the program, or a thread
of Arrow. The thread of the engine's event loop, which owns the index, looks up where rows lie, many
at a time; the iterating thread reads and verifies them. Iterating on the loop's own thread blocks
it: coroutines read through an I/O thread instead.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import TimeoutError as TimedOut
from itertools import islice

import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.core.model import Row
from millrace.errors import Closed, MillraceError, Retry
from millrace.store.unreadable import Unreadable


async def read_in_steps(
    read: Callable[[BitMap64, int], Awaitable[list[Row]]], seqs: BitMap64, size: int
) -> list[Row]:
    """Read many messages in steps, yielding to the event loop between them.

    `read` skips messages that have ended, and stops before the first one that exceeds the size it
    is given, but always reads one. This function behaves the same as a whole.
    """
    rows: list[Row] = []
    left = iter(seqs)
    while part := BitMap64(islice(left, limits.ROWS_READ_STEP)):
        if rows:
            await asyncio.sleep(0)
        while part and (rows_read := await read(part, size)):
            for row in rows_read:
                size -= row.size()
                if size < 0 and rows:
                    return rows
                rows.append(row)
            # After the last row there are messages that have ended, or one that did not fit; that
            # one is read next, as the first of its step, and found to be too large.
            part.remove_range(0, rows_read[-1].seq + 1)
    return rows


Part = Iterator[pa.RecordBatch]
"""Rows whose locations are known."""


class BatchIterator:
    """An iterator of batches for any thread, one at a time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: int,
        check: Callable[[], None],
        find: Callable[[], Part | None],
        refuse: Callable[[Unreadable], MillraceError],
    ) -> None:
        """`find` is called on the event loop's thread, `check` before each step by the iterating
        one.

        `refuse` makes the error for unreadable rows, on any thread.
        """
        self._loop = loop
        self._thread = thread
        self._check = check
        self._find = find
        self._refuse = refuse
        self._part: Part = iter(())

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> pa.RecordBatch:
        while True:
            self._check()
            try:
                batch = next(self._part, None)
            except Unreadable as error:
                raise self._refuse(error) from None
            if batch is not None:
                return batch
            part = self._find() if threading.get_ident() == self._thread else self._ask()
            if part is None:
                raise StopIteration
            self._part = part

    def _ask(self) -> Part | None:
        step = self._step()
        try:
            answer = asyncio.run_coroutine_threadsafe(step, self._loop)
        except RuntimeError as error:
            step.close()
            raise Closed("the engine was closed while its rows were read; open it again") from error
        try:
            return answer.result(limits.READ_SECONDS_MAX)
        except TimedOut as error:
            # The timeout breaks a deadlock: the loop's thread may itself wait for these rows.
            answer.cancel()
            raise Retry(
                f"the engine's event loop did not answer for {limits.READ_SECONDS_MAX} s: it is "
                "blocked, perhaps by whoever reads these rows; read them in asyncio.to_thread"
            ) from error

    async def _step(self) -> Part | None:
        return self._find()
