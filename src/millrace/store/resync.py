"""Resync: brings a shard of one store to the state of another's, by entries or by state.

A store that is behind receives the entries of its group since then (`catch_up`), if the log still
has them (`journal.entries_since` reads them). Otherwise it receives state (`resync`): the reachable
rows that it lacks, the marks of every interval, the cells and the stages, but no history.

Rule 1: the source sends the shard as of one batch (N2). Rows are read later than the rest: the
caller keeps a pin in the shard until the end, so that none of them is reclaimed.
Rule 2: rows that the source lacks do not exist afterwards either: a copy is built from scratch next
to the old state, and replaces it atomically. Until then the old state stays untouched, even if the
process ends: the incomplete copy is durably listed as garbage.
Rule 3: rows are immutable: a row that both sides have under a shared history is not sent.
Rule 4: resync(any state) = fold(all batches).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa
from pyroaring import BitMap64

from millrace.core.cells import Kind, TakeoverCell
from millrace.core.changes import Entry
from millrace.core.format.codec import decode_cell
from millrace.core.model import History, ShardId
from millrace.core.state.fold import ShardMeta
from millrace.core.state.histories import shared_index, shared_seq
from millrace.store import chunk
from millrace.store.dead_rows import DEAD


class ShardExport(Protocol):
    """A shard as of one batch, for sending."""

    meta: ShardMeta
    needed: BitMap64
    """Seqs of all reachable rows: live, kept, or dead and pinned."""

    def cells(self) -> Sequence[tuple[Kind, bytes, bytes]]:
        """Return all cells."""
        ...

    def marks(self) -> Iterable[tuple[int, int, BitMap64]]:
        """Return (pin, mark, seqs) of all needed rows; all other rows are dead in interval 0."""
        ...

    def staged(self) -> Iterable[tuple[str, pa.RecordBatch]]:
        """Return the rows of every stage, in the order of staging."""
        ...

    def rows(self, seqs: BitMap64) -> Iterator[pa.RecordBatch]:
        """Return the requested rows, which must be among the needed ones, in seq order."""
        ...


class ShardIntake(Protocol):
    """An incomplete copy of a shard; marks and cells come first, `end` comes last."""

    def have(self, needed: BitMap64) -> BitMap64:
        """Return those of these rows that the store has and keeps: they need not be sent."""
        ...

    def put_cells(self, cells: Sequence[tuple[Kind, bytes, bytes]]) -> None: ...

    def put_marks(self, pin: int, mark: int, seqs: BitMap64) -> None: ...

    def put_staged(self, name: str, batch: pa.RecordBatch) -> None: ...

    def put_rows(self, batch: pa.RecordBatch) -> None:
        """Add rows, in seq order over all calls."""
        ...

    def end(self) -> None:
        """Complete the copy: from now on it is the shard."""
        ...

    def abandon(self) -> None:
        """Abandon the copy; the shard stays as it was."""
        ...


class Resyncable(Protocol):
    """A store that can be source or target of a resync."""

    def meta(self, shard: ShardId) -> ShardMeta | None: ...

    def export(self, shard: ShardId) -> ShardExport | None:
        """Return the present state of the shard, or None if it does not exist."""
        ...

    def intake(self, shard: ShardId, meta: ShardMeta, *, gone: int, shared: int) -> ShardIntake:
        """Begin a copy with these counters; rows up to `gone` are dead for all readers.

        `shared`: up to this seq, the rows of this store are the same as the source's.
        """
        ...

    def forget(self, shard: ShardId) -> None:
        """Drop the shard, which the source does not have."""
        ...


class SendEntries(NamedTuple):
    """Catch up by entries: the batches after this index are sent."""

    after: int


class SendState(NamedTuple):
    """Send state; rows up to the seq `shared` are the same on both sides."""

    shared: int


def choose(
    export: ShardExport, target: ShardMeta | None, has_since: Callable[[int], bool]
) -> SendEntries | SendState:
    """Choose how to bring a target with these counters to the exported state.

    `has_since` returns True if all batches after an index are still available.
    """
    if target is None:
        return SendEntries(0) if has_since(0) else SendState(0)
    source = export.meta
    table = _takeovers(export)
    current = History(source.history)
    index = shared_index(table, target.history, current, source.index)
    if index is not None and target.index <= index and has_since(target.index):
        return SendEntries(target.index)
    seq = shared_seq(table, target.history, current, source.last_seq)
    return SendState(min(seq or 0, target.last_seq))


def _takeovers(export: ShardExport) -> list[TakeoverCell]:
    cells: list[TakeoverCell] = []
    for kind, _, value in export.cells():
        if kind is Kind.TAKEOVER:
            cell = decode_cell(kind, value)
            assert isinstance(cell, TakeoverCell)
            cells.append(cell)
    return cells


def send_state(
    export: ShardExport,
    target: Resyncable,
    shard: ShardId,
    shared: int,
    rest: Callable[[], None] = lambda: None,
) -> None:
    """Bring the target's shard to the exported state.

    `rest` is called between steps: a store on disk writes a checkpoint there, which bounds its
    memory. When this returns, the copy is the shard; it is durable with the target's next
    checkpoint.
    """
    needed = export.needed
    gone = (needed.min() if needed else export.meta.last_seq + 1) - 1
    intake = target.intake(shard, export.meta, gone=gone, shared=shared)
    try:
        intake.put_cells(export.cells())
        intake.put_marks(0, DEAD, chunk.span(gone + 1, export.meta.last_seq) - needed)
        for pin, mark, seqs in export.marks():
            intake.put_marks(pin, mark, seqs)
        rest()
        for name, batch in export.staged():
            intake.put_staged(name, batch)
        lacking = needed - intake.have(needed & chunk.span(1, shared))
        rest()
        for batch in export.rows(lacking):
            intake.put_rows(batch)
            rest()
        intake.end()
    except BaseException:
        intake.abandon()
        raise


def catch_up(
    source: Resyncable,
    target: Resyncable,
    shards: Iterable[ShardId],
    since: Callable[[], Iterable[Entry] | None],
    feed: Callable[[Entry], None],
) -> bool:
    """Bring all shards of a commit group to the source's state by replaying the missed entries.

    Args:
        shards: the shards of either side.
        since: returns the group's entries since the target's applied index; None if some are gone.
        feed: folds an entry into the target, as its journal does.

    Returns True on success. If False, nothing was changed, and state must be sent: a shard of the
    target has diverged, or the log does not reach back far enough.
    """
    for shard in shards:
        meta = target.meta(shard)
        if meta is None:
            continue
        export = source.export(shard)
        # A shard that the source lacks may have been dropped, or may never have existed there.
        if export is None or isinstance(choose(export, meta, lambda _: True), SendState):
            return False
    entries = since()
    if entries is None:
        return False
    for entry in entries:
        feed(entry)
    return True


def resync(
    source: Resyncable,
    target: Resyncable,
    shard: ShardId,
    rest: Callable[[], None] = lambda: None,
) -> None:
    """Make the target's shard equal to the source's by sending state."""
    export = source.export(shard)
    if export is None:
        target.forget(shard)
        return
    way = choose(export, target.meta(shard), lambda _: False)
    assert isinstance(way, SendState)
    send_state(export, target, shard, way.shared, rest)
