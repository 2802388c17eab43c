"""Folds a batch into the counters, deaths and pins of a shard.

Every store folds with this one function, so that a replica that folds the same batches holds the
same logical state. Each store holds the sets of seqs itself (`IntervalMarks`), because they may be
large.

**Intervals.** Each pin opens an interval that lasts to the next pin. A row that dies is marked in
the newest interval: pins up to that one still show it, later ones do not. When a pin is removed,
its interval is merged into the one before; rows that die in the first interval (0) are garbage.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

import msgspec
from pyroaring import BitMap64

from millrace.core.cells import TakeoverCell
from millrace.core.changes import Batch
from millrace.core.format.seq_sets import unpack_seqs
from millrace.core.model import Death


class RowMark(IntEnum):
    """The mark of a row. Numbers are part of the format."""

    DEAD = 0
    KEPT = 1
    """Settled, and only needed by retaining cursors."""


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """The time from a pin (0: from the beginning) to the next one."""

    pin: int
    floor: int = 0
    """Rows up to it were purged, or expired by retention, within the interval."""


class ShardMeta(msgspec.Struct, frozen=True, array_like=True):
    """The counters of a shard in a store, as of its last folded batch."""

    index: int = 0
    last_seq: int = 0
    time_ms: int = 0
    history: bytes = b""
    keyed: bool = False
    published: int = 0
    died: tuple[int, ...] = (0,) * (len(Death) + 1)
    """Number of dead rows by `Death`; the place 0 is unused."""
    intervals: tuple[Interval, ...] = (Interval(0),)
    weight: int = 0
    """Bytes of all rows ever published, as their blocks were written."""

    @property
    def live(self) -> int:
        """Number of live and kept rows."""
        return self.published - sum(self.died)

    @property
    def floor(self) -> int:
        """Seq up to which all rows are dead."""
        return max(interval.floor for interval in self.intervals)


class IntervalMarks(Protocol):
    """The marked seqs of one shard, by interval."""

    def mark(self, pin: int, mark: RowMark, seqs: BitMap64) -> None:
        """Add `seqs` to the interval that begins at `pin`."""
        ...

    def kept(self, upto: int) -> BitMap64:
        """Return the rows up to `upto` that are kept and not dead, as a set that the caller may
        modify."""
        ...

    def dead(self, low: int, high: int) -> int:
        """Return the number of dead rows within [low, high], without those ended by a floor."""
        ...

    def merge(self, pin: int, into: int) -> None:
        """Merge the interval of `pin` into the one that begins at `into`."""
        ...


def fold(
    meta: ShardMeta, batch: Batch, history: bytes, marks: IntervalMarks
) -> tuple[ShardMeta, TakeoverCell | None]:
    """Return the counters after `batch`, and the takeover that its history began with, if any.

    The batch must be the next one: index + 1. The caller takes care of rows and cells.
    """
    changes = batch.changes
    visible = batch.blocks[: len(changes.firsts)]
    rows = sum(block.count for block in visible) + sum(n for _, _, n in changes.published)
    last_seq = meta.last_seq + rows
    died = list(meta.died)
    newest = meta.intervals[-1].pin
    dead = BitMap64()
    for why, packed in changes.died.items():
        seqs = unpack_seqs(packed)
        died[why] += len(seqs)
        marks.mark(newest, RowMark.DEAD, seqs)
        dead |= seqs
    if changes.passed:
        passed = marks.kept(changes.passed)
        passed.remove_range(0, meta.floor + 1)
        if passed:
            died[Death.SETTLED] += len(passed)
            marks.mark(newest, RowMark.DEAD, passed)
    if changes.settled:
        marks.mark(newest, RowMark.KEPT, unpack_seqs(changes.settled))
    intervals = meta.intervals
    if changes.expired > meta.floor:
        count = changes.expired - meta.floor
        died[Death.EXPIRED] += count - marks.dead(meta.floor + 1, changes.expired)
        intervals = (*intervals[:-1], Interval(newest, changes.expired))
    if changes.purged:
        # Rows above the purge are all of this batch, and those of them that died are in `dead`.
        dead.remove_range(0, changes.purged + 1)
        above = last_seq - changes.purged - len(dead)
        died[Death.PURGED] += meta.published + rows - sum(died) - above
        intervals = (*intervals[:-1], Interval(newest, changes.purged))
    for pin in changes.unpinned:
        intervals = _merge(intervals, pin, marks)
    for pin in changes.pinned:
        intervals = (*intervals, Interval(pin))
    takeover = None
    if meta.history and meta.history != history:
        takeover = TakeoverCell(meta.history, meta.index, meta.last_seq)
    return (
        ShardMeta(
            batch.index,
            last_seq,
            batch.time_ms,
            history,
            meta.keyed or changes.made == 3,
            meta.published + rows,
            tuple(died),
            intervals,
            meta.weight + changes.weight,
        ),
        takeover,
    )


def _merge(intervals: tuple[Interval, ...], pin: int, marks: IntervalMarks) -> tuple[Interval, ...]:
    for at, interval in enumerate(intervals):
        if interval.pin == pin and at:
            before = intervals[at - 1]
            marks.merge(pin, before.pin)
            joined = Interval(before.pin, max(before.floor, interval.floor))
            return (*intervals[: at - 1], joined, *intervals[at + 1 :])
    return intervals


class Reader(msgspec.Struct, frozen=True):
    """The visibility of rows for a reader: its pin, and whether kept rows are shown."""

    pin: int | None = None
    """None: as of now."""
    retain: bool = False


def intervals_before(meta: ShardMeta, reader: Reader) -> tuple[Interval, ...]:
    """Return the intervals whose deaths the reader must not see; all of them without a pin."""
    if reader.pin is None:
        return meta.intervals
    return tuple(interval for interval in meta.intervals if interval.pin < reader.pin)
