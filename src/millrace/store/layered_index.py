"""The layered index: overlays above the tables of the index, and the shards loaded from both.

It is the state that the parts of the disk store share.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from millrace import limits
from millrace.core.model import GroupId
from millrace.core.state.fold import ShardMeta
from millrace.store.cells import Cells, Table
from millrace.store.dead_rows import (
    MarkCache,
    Marks,
    ShardState,
    new_shard,
)
from millrace.store.index_codec import (
    FIRST_COPY,
    StoredShard,
    decode_shard,
    first_part,
    joined,
    number_bytes,
    number_of,
    part_count,
    part_keys,
    shard_range,
)
from millrace.store.overlay import Layers, Overlay, parts_of
from millrace.store.row_index import RowIndex


class LayeredIndex:
    """Shards as of the last folded batch. Only the engine's thread changes it."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.layers: Layers = (Overlay(),)
        self.groups: dict[GroupId, tuple[int, int]] = {}
        """Group → applied index and epoch."""
        self.reclaiming: set[int] = set()
        """Numbers under which the index still holds garbage."""
        self.copies: dict[int, int] = {}
        """Numbers of copies made by resyncs → their shards."""
        self.building: set[int] = set()
        """Incomplete copies."""
        self.marks = Marks(cells, lambda: self.layers)
        self.mark_cache = MarkCache(self.marks, lambda: self.layers)
        self.row_index = RowIndex(cells, lambda: self.layers)
        self._states: dict[int, ShardState] = {}
        self._numbered: dict[int, ShardState] = {}

    @property
    def new(self) -> Overlay:
        """The newest layer, which takes folded batches."""
        return self.layers[0]

    # --- By shard --------------------------------------------------------------------------------

    def state(self, shard: int) -> ShardState | None:
        """Return the shard, loaded on first access; None if it does not exist."""
        state = self._states.get(shard)
        if state is None and not self._has_ended(shard):
            low, high = shard_range(shard)
            stored = joined(self.cells.range(Table.META, low, high, limit=limits.PLACES_STEP))
            if stored:
                stored_shard = decode_shard(stored[number_bytes(shard)])
                state = ShardState(shard, stored_shard, self.marks)
                self._enter(state)
                if stored_shard.sources:
                    self.marks.merging.add(state.id)
        return state

    def _enter(self, state: ShardState) -> None:
        self._states[state.shard] = self._numbered[state.id] = state

    def must(self, shard: int) -> ShardState:
        """Return the shard, which must exist."""
        state = self._states.get(shard)
        if state is None:
            state = self.state(shard)
        if state is None:
            raise KeyError(shard)
        return state

    def make(self, shard: int) -> ShardState:
        """Create a shard."""
        state = ShardState(shard, new_shard(), self.marks)
        self._enter(state)
        return state

    def drop(self, state: ShardState) -> None:
        """Drop the shard; its entries in the index are deleted later."""
        self.new.ended.add(state.shard)
        self._states.pop(state.shard, None)
        self._give_up(state)

    def _give_up(self, state: ShardState) -> None:
        """Mark the entries under this number as garbage."""
        self.new.shards.pop(state.id, None)
        self.new.dropped.add(state.id)
        self._numbered.pop(state.id, None)

    def all(self) -> list[int]:
        """Return all shards, in order."""
        shards = set(self._states)
        low = b""
        while True:
            cells = self.cells.range(Table.META, low, b"\xff" * 10, limit=limits.PLACES_STEP)
            shards.update(
                shard for key, _ in cells if not self._has_ended(shard := number_of(key[:8]))
            )
            if len(cells) < limits.PLACES_STEP:
                return sorted(shards)
            low = cells[-1][0] + b"\0"

    def _has_ended(self, shard: int) -> bool:
        return any(shard in layer.ended for layer in self.layers)

    # --- By number -------------------------------------------------------------------------------

    def numbered(self, number: int) -> ShardState | None:
        """Return the state that the index holds under a number; None if it is garbage."""
        state = self._numbered.get(number)
        if state is None:
            state = self.state(self.copies.get(number, number))
        return state if state is not None and state.id == number else None

    def loaded(self, number: int) -> ShardState | None:
        """Return the state under a number if it is in memory, else None."""
        return self._numbered.get(number)

    def is_current(self, state: ShardState) -> bool:
        """Return True if it is the state of its shard, not an incomplete or replaced copy."""
        return self._states.get(state.shard) is state

    def touch(self, state: ShardState) -> ShardState:
        """Direct changes of the shard to the newest layer; call it before a change."""
        state.part = self.new.shard(state.id)
        return state

    # --- Copies ----------------------------------------------------------------------------------

    def begin_copy(self, shard: int) -> ShardState:
        """Begin a copy of a shard; if the process ends before it is complete, it is deleted."""
        number = max([FIRST_COPY - 1, *self.copies, *self.building, *self.reclaiming]) + 1
        for layer in self.layers:
            number = max([number - 1, *layer.dropped, *layer.copies]) + 1
        state = ShardState(shard, StoredShard(ShardMeta(), number=number), self.marks)
        self._numbered[number] = state
        self.building.add(number)
        # Listed as garbage from the start; only completion removes it from the list.
        self.new.dropped.add(number)
        return state

    def end_copy(self, state: ShardState) -> None:
        """Complete the copy: from now on it is the shard."""
        before = self.state(state.shard)
        self.building.discard(state.id)
        self.reclaiming.discard(state.id)
        self.copies[state.id] = self.new.copies[state.id] = state.shard
        self.new.dropped.discard(state.id)
        self.new.ended.discard(state.shard)
        if before is not None:
            self._give_up(before)
        self._enter(state)
        self.touch(state)

    def drop_copy(self, state: ShardState) -> None:
        """Abandon the copy."""
        self.building.discard(state.id)
        self._give_up(state)

    # --- Cells -----------------------------------------------------------------------------------

    def cells_of(self, number: int, prefix: bytes = b"") -> dict[bytes, bytes]:
        """Return the cells under a number by kind and key, in order."""
        low = number_bytes(number) + prefix
        high = _after(low)
        stored: list[tuple[bytes, bytes]] = []
        while True:
            cells = self.cells.range(Table.CELLS, low, high, limit=limits.RECLAIM_STEP)
            stored += cells
            if len(cells) < limits.RECLAIM_STEP:
                break
            low = cells[-1][0] + b"\0"
        values = {key[8:]: value for key, value in joined(stored).items()}
        for part in reversed(parts_of(self.layers, number)):
            for key in part.cells_order.between(prefix, _after(prefix)) if prefix else part.cells:
                value = part.cells[key]
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
        return dict(sorted(values.items()))

    def cells_from(self, number: int, kind: bytes, low: bytes, limit: int) -> dict[bytes, bytes]:
        """Return the first cells of a kind from `low` on by key, in order.

        There are fewer than `limit` only at the end. The keys of the kind must have the same
        length, so that the parts of one value are adjacent.
        """
        values: dict[bytes, bytes] = {}
        at: bytes | None = kind + low
        while at is not None and len(values) < limit:
            page, at = self._page(number, at, _after(kind), limit)
            values.update((key[1:], value) for key, value in page)
        return dict(islice(values.items(), limit))

    def _page(
        self, number: int, low: bytes, high: bytes, limit: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return a page of cells within [low, high), in order, and the key of the next page."""
        stored, ends = self._stored_page(number, low, high, limit)
        changed: dict[bytes, bytes | None] = {}
        for part in reversed(parts_of(self.layers, number)):
            keys = part.cells_order.between(low, high, limit)
            changed.update((key, part.cells[key]) for key in keys)
            if len(keys) == limit:
                # Cells of this layer after its last key are unknown yet.
                ends.append(keys[-1] + b"\0")
        end = min(ends, default=None)
        if not changed:
            return list(stored.items()), end
        values = {**stored, **changed}
        page = [
            (key, value)
            for key in sorted(values)
            if (value := values[key]) is not None and (end is None or key < end)
        ]
        return page, end

    def _stored_page(
        self, number: int, low: bytes, high: bytes, limit: int
    ) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Return a page of the stored cells within [low, high), and where the rest may begin."""
        prefix = number_bytes(number)
        # The first cell may continue a value below `low`, the last one may be continued behind.
        page = self.cells.range(Table.CELLS, prefix + low, prefix + high, limit=limit + 2)
        ends: list[bytes] = []
        if len(page) == limit + 2:
            # The last value may have more parts than fit into this page.
            cut = page[-1][0][:-2]
            page = [cell for cell in page if cell[0][:-2] != cut] or self._parts(cut)
            ends.append(page[-1][0][8:] + b"\0")
        # Drop parts of a key below `low`, which sort behind it.
        stored = {key[8:]: value for key, value in joined(page).items() if key[8:] >= low}
        return stored, ends

    def _parts(self, key: bytes) -> list[tuple[bytes, bytes]]:
        """Return all stored parts of a value."""
        keys = part_keys(key, 0, part_count(self.cells.get(Table.CELLS, [first_part(key)])[0]))
        cells = zip(keys, self.cells.get(Table.CELLS, keys), strict=True)
        return [(name, value) for name, value in cells if value is not None]

    def cell_of(self, number: int, key: bytes) -> bytes | None:
        """Return the cell of this kind and key under a number, or None."""
        for part in parts_of(self.layers, number):
            if key in part.cells:
                return part.cells[key]
        at = number_bytes(number) + key
        return joined(self._parts(at)).get(at)

    def cells_at(self, number: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the cells of these kinds and keys, with at most two reads of the index."""
        changed: dict[bytes, bytes | None] = {}
        for part in reversed(parts_of(self.layers, number)):
            changed |= {key: part.cells[key] for key in keys if key in part.cells}
        prefix = number_bytes(number)
        # In order, neighbours are found on the same page.
        missing = sorted({prefix + key for key in keys if key not in changed})
        firsts = self.cells.get(Table.CELLS, list(map(first_part, missing)))
        stored = {at: first for at, first in zip(missing, firsts, strict=True) if first is not None}
        # Most have one part.
        whole = {at: first[2:] for at, first in stored.items() if first[:2] == b"\0\1"}
        if len(whole) < len(stored):
            whole |= self._joined({at: stored[at] for at in stored if at not in whole})
        return [changed[key] if key in changed else whole.get(prefix + key) for key in keys]

    def _joined(self, firsts: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Return whole values for the first parts that were read from the index."""
        rest = [
            name for at, first in firsts.items() for name in part_keys(at, 1, part_count(first))
        ]
        values = zip(rest, self.cells.get(Table.CELLS, rest), strict=True)
        parts = [(first_part(at), first) for at, first in firsts.items()]
        return joined([*parts, *((name, value) for name, value in values if value is not None)])

    def last_cell(self, number: int, prefix: bytes) -> bytes | None:
        """Return the greatest kind and key that begins with `prefix`, or None.

        Only for cells with ascending keys that are deleted from the lower end.
        """
        low = number_bytes(number) + prefix
        stored = self.cells.range(Table.CELLS, low, _after(low), limit=1, reverse=True)
        candidates = [key[8:-2] for key, _ in stored]
        for part in parts_of(self.layers, number):
            last = part.cells_order.last_before(_after(prefix))
            candidates += [last] if last is not None and last.startswith(prefix) else []
        return max(candidates, default=None)


def _after(prefix: bytes) -> bytes:
    """Return the first key after all that begin with `prefix`."""
    return (number_of(prefix) + 1).to_bytes(len(prefix), "big")
