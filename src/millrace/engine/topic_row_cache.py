"""The rows of a topic that are to be forwarded: at hand where they are new, else read again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.core import picking
from millrace.core.block import Block, DamagedBlock
from millrace.core.changes import Batch
from millrace.core.fold import Reader, ShardMeta
from millrace.core.model import Kind, ShardId
from millrace.errors import Corrupt
from millrace.store.scanning import Scan
from millrace.store.unreadable import Unreadable
from millrace.wal.io_thread import IoThread


class Rows(Protocol):
    """Where the rows are, once they are committed."""

    def meta(self, shard: ShardId) -> ShardMeta | None: ...
    def scan(self, shard: ShardId, after: int, upto: int, reader: Reader) -> Scan: ...
    def dead(self, shard: ShardId, low: int, high: int) -> BitMap64: ...
    def cells(
        self, shard: ShardId, kind: Kind | None = None, prefix: bytes = b""
    ) -> Iterable[tuple[Kind, bytes, bytes]]: ...


class Bounds(NamedTuple):
    """How much is forwarded to one queue at once; a single block may be larger."""

    rows: int
    size: int


class Chunk(NamedTuple):
    """The rows (after, upto] of a topic."""

    after: int
    upto: int
    block: Block
    times: tuple[tuple[int, int], ...]
    """Of so many rows each, when they were published."""


class _Fresh(NamedTuple):
    first: int
    block: Block
    time_ms: int
    size: int

    @property
    def last(self) -> int:
        return self.first + self.block.count - 1


class TopicRowCache:
    """The newest rows of one topic, up to a bound in bytes."""

    def __init__(self) -> None:
        self._fresh: deque[_Fresh] = deque()
        self._bytes = 0

    def add(self, batch: Batch) -> None:
        """Rows that were committed."""
        if any(isinstance(block, DamagedBlock) for block in batch.blocks):
            # They are read from the store, which says what cannot be read.
            self._fresh.clear()
            self._bytes = 0
            return
        for first, block in zip(batch.changes.firsts, batch.blocks, strict=False):
            one = _Fresh(first, block, batch.time_ms, block.size())
            self._fresh.append(one)
            self._bytes += one.size
        while self._bytes > limits.FORWARD_MEMORY_BYTES_MAX:
            self._bytes -= self._fresh.popleft().size

    def drop_to(self, upto: int) -> None:
        """Nobody wants rows up to this one any more."""
        while self._fresh and self._fresh[0].last <= upto:
            self._bytes -= self._fresh.popleft().size

    def find(self, after: int, bounds: Bounds) -> Chunk | None:
        """The rows after this one, as many as are forwarded at once; None if they are not here."""
        found: list[_Fresh] = []
        size = count = 0
        for one in self._fresh:
            if one.last <= after:
                continue
            if not found and one.first > after + 1:
                return None
            if found and (size + one.size > bounds.size or count >= bounds.rows):
                break
            found.append(one)
            size += one.size
            count += one.block.count
        if not found:
            return None
        times = tuple((one.block.count, one.time_ms) for one in found)
        block = picking.join([one.block for one in found])
        skipped = after + 1 - found[0].first
        return cut(Chunk(found[0].first - 1, found[-1].last, block, times), skipped, bounds.rows)


def cut(chunk: Chunk, skipped: int, rows_max: int) -> Chunk:
    """The chunk without its first rows, and no longer than so many."""
    count = min(chunk.block.count - skipped, rows_max)
    if not skipped and count == chunk.block.count:
        return chunk
    block = picking.take(chunk.block, np.arange(skipped, skipped + count))
    all_times = [time_ms for many, time_ms in chunk.times for _ in range(many)]
    times = tuple((1, time_ms) for time_ms in all_times[skipped : skipped + count])
    after = chunk.after + skipped
    return Chunk(after, after + count, block, times)


async def read(
    rows: Rows, lane: IoThread, shard: ShardId, after: int, upto: int, bounds: Bounds
) -> Chunk:
    """The rows after this one, from where they lie; cold ones are read beside the loop.

    Rows that were dropped because they were unreadable make a chunk of their own, without rows.

    Raises:
        Corrupt: they are damaged, or not there.
    """
    scan = rows.scan(shard, after, upto, Reader())
    blocks: list[Block] = []
    times: list[tuple[int, int]] = []
    size, last = 0, after
    while size < bounds.size and last < upto:
        try:
            part = scan.find(bounds.size)
            if part is None:
                break
            found = list(part) if part.is_hot() else await lane.submit(part.load)
        except Unreadable as error:
            if error.first <= after + 1:
                raise
            # What comes before can be forwarded; the next call comes to these.
            return await read(rows, lane, shard, after, error.first - 1, bounds)
        for batch in chain.from_iterable(map(_runs, found)):
            seqs = batch.column("seq").to_numpy()
            first = int(seqs[0])
            if first != last + 1:
                if not _have_ended(rows, shard, last, first - 1):
                    raise Corrupt(f"rows of topic {shard} after {last} are not there")
                if not blocks:
                    return Chunk(after, first - 1, Block.of_bodies([]), ())
                return cut(Chunk(after, last, picking.join(blocks), tuple(times)), 0, bounds.rows)
            blocks.append(picking.of_rows(batch))
            millis = batch.column("time").view(pa.int64()).to_numpy().tolist()
            times += [(1, time_ms) for time_ms in millis]
            last += len(seqs)
            size += batch.nbytes
    if not blocks:
        if _have_ended(rows, shard, after, upto):
            return Chunk(after, upto, Block.of_bodies([]), ())
        raise Corrupt(f"rows of topic {shard} after {after} are not there")
    return cut(Chunk(after, last, picking.join(blocks), tuple(times)), 0, bounds.rows)


def _runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts whose seqs follow each other."""
    seqs = batch.column("seq").to_numpy()
    ends = [*(np.flatnonzero(np.diff(seqs) != 1) + 1).tolist(), len(seqs)]
    begin = 0
    for end in ends:
        yield batch.slice(begin, end - begin)
        begin = end


def _have_ended(rows: Rows, shard: ShardId, after: int, upto: int) -> bool:
    """Whether all rows within (after, upto] are dead: none of them is missing."""
    return len(rows.dead(shard, after + 1, upto)) == upto - after
