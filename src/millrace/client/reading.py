"""Reading rows beside the engine, whichever thread asks for them.

Arrow readers are pulled by whoever has them: the loop's thread, a worker thread of a program, or
one of Arrow's own. Where rows lie is found on the thread of the engine's event loop, to which the
index belongs, many at a time; they are read and verified by the thread that pulls. What is pulled
on the loop's own thread is read there, and holds it up: coroutines read by way of a lane instead.
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
    """Read many messages, so many at once that others have their turn between two steps.

    `read` leaves out messages that have ended, and ends before the first one that has no room in
    the size that it is given, but always reads one. This does so as a whole.
    """
    rows: list[Row] = []
    left = iter(seqs)
    while part := BitMap64(islice(left, limits.ROWS_READ_STEP)):
        if rows:
            await asyncio.sleep(0)
        while part and (found := await read(part, size)):
            for row in found:
                size -= row.size()
                if size < 0 and rows:
                    return rows
                rows.append(row)
            # Behind the last row there are messages that have ended, or one that has no room: it is
            # read if it is the first that is asked for, and found to be too large.
            part.remove_range(0, found[-1].seq + 1)
    return rows


Part = Iterator[pa.RecordBatch]
"""Rows whose places are known."""


class Batches:
    """An iterator that is pulled by one thread at a time, any one."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: int,
        check: Callable[[], None],
        find: Callable[[], Part | None],
        refuse: Callable[[Unreadable], MillraceError],
    ) -> None:
        """`find` is called on the event loop's thread, `check` before each step by who pulls.

        `refuse` makes the error that is raised where rows cannot be read; on any thread.
        """
        self._loop = loop
        self._thread = thread
        self._check = check
        self._find = find
        self._refuse = refuse
        self._part: Part = iter(())

    def __iter__(self) -> Batches:
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
            # The loop's thread may itself wait for these rows: without an end, for ever.
            answer.cancel()
            raise Retry(
                f"the engine's event loop did not answer for {limits.READ_SECONDS_MAX} s: it is "
                "blocked, perhaps by whoever reads these rows; read them in asyncio.to_thread"
            ) from error

    async def _step(self) -> Part | None:
        return self._find()
