"""The promise of a store: committed batches in, rows and cells out.

A store holds committed batches only, so that nothing in it ever has to be taken back. It folds
batches in order, group by group, and answers every question as of the last batch that it folded.
All calls come from one thread, the engine's; they do not block on a disk except where said.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa
from pyroaring import BitMap64

from millrace.core.changes import Entry
from millrace.core.commands import Held, Outlived, RowFacts, StageFacts
from millrace.core.fold import Reader, ShardMeta
from millrace.core.model import GroupId, Index, Kind, Row, ShardId
from millrace.wal.record import Position


class Store(Protocol):
    """Where committed batches live."""

    def fold(self, entry: Entry, position: Position | None) -> None:
        """Take in a committed entry, the group's next one; `position` is its record in the log.

        An entry whose index is not above the group's applied one is skipped (C1).
        """
        ...

    def applied(self, group: GroupId) -> Index:
        """The index of the last entry of `group` that was folded."""
        ...

    def shards(self) -> list[ShardId]:
        """Every shard there is, in order."""
        ...

    def meta(self, shard: ShardId) -> ShardMeta | None:
        """The shard's counters, or None if there is no such shard."""
        ...

    def cells(
        self, shard: ShardId, kind: Kind | None = None, prefix: bytes = b""
    ) -> Iterable[tuple[Kind, bytes, bytes]]:
        """Every cell of the shard, or those of a kind, in the order of kind and key.

        Of a kind, `prefix` picks those whose keys begin with it.
        """
        ...

    def cell(self, shard: ShardId, kind: Kind, key: bytes) -> bytes | None:
        """One cell's value, or None if there is no such cell."""
        ...

    def points(self, shard: ShardId, names: Sequence[tuple[Kind, bytes]]) -> list[bytes | None]:
        """The values of many single cells, in the order in which they are named."""
        ...

    def cells_from(
        self, shard: ShardId, kind: Kind, low: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """The first cells of a kind whose keys are not below `low`, in order.

        There are fewer than `limit` only where there are no more. Of a windowed kind: all its keys
        have the same length.
        """
        ...

    def find(self, shard: ShardId, keys: Sequence[bytes]) -> list[int]:
        """The newest live (or kept) seq of each key; 0 where there is none."""
        ...

    def hidden(self, shard: ShardId, low: int, high: int) -> BitMap64:
        """The seqs within [low, high] that no worker gets in their order: dead, kept, deletes, or
        put aside."""
        ...

    def ended(self, shard: ShardId, low: int, high: int) -> BitMap64:
        """The seqs within [low, high] that are dead, or settled and kept."""
        ...

    def dead(self, shard: ShardId, low: int, high: int) -> BitMap64:
        """The seqs within [low, high] that are dead, though a pin may still show them."""
        ...

    def row(self, shard: ShardId, seq: int) -> RowFacts:
        """How the row stands."""
        ...

    def stage(self, shard: ShardId, name: str, *, grouped: bool) -> StageFacts:
        """The keys and deletes of a stage and, if need be, the groups of its rows."""
        ...

    def seq_at(self, shard: ShardId, time_ms: int) -> int:
        """The first seq whose time is not before `time_ms`; last seq + 1 if there is none."""
        ...

    def outlived(self, shard: ShardId, after: int, before_ms: int, limit: int) -> Outlived:
        """The messages after a seq that were published before a time and have not ended, and are
        not kept; up to `limit` of them.

        However much has ended before, it looks at so much and no more, and says how far it came.
        """
        ...

    def held(self, shard: ShardId, pin: int) -> list[Held]:
        """How many rows died since the pin was made, and are there for it and those beside it, by
        parts of the seqs."""
        ...

    def rows(self, shard: ShardId, seqs: BitMap64, size: int = sys.maxsize) -> list[Row]:
        """These rows, in order; those that are not readable any more are left out.

        It ends before the row with which they would have more than `size` bytes; the first one is
        always there.

        The caller asks for rows that it knows to be live or leased: whether they are visible is
        not judged here. May block on a disk: `hot` tells.
        """
        ...

    def hot(self, shard: ShardId, seqs: BitMap64) -> bool:
        """Whether `rows` would answer from memory, or at least from what was written lately."""
        ...

    def warm(self, shard: ShardId, seqs: BitMap64) -> Callable[[], None]:
        """Find where cold rows lie, now; the call that comes back reads them, on any thread.

        When it has returned, `rows` answers from memory, for as long as the cache has room.
        """
        ...

    def scan(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> Iterator[pa.RecordBatch]:
        """The rows within (after, upto] that the reader sees, in seq order, as Arrow batches.

        Batches lie over the log's or the files' own bytes where all their rows are visible, and
        stay valid as long as they are kept. May block on a disk: the scans of the disk store have
        a half of their own for that, which may be run on any thread.
        """
        ...
