"""The store interface: committed batches in, rows and cells out.

A store holds committed batches only, so that nothing in it is ever rolled back. It folds batches in
order, group by group, and every read returns the state after the last folded batch. All calls come
from the engine's thread; they do not block on a disk unless documented.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa
from pyroaring import BitMap64

from millrace.core.cells import Kind
from millrace.core.changes import Entry
from millrace.core.model import (
    GroupId,
    Index,
    Row,
    ShardId,
)
from millrace.core.needs import (
    ExpiredRows,
    PinnedRows,
    RowFacts,
    StageFacts,
)
from millrace.core.state.fold import Reader, ShardMeta
from millrace.wal.record import LogPosition


class Store(Protocol):
    """Storage of committed batches."""

    def fold(self, entry: Entry, position: LogPosition | None) -> None:
        """Apply a committed entry, the group's next one; `position` is its record in the log.

        An entry whose index is not above the group's applied one is skipped (C1).
        """
        ...

    def applied(self, group: GroupId) -> Index:
        """Return the index of the last folded entry of `group`."""
        ...

    def shards(self) -> list[ShardId]:
        """Return all shards, in order."""
        ...

    def meta(self, shard: ShardId) -> ShardMeta | None:
        """Return the shard's counters, or None if the shard does not exist."""
        ...

    def cells(
        self, shard: ShardId, kind: Kind | None = None, prefix: bytes = b""
    ) -> Iterable[tuple[Kind, bytes, bytes]]:
        """Return the cells of the shard, or of one kind, in the order of kind and key.

        With a kind, `prefix` selects the keys that begin with it.
        """
        ...

    def cell(self, shard: ShardId, kind: Kind, key: bytes) -> bytes | None:
        """Return the value of a cell, or None if the cell does not exist."""
        ...

    def points(self, shard: ShardId, names: Sequence[tuple[Kind, bytes]]) -> list[bytes | None]:
        """Return the values of many single cells, in the order of `names`."""
        ...

    def cells_from(
        self, shard: ShardId, kind: Kind, low: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """Return the first cells of a kind whose keys are not below `low`, in order.

        There are fewer than `limit` only at the end. Only for windowed kinds, whose keys all have
        the same length.
        """
        ...

    def find(self, shard: ShardId, keys: Sequence[bytes]) -> list[int]:
        """Return the newest live (or kept) seq of each key; 0 for a key without one."""
        ...

    def hidden(self, shard: ShardId, low: int, high: int) -> BitMap64:
        """Return the seqs within [low, high] that no worker gets in their order.

        They are dead, kept, deletes, or deferred.
        """
        ...

    def ended(self, shard: ShardId, low: int, high: int) -> BitMap64:
        """Return the seqs within [low, high] that are dead, or settled and kept."""
        ...

    def dead(self, shard: ShardId, low: int, high: int) -> BitMap64:
        """Return the seqs within [low, high] that are dead, even if a pin still shows them."""
        ...

    def row(self, shard: ShardId, seq: int) -> RowFacts:
        """Return the state of a row."""
        ...

    def stage(self, shard: ShardId, name: str, *, grouped: bool) -> StageFacts:
        """Return the keys and deletes of a stage and, if `grouped`, the groups of its rows."""
        ...

    def seq_at(self, shard: ShardId, time_ms: int) -> int:
        """Return the first seq whose time is at least `time_ms`; last seq + 1 if all are older."""
        ...

    def outlived(self, shard: ShardId, after: int, before_ms: int, limit: int) -> ExpiredRows:
        """Return up to `limit` live messages after a seq that were published before a time.

        Kept messages are not among them. The work of a call is bounded, however many messages have
        ended before; the result says how far the scan came.
        """
        ...

    def held(self, shard: ShardId, pin: int) -> list[PinnedRows]:
        """Return the number of dead rows that a pin and the pins next to it still hold.

        They are counted by ranges of seqs: rows that died since the pin was made.
        """
        ...

    def rows(self, shard: ShardId, seqs: BitMap64, size: int = sys.maxsize) -> list[Row]:
        """Return these rows, in order; unreadable rows are left out.

        The result ends before the row that would exceed `size` bytes in all; the first row is
        always there.

        The rows must be live or leased: visibility is not checked. May block on a disk, unless
        `hot` returns True.
        """
        ...

    def hot(self, shard: ShardId, seqs: BitMap64) -> bool:
        """Return True if `rows` would read from memory, or from recently written files."""
        ...

    def warm(self, shard: ShardId, seqs: BitMap64) -> Callable[[], None]:
        """Locate cold rows now; return a function that reads them, for any thread.

        After that function has returned, `rows` reads from memory, until the rows are evicted from
        the cache.
        """
        ...

    def scan(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows within (after, upto] that the reader sees, by seq, as Arrow batches.

        A batch whose rows are all visible is a view of the log's or a file's bytes, and stays valid
        as long as it is kept. May block on a disk: a scan of the disk store is split into `find`
        and reading, which may run on any thread.
        """
        ...
