"""Folding: what a committed batch does to the newest layer.

Rule 1: batches of a shard come in the order of their indexes, each once (C1).
Rule 2: nothing is read from the disk, except for the rows of a stage that is published to a keyed
shard, whose keys are learnt here, and for the cursors when a takeover table is too long.
Rule 3: the work is per batch, not per row; keys and deletes alone are taken one by one.
"""

from __future__ import annotations

from pyroaring import BitMap64

from millrace import limits
from millrace.core.block import FLAG_DELETES, FLAG_HEADERS, FLAG_KEYS, Block, DamagedBlock
from millrace.core.changes import Batch, Changes, Entry
from millrace.core.codec import encode_cell
from millrace.core.fold import fold
from millrace.core.model import Death, Kind, TakeoverCell
from millrace.core.seqs import unpack_seqs
from millrace.core.takeover import trim
from millrace.core.view import number, number_key
from millrace.errors import Fatal
from millrace.store.dead_rows import (
    ASIDE,
    DELETE,
    ENDED,
    ShardState,
)
from millrace.store.layered import Layered
from millrace.store.overlay import KINDS
from millrace.store.place import COMPRESSED, Place, republished
from millrace.store.reading import Reading
from millrace.store.scanning import lost
from millrace.store.sealed import Moved
from millrace.store.unreadable import Unreadable, unreadable
from millrace.wal.record import Position

_ORDINAL_BITS = 16
"""A staged block is numbered by its batch's index and its place in the batch."""

_NO_ROWS = Block.of_bodies([])
"""Stands for rows that need not be looked at."""


class Folding:
    """Takes committed entries in."""

    def __init__(self, layered: Layered, reading: Reading) -> None:
        self._layered = layered
        self._reading = reading
        self.moved: dict[tuple[int, str, int], int] | None = None
        """While rows are being copied: staged blocks → the seqs that they were published under."""
        self.has_unreadable = True
        """Unreadable rows may lie somewhere: they were set aside, or are in a damaged file."""
        self.is_unreadable_doubted = True
        """All of them at one place may have ended, so that the place can go."""
        self.unreadable: list[Unreadable] = []
        """Rows that were unreadable when they were folded, for the keeper to report."""

    def fold(self, entry: Entry, position: Position | None) -> None:
        groups = self._layered.groups
        applied = groups.get(entry.group)
        if applied is not None and entry.index <= applied[0]:
            return
        for batch in entry.batches:
            self._fold(batch, entry.history, position)
        groups[entry.group] = (entry.index, entry.epoch)

    def _fold(self, batch: Batch, history: bytes, position: Position | None) -> None:
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
            for ordinal, _ in layered.blocks.staged(state.id, name):
                part.staged[name, ordinal] = None
        if changes.died and meta.keyed:
            for why, seqs in changes.died.items():
                if why != Death.SUPERSEDED:
                    state.mark(0, ENDED, unpack_seqs(seqs))
        if changes.aside:
            state.mark(0, ASIDE, unpack_seqs(changes.aside))
        state.meta, takeover = fold(meta, batch, history, state)
        if takeover is not None:
            self._put_takeover(state, takeover)
        if changes.cells:
            part.put_cells(changes)
        if self.has_unreadable and (changes.unpinned or _ends_quarantine(changes)):
            self.is_unreadable_doubted = True

    # --- Rows ------------------------------------------------------------------------------------

    def _put_rows(self, state: ShardState, batch: Batch, position: Position | None) -> None:
        changes, blocks = batch.changes, batch.blocks
        if position is None and blocks:
            raise Fatal("rows without a place in the log")
        is_keyed = state.meta.keyed or changes.made == 3
        places = [_place(batch, at, position) for at in range(len(blocks))] if position else []
        shown = list(zip(changes.firsts, places, blocks, strict=False))
        at = len(changes.firsts)
        for name, count in changes.staged:
            for _ in range(count):
                state.part.stage(name, batch.index << _ORDINAL_BITS | at, places[at])
                at += 1
        for name, first, rows in changes.published:
            shown += self._publish(state, name, first, rows, batch, is_keyed=is_keyed)
        if changes.published:
            # In the order of their seqs: a key names the newest row that has it.
            shown.sort(key=lambda found: found[0])
        for first, place, block in shown:
            if place.count:
                state.part.put(first, place)
                if isinstance(block, DamagedBlock):
                    self.unreadable.append(unreadable(state.shard, first, place, block.error))
                if not changes.published:
                    self._reading.remember(place, block)
                if is_keyed or place.flags & FLAG_DELETES:
                    self._learn(state, block, first, is_keyed=is_keyed)

    def _publish(
        self, state: ShardState, name: str, first: int, rows: int, batch: Batch, *, is_keyed: bool
    ) -> list[tuple[int, Place, Block]]:
        """The oldest rows of a stage become visible."""
        part = state.part
        shown: list[tuple[int, Place, Block]] = []
        upto = first + rows
        for ordinal, place in self._layered.blocks.staged(state.id, name):
            if first >= upto:
                break
            part.staged[name, ordinal] = None
            part.moved[name, ordinal] = first
            if self.moved is not None:
                self.moved[state.id, name, ordinal] = first
            block = _NO_ROWS
            if is_keyed or place.flags & FLAG_DELETES:
                block = self._block(state, first, place)
            shown.append((first, republished(place, batch.time_ms), block))
            first += place.count
        if first != upto:
            raise Fatal(f"shard {state.id}: stage {name!r} has not the {rows} rows to publish")
        return shown

    def _block(self, state: ShardState, first: int, place: Place) -> Block:
        try:
            return self._reading.decoded(place, state.shard, first).block
        except Moved:
            raise lost(state.shard, first) from None
        except Unreadable:
            # It is committed that they are visible. Whoever reads them quarantines the queue.
            return _NO_ROWS

    def _learn(self, state: ShardState, block: Block, first: int, *, is_keyed: bool) -> None:
        """The keys of new rows, and which of them are deletes."""
        if is_keyed and block.keys is not None:
            keys = state.part.keys
            # Rows without a key all come to lie under None.
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


def _place(batch: Batch, at: int, position: Position) -> Place:
    start, length = batch.places[at]
    block = batch.blocks[at]
    return Place(
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
    """What a place says of its rows."""
    return (
        (FLAG_KEYS if block.keys is not None else 0)
        | (FLAG_HEADERS if block.header_names is not None else 0)
        | (FLAG_DELETES if len(block.bodies.validity) else 0)
        | (COMPRESSED if block.is_squeezed else 0)
    )
