"""A cache of the newest rows of a topic for its forwarder; older rows are read from the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import Kind
from millrace.core.changes import Batch
from millrace.core.format import block_ops
from millrace.core.format.block import Block, DamagedBlock
from millrace.core.model import ShardId
from millrace.core.state.fold import Reader, ShardMeta
from millrace.errors import Corrupt
from millrace.store.scan import Scan
from millrace.store.unreadable import Unreadable
from millrace.wal.io_thread import IoThread


class TopicRowReader(Protocol):
    """The store's reading interface for committed rows."""

    def meta(self, shard: ShardId) -> ShardMeta | None: ...
    def scan(self, shard: ShardId, after: int, upto: int, reader: Reader) -> Scan: ...
    def dead(self, shard: ShardId, low: int, high: int) -> BitMap64: ...
    def cells(
        self, shard: ShardId, kind: Kind | None = None, prefix: bytes = b""
    ) -> Iterable[tuple[Kind, bytes, bytes]]: ...


class ChunkLimits(NamedTuple):
    """Maximal size of the rows that one queue gets at once; a single block may be larger."""

    rows: int
    size: int


class Chunk(NamedTuple):
    """The rows (after, upto] of a topic."""

    after: int
    upto: int
    block: Block
    times: tuple[tuple[int, int], ...]
    """Pairs of a number of rows and their publish time in milliseconds."""


class _CachedBlock(NamedTuple):
    first: int
    block: Block
    time_ms: int
    size: int

    @property
    def last(self) -> int:
        return self.first + self.block.count - 1


class TopicRowCache:
    """The newest rows of one topic, bounded in bytes."""

    def __init__(self) -> None:
        self._fresh: deque[_CachedBlock] = deque()
        self._bytes = 0

    def add(self, batch: Batch) -> None:
        """Add the rows of a committed batch."""
        if any(isinstance(block, DamagedBlock) for block in batch.blocks):
            # Unreadable rows are read from the store, which raises the proper error.
            self._fresh.clear()
            self._bytes = 0
            return
        for first, block in zip(batch.changes.firsts, batch.blocks, strict=False):
            cached = _CachedBlock(first, block, batch.time_ms, block.size())
            self._fresh.append(cached)
            self._bytes += cached.size
        while self._bytes > limits.FORWARD_MEMORY_BYTES_MAX:
            self._bytes -= self._fresh.popleft().size

    def drop_to(self, upto: int) -> None:
        """Evict rows up to a seq that all subscriptions have passed."""
        while self._fresh and self._fresh[0].last <= upto:
            self._bytes -= self._fresh.popleft().size

    def find(self, after: int, chunk_limits: ChunkLimits) -> Chunk | None:
        """Return the rows after a seq, up to the limits; None if they are not cached."""
        cached: list[_CachedBlock] = []
        size = count = 0
        for item in self._fresh:
            if item.last <= after:
                continue
            if not cached and item.first > after + 1:
                return None
            if cached and (size + item.size > chunk_limits.size or count >= chunk_limits.rows):
                break
            cached.append(item)
            size += item.size
            count += item.block.count
        if not cached:
            return None
        times = tuple((item.block.count, item.time_ms) for item in cached)
        block = block_ops.join([item.block for item in cached])
        skipped = after + 1 - cached[0].first
        return slice_chunk(
            Chunk(cached[0].first - 1, cached[-1].last, block, times), skipped, chunk_limits.rows
        )


def slice_chunk(chunk: Chunk, skipped: int, rows_max: int) -> Chunk:
    """Return a chunk without its first rows, truncated to `rows_max`."""
    count = min(chunk.block.count - skipped, rows_max)
    if not skipped and count == chunk.block.count:
        return chunk
    block = block_ops.take(chunk.block, np.arange(skipped, skipped + count))
    all_times = [time_ms for row_count, time_ms in chunk.times for _ in range(row_count)]
    times = tuple((1, time_ms) for time_ms in all_times[skipped : skipped + count])
    after = chunk.after + skipped
    return Chunk(after, after + count, block, times)


async def read_chunk(
    rows: TopicRowReader,
    io_thread: IoThread,
    shard: ShardId,
    after: int,
    upto: int,
    chunk_limits: ChunkLimits,
) -> Chunk:
    """Read the rows after a seq from the store, cold ones on an I/O thread.

    A range whose rows have ended is returned as a chunk of its own, without rows.

    Raises:
        Corrupt: rows are damaged or missing.
    """
    scan = rows.scan(shard, after, upto, Reader())
    blocks: list[Block] = []
    times: list[tuple[int, int]] = []
    size, last = 0, after
    while size < chunk_limits.size and last < upto:
        try:
            part = scan.find(chunk_limits.size)
            if part is None:
                break
            batches = list(part) if part.is_hot() else await io_thread.submit(part.load)
        except Unreadable as error:
            if error.first <= after + 1:
                raise
            # Rows before the unreadable ones can be forwarded; the next call reports these.
            return await read_chunk(rows, io_thread, shard, after, error.first - 1, chunk_limits)
        for batch in chain.from_iterable(map(_runs, batches)):
            seqs = batch.column("seq").to_numpy()
            first = int(seqs[0])
            if first != last + 1:
                if not _have_ended(rows, shard, last, first - 1):
                    raise Corrupt(f"rows of topic {shard} after {last} are not there")
                if not blocks:
                    return Chunk(after, first - 1, Block.of_bodies([]), ())
                return slice_chunk(
                    Chunk(after, last, block_ops.join(blocks), tuple(times)), 0, chunk_limits.rows
                )
            blocks.append(block_ops.of_rows(batch))
            millis = batch.column("time").view(pa.int64()).to_numpy().tolist()
            times += [(1, time_ms) for time_ms in millis]
            last += len(seqs)
            size += batch.nbytes
    if not blocks:
        if _have_ended(rows, shard, after, upto):
            return Chunk(after, upto, Block.of_bodies([]), ())
        raise Corrupt(f"rows of topic {shard} after {after} are not there")
    return slice_chunk(
        Chunk(after, last, block_ops.join(blocks), tuple(times)), 0, chunk_limits.rows
    )


def _runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into runs of consecutive seqs."""
    seqs = batch.column("seq").to_numpy()
    ends = [*(np.flatnonzero(np.diff(seqs) != 1) + 1).tolist(), len(seqs)]
    begin = 0
    for end in ends:
        yield batch.slice(begin, end - begin)
        begin = end


def _have_ended(rows: TopicRowReader, shard: ShardId, after: int, upto: int) -> bool:
    """Return True if all rows in (after, upto] are dead, so that none is missing."""
    return len(rows.dead(shard, after + 1, upto)) == upto - after
