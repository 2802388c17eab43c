"""The topic row cache and reads behind it, with unreadable and missing rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from millrace.core.model import Row, ShardId
from millrace.engine.topic_row_cache import ChunkLimits, read_chunk
from millrace.errors import Corrupt
from millrace.store.memory_store import arrow_rows
from millrace.store.unreadable import Unreadable

T = TypeVar("T")
SHARD = ShardId(7)


class Part(list[pa.RecordBatch]):
    """A result of a scan."""

    def __init__(self, batches: list[pa.RecordBatch], error: Unreadable | None) -> None:
        super().__init__(batches)
        self._error = error

    def is_hot(self) -> bool:
        return False

    def load(self) -> list[pa.RecordBatch]:
        if self._error is not None:
            raise self._error
        return list(self)


class Rows:
    """A topic with given rows, of which some have ended and some are unreadable."""

    def __init__(self, seqs: list[int], *, dead: set[int], bad: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self._seqs, self._dead, self._bad = seqs, dead, bad

    def scan(self, shard: ShardId, after: int, upto: int, reader: object) -> Rows:
        self._range = (after, upto)
        self._is_done = False
        return self

    def find(self, size: int) -> Part | None:
        if self._is_done:
            return None
        self._is_done = True
        after, upto = self._range
        wanted = [seq for seq in self._seqs if after < seq <= upto]
        bad = [seq for seq in wanted if seq in self._bad]
        error = None
        if bad:
            error = Unreadable("bits", shard=SHARD, first=bad[0], last=bad[0])
        rows = [Row(seq, 1, b"%d" % seq, None, ()) for seq in wanted]
        return Part([arrow_rows(SHARD, rows)], error) if rows else None

    def dead(self, shard: ShardId, low: int, high: int) -> BitMap64:
        return BitMap64([seq for seq in range(low, high + 1) if seq in self._dead])


class Lane:
    """An I/O thread that runs work at once."""

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(work())
        except Unreadable as error:
            future.set_exception(error)
        return future


def chunk(rows: Rows, after: int, upto: int) -> tuple[int, int, int]:
    """Return the bounds of a chunk, and its number of rows."""

    async def main() -> tuple[int, int, int]:
        found = await read_chunk(rows, Lane(), SHARD, after, upto, ChunkLimits(100, 1 << 20))  # type: ignore[arg-type]
        return found.after, found.upto, found.block.count

    return asyncio.run(main())


def test_dropped_rows_make_a_chunk_without_rows() -> None:
    rows = Rows([1, 2, 5, 6, 9], dead={3, 4, 7, 8, 10})
    assert chunk(rows, 0, 10) == (0, 2, 2)
    assert chunk(rows, 2, 10) == (2, 4, 0)
    assert chunk(rows, 4, 10) == (4, 6, 2)
    assert chunk(rows, 6, 10) == (6, 8, 0)
    assert chunk(rows, 8, 10) == (8, 9, 1)
    assert chunk(rows, 9, 10) == (9, 10, 0)


def test_rows_that_are_missing_are_no_hole() -> None:
    rows = Rows([1, 2, 5], dead={3})
    assert chunk(rows, 0, 2) == (0, 2, 2)
    with pytest.raises(Corrupt, match="after 2 are not there"):
        chunk(rows, 2, 5)
    with pytest.raises(Corrupt, match="after 5 are not there"):
        chunk(rows, 5, 6)


def test_what_comes_before_unreadable_rows_is_forwarded() -> None:
    rows = Rows([1, 2, 3, 4], dead=set(), bad={3})
    assert chunk(rows, 0, 4) == (0, 2, 2)
    with pytest.raises(Unreadable):
        chunk(rows, 2, 4)
