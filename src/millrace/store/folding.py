"""Folding: applies committed batches to the newest layer of the overlay.

Rule 1: batches of a shard come in the order of their indexes, each once (C1).
Rule 2: nothing is read from the disk, except the rows of a stage that is published to a keyed
shard, whose keys are indexed here, and the cursors when a takeover table is too long.
Rule 3: the work is per batch, not per row; only keys and deletes are processed one by one.
"""

from __future__ import annotations

from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import Kind, TakeoverCell
from millrace.core.changes import Batch, Changes, Entry
from millrace.core.format.block import (
    FLAG_DELETES,
    FLAG_HEADERS,
    FLAG_KEYS,
    Block,
    DamagedBlock,
)
from millrace.core.format.codec import encode_cell
from millrace.core.format.seq_sets import unpack_seqs
from millrace.core.model import Death
from millrace.core.state.fold import fold
from millrace.core.state.histories import trim
from millrace.core.state.view import number, number_key
from millrace.errors import Fatal
from millrace.store.dead_rows import (
    DEFERRED,
    DELETE,
    ENDED,
    ShardState,
)
from millrace.store.layered_index import LayeredIndex
from millrace.store.overlay import KINDS
from millrace.store.row_location import COMPRESSED, RowLocation, republished
from millrace.store.row_reader import RowReader
from millrace.store.scan import lost
from millrace.store.sealed import Moved
from millrace.store.unreadable import Unreadable, unreadable
from millrace.wal.record import LogPosition

_ORDINAL_BITS = 16
"""The ordinal of a staged block is its batch's index and, in these bits, its number there."""

_NO_ROWS = Block.of_bodies([])
"""Stands for rows that need not be read."""


class Folding:
    """Applies committed entries."""

    def __init__(self, layered: LayeredIndex, row_reader: RowReader) -> None:
        self._layered = layered
        self._row_reader = row_reader
        self.moved: dict[tuple[int, str, int], int] | None = None
        """During a sealing pass: staged blocks → the first seq of their publication."""
        self.has_unreadable = True
        """True if there may be unreadable rows: in quarantine, or in a damaged file."""
        self.is_unreadable_doubted = True
        """True if all unreadable rows of a location may have ended, so that it can be dropped."""
        self.unreadable: list[Unreadable] = []
        """Rows that were unreadable when they were folded, for the checkpointer to report."""

    def fold(self, entry: Entry, position: LogPosition | None) -> None:
        groups = self._layered.groups
        applied = groups.get(entry.group)
        if applied is not None and entry.index <= applied[0]:
            return
        for batch in entry.batches:
            self._fold(batch, entry.history, position)
        groups[entry.group] = (entry.index, entry.epoch)

    def _fold(self, batch: Batch, history: bytes, position: LogPosition | None) -> None:
        layered, changes = self._layered, batch.changes
        state = layered.state(batch.shard) or layered.make(batch.shard)
        meta = state.meta
        if batch.index <= meta.index:
            return
        if batch.index != meta.index + 1:
            raise Fatal(
                f"shard {batch.shard}: batch {batch.index} cannot follow batch {meta.index}"
            )
        if changes.dropped:
            layered.drop(state)
            self.is_unreadable_doubted = self.has_unreadable
            return
        part = layered.touch(state).part
        if batch.blocks or changes.published:
            self._put_rows(state, batch, position)
        for name in changes.unstaged:
            for ordinal, _ in layered.row_index.staged(state.id, name):
                part.staged[name, ordinal] = None
        if changes.died and meta.keyed:
            for why, seqs in changes.died.items():
                if why != Death.SUPERSEDED:
                    state.mark(0, ENDED, unpack_seqs(seqs))
        if changes.aside:
            state.mark(0, DEFERRED, unpack_seqs(changes.aside))
        state.meta, takeover = fold(meta, batch, history, state)
        if takeover is not None:
            self._put_takeover(state, takeover)
        if changes.cells:
            part.put_cells(changes)
        if self.has_unreadable and (changes.unpinned or _ends_quarantine(changes)):
            self.is_unreadable_doubted = True

    # --- Rows ------------------------------------------------------------------------------------

    def _put_rows(self, state: ShardState, batch: Batch, position: LogPosition | None) -> None:
        changes, blocks = batch.changes, batch.blocks
        if position is None and blocks:
            raise Fatal("rows without a place in the log")
        is_keyed = state.meta.keyed or changes.made == 3
        locations = (
            [_location(batch, at, position) for at in range(len(blocks))] if position else []
        )
        shown = list(zip(changes.firsts, locations, blocks, strict=False))
        at = len(changes.firsts)
        for name, count in changes.staged:
            for _ in range(count):
                state.part.stage(name, batch.index << _ORDINAL_BITS | at, locations[at])
                at += 1
        for name, first, rows in changes.published:
            shown += self._publish(state, name, first, rows, batch, is_keyed=is_keyed)
        if changes.published:
            # Sort by seq: a key names its newest row.
            shown.sort(key=lambda found: found[0])
        for first, location, block in shown:
            if location.count:
                state.part.put(first, location)
                if isinstance(block, DamagedBlock):
                    self.unreadable.append(unreadable(state.shard, first, location, block.error))
                if not changes.published:
                    self._row_reader.remember(location, block)
                if is_keyed or location.flags & FLAG_DELETES:
                    self._learn(state, block, first, is_keyed=is_keyed)

    def _publish(
        self, state: ShardState, name: str, first: int, rows: int, batch: Batch, *, is_keyed: bool
    ) -> list[tuple[int, RowLocation, Block]]:
        """Publish the oldest rows of a stage; return their locations and blocks."""
        part = state.part
        shown: list[tuple[int, RowLocation, Block]] = []
        upto = first + rows
        for ordinal, location in self._layered.row_index.staged(state.id, name):
            if first >= upto:
                break
            part.staged[name, ordinal] = None
            part.moved[name, ordinal] = first
            if self.moved is not None:
                self.moved[state.id, name, ordinal] = first
            block = _NO_ROWS
            if is_keyed or location.flags & FLAG_DELETES:
                block = self._block(state, first, location)
            shown.append((first, republished(location, batch.time_ms), block))
            first += location.count
        if first != upto:
            raise Fatal(f"shard {state.id}: stage {name!r} has not the {rows} rows to publish")
        return shown

    def _block(self, state: ShardState, first: int, location: RowLocation) -> Block:
        try:
            return self._row_reader.decoded(location, state.shard, first).block
        except Moved:
            raise lost(state.shard, first) from None
        except Unreadable:
            # Their publication is committed. The first read of them quarantines the queue.
            return _NO_ROWS

    def _learn(self, state: ShardState, block: Block, first: int, *, is_keyed: bool) -> None:
        """Index the keys of new rows, and mark the deletes."""
        if is_keyed and block.keys is not None:
            keys = state.part.keys
            # All rows without a key have the key None.
            keys.update(zip(block.key_list(), range(first, first + block.count), strict=True))  # type: ignore[arg-type]
            if len(block.keys.validity):
                keys.pop(None, None)  # type: ignore[call-overload]
        deletes = block.deletes()
        if deletes:
            state.mark(0, DELETE, BitMap64([first + at for at in deletes]))

    # --- Cells -----------------------------------------------------------------------------------

    def _put_takeover(self, state: ShardState, cell: TakeoverCell) -> None:
        kind = KINDS[Kind.TAKEOVER]
        newest = self._layered.last_cell(state.id, kind)
        at = number(newest[1:]) + 1 if newest is not None else 1
        state.part.cells[kind + number_key(at)] = encode_cell(cell)
        if at > limits.HISTORIES_MAX:
            cursors = self._layered.cells_of(state.id, KINDS[Kind.CURSOR])
            table = self._layered.cells_of(state.id, kind)
            state.part.cells.update(trim(table, cursors.values()))


def _ends_quarantine(changes: Changes) -> bool:
    return any(kind == Kind.QUARANTINE and value is None for kind, _, value in changes.cells)


def _location(batch: Batch, at: int, position: LogPosition) -> RowLocation:
    start, length = batch.places[at]
    block = batch.blocks[at]
    return RowLocation(
        position.generation,
        position.offset + start,
        length,
        block.count,
        block.count,
        batch.time_ms,
        batch.time_ms,
        flags_of(block),
    )


def flags_of(block: Block) -> int:
    """Return the location flags for the rows of a block."""
    return (
        (FLAG_KEYS if block.keys is not None else 0)
        | (FLAG_HEADERS if block.header_names is not None else 0)
        | (FLAG_DELETES if len(block.bodies.validity) else 0)
        | (COMPRESSED if block.is_squeezed else 0)
    )
