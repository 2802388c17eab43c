"""Resync: bringing the shard of one store to the state of another's.

One that is behind is sent what its group did since (`catch_up`), where it can still be had: the log
has it until it is recycled (`journal.past` reads it). Otherwise it is sent state (`resync`): the
rows that somebody may still ask for and that it lacks, the marks of every interval, the cells, the
stages. Never history that no longer matters.

Rule 1: what is sent is the shard as of one batch (N2). Rows are read later than the rest: the
caller keeps a pin in the shard until the end, so that none of them goes meanwhile.
Rule 2: what the source does not have is not there afterwards either: a copy is built beside the old
state, from nothing, and takes its place in one step. Until then the old one stands, untouched, and
still does if the process ends before: the durable marker is that the copy is listed as unwanted.
Rule 3: a row is immutable, so that one that both sides have under a shared history is not sent.
Rule 4: resync(any state) = fold(all batches).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa
from pyroaring import BitMap64

from millrace.core.changes import Entry
from millrace.core.codec import decode_cell
from millrace.core.fold import ShardMeta
from millrace.core.model import History, Kind, ShardId, TakeoverCell
from millrace.core.takeover import shared_index, shared_seq
from millrace.store import chunk
from millrace.store.dead_rows import DEAD


class Export(Protocol):
    """A shard as of one batch, to be sent."""

    meta: ShardMeta
    needed: BitMap64
    """The seqs of all rows that somebody may ask for: live, kept, or dead and pinned."""

    def cells(self) -> Sequence[tuple[Kind, bytes, bytes]]:
        """Every cell."""
        ...

    def marks(self) -> Iterable[tuple[int, int, BitMap64]]:
        """(Pin, mark, seqs): every mark of needed rows. All others are dead, in interval 0."""
        ...

    def staged(self) -> Iterable[tuple[str, pa.RecordBatch]]:
        """The rows of every stage, in the order in which they were staged."""
        ...

    def rows(self, seqs: BitMap64) -> Iterator[pa.RecordBatch]:
        """Those of the needed rows that are wanted, in the order of their seqs."""
        ...


class Intake(Protocol):
    """A copy of a shard in the making; marks and cells come first, `end` comes last."""

    def have(self, needed: BitMap64) -> BitMap64:
        """Those of these rows that need not be sent: the store has them, and keeps them."""
        ...

    def put_cells(self, cells: Sequence[tuple[Kind, bytes, bytes]]) -> None: ...

    def put_marks(self, pin: int, mark: int, seqs: BitMap64) -> None: ...

    def put_staged(self, name: str, batch: pa.RecordBatch) -> None: ...

    def put_rows(self, batch: pa.RecordBatch) -> None:
        """Rows, in the order of their seqs over all calls."""
        ...

    def end(self) -> None:
        """Everything was sent: the copy is the shard from now on."""
        ...

    def abandon(self) -> None:
        """It will not be completed; the shard is as it was."""
        ...


class Resyncable(Protocol):
    """A store that can be either side."""

    def meta(self, shard: ShardId) -> ShardMeta | None: ...

    def export(self, shard: ShardId) -> Export | None:
        """The shard as of now, or None if there is none."""
        ...

    def intake(self, shard: ShardId, meta: ShardMeta, *, gone: int, shared: int) -> Intake:
        """Begin a copy that will be as `meta` says; rows up to `gone` are dead for everyone.

        `shared`: rows of this store up to it are the same as those that are sent.
        """
        ...

    def forget(self, shard: ShardId) -> None:
        """End the shard: the source has none."""
        ...


class Suffix(NamedTuple):
    """Send the batches after this index."""

    after: int


class State(NamedTuple):
    """Send state; rows up to this seq are the same on both sides."""

    shared: int


def choose(
    export: Export, target: ShardMeta | None, has_since: Callable[[int], bool]
) -> Suffix | State:
    """How to bring a target that stands at `target` to the exported state.

    `has_since` tells whether all batches after an index can still be had.
    """
    if target is None:
        return Suffix(0) if has_since(0) else State(0)
    source = export.meta
    table = _takeovers(export)
    current = History(source.history)
    index = shared_index(table, target.history, current, source.index)
    if index is not None and target.index <= index and has_since(target.index):
        return Suffix(target.index)
    seq = shared_seq(table, target.history, current, source.last_seq)
    return State(min(seq or 0, target.last_seq))


def _takeovers(export: Export) -> list[TakeoverCell]:
    found: list[TakeoverCell] = []
    for kind, _, value in export.cells():
        if kind is Kind.TAKEOVER:
            cell = decode_cell(kind, value)
            assert isinstance(cell, TakeoverCell)
            found.append(cell)
    return found


def send_state(
    export: Export,
    target: Resyncable,
    shard: ShardId,
    shared: int,
    rest: Callable[[], None] = lambda: None,
) -> None:
    """Bring the target's shard to the exported state.

    `rest` is called between steps: a store on disk writes a checkpoint there, so that what it holds
    in memory stays bounded. When this returns, the copy is the shard; durable with the target's
    next checkpoint.
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
    """Bring all shards of a commit group to the source's state by what the group did meanwhile.

    Args:
        shards: those that either side has.
        since: gives the group's entries since the target's applied index; None if some are gone.
        feed: has the target take in an entry, as its journal does.

    Returns whether that could be done; if not, nothing was changed, and state must be sent: a shard
    of the target went astray, or the log does not reach back so far.
    """
    for shard in shards:
        known = target.meta(shard)
        if known is None:
            continue
        export = source.export(shard)
        # What the source does not have may have ended since, or may never have been.
        if export is None or isinstance(choose(export, known, lambda _: True), State):
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
    """Make the target's shard the same as the source's, by state."""
    export = source.export(shard)
    if export is None:
        target.forget(shard)
        return
    way = choose(export, target.meta(shard), lambda _: False)
    assert isinstance(way, State)
    send_state(export, target, shard, way.shared, rest)
