"""The layers above the index, and the shards that were loaded from both.

Everything that the parts of the disk store share is here; each of them does one thing with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from millrace import limits
from millrace.core.fold import ShardMeta
from millrace.core.model import GroupId
from millrace.store.blocks import Blocks
from millrace.store.cells import Cells, Table
from millrace.store.dead_rows import (
    KnownMarks,
    Marks,
    ShardState,
    new_shard,
)
from millrace.store.overlay import Layers, Overlay, parts_of
from millrace.store.tables import (
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


class Layered:
    """Shards, as of the last folded batch. Changed by the engine's thread alone."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.layers: Layers = (Overlay(),)
        self.groups: dict[GroupId, tuple[int, int]] = {}
        """Group → applied index and epoch."""
        self.reclaiming: set[int] = set()
        """Numbers under which the index still holds what nobody wants."""
        self.copies: dict[int, int] = {}
        """Numbers of copies that resyncs have made → their shards."""
        self.building: set[int] = set()
        """Copies that are being made."""
        self.marks = Marks(cells, lambda: self.layers)
        self.known = KnownMarks(self.marks, lambda: self.layers)
        self.blocks = Blocks(cells, lambda: self.layers)
        self._states: dict[int, ShardState] = {}
        self._numbered: dict[int, ShardState] = {}

    @property
    def new(self) -> Overlay:
        """The layer that takes what is folded."""
        return self.layers[0]

    # --- By shard --------------------------------------------------------------------------------

    def state(self, shard: int) -> ShardState | None:
        """The shard, loaded when it is first asked for; None if there is none."""
        found = self._states.get(shard)
        if found is None and not self._has_ended(shard):
            low, high = shard_range(shard)
            stored = joined(self.cells.range(Table.META, low, high, limit=limits.PLACES_STEP))
            if stored:
                known = decode_shard(stored[number_bytes(shard)])
                found = ShardState(shard, known, self.marks)
                self._enter(found)
                if known.sources:
                    self.marks.merging.add(found.id)
        return found

    def _enter(self, state: ShardState) -> None:
        self._states[state.shard] = self._numbered[state.id] = state

    def must(self, shard: int) -> ShardState:
        """The shard, which the caller knows to be there."""
        found = self._states.get(shard)
        if found is None:
            found = self.state(shard)
        if found is None:
            raise KeyError(shard)
        return found

    def make(self, shard: int) -> ShardState:
        """A shard that begins now."""
        state = ShardState(shard, new_shard(), self.marks)
        self._enter(state)
        return state

    def drop(self, state: ShardState) -> None:
        """The shard ends at once; what the index holds of it is removed later."""
        self.new.ended.add(state.shard)
        self._states.pop(state.shard, None)
        self._give_up(state)

    def _give_up(self, state: ShardState) -> None:
        """Nobody wants what the index holds under this number any more."""
        self.new.shards.pop(state.id, None)
        self.new.dropped.add(state.id)
        self._numbered.pop(state.id, None)

    def all(self) -> list[int]:
        """Every shard there is."""
        found = set(self._states)
        low = b""
        while True:
            cells = self.cells.range(Table.META, low, b"\xff" * 10, limit=limits.PLACES_STEP)
            found.update(
                shard for key, _ in cells if not self._has_ended(shard := number_of(key[:8]))
            )
            if len(cells) < limits.PLACES_STEP:
                return sorted(found)
            low = cells[-1][0] + b"\0"

    def _has_ended(self, shard: int) -> bool:
        return any(shard in layer.ended for layer in self.layers)

    # --- By number -------------------------------------------------------------------------------

    def numbered(self, number: int) -> ShardState | None:
        """What the index holds under a number; None if nobody wants it any more."""
        found = self._numbered.get(number)
        if found is None:
            found = self.state(self.copies.get(number, number))
        return found if found is not None and found.id == number else None

    def loaded(self, number: int) -> ShardState | None:
        """As `numbered`, if it is in memory."""
        return self._numbered.get(number)

    def is_current(self, state: ShardState) -> bool:
        """Whether it is what is known of its shard, and not a copy in the making."""
        return self._states.get(state.shard) is state

    def touch(self, state: ShardState) -> ShardState:
        """The shard is about to be changed: what changes goes to the newest layer."""
        state.part = self.new.shard(state.id)
        return state

    # --- Copies ----------------------------------------------------------------------------------

    def begin_copy(self, shard: int) -> ShardState:
        """A new copy of a shard; if the process ends before it is complete, it is removed."""
        number = max([FIRST_COPY - 1, *self.copies, *self.building, *self.reclaiming]) + 1
        for layer in self.layers:
            number = max([number - 1, *layer.dropped, *layer.copies]) + 1
        state = ShardState(shard, StoredShard(ShardMeta(), number=number), self.marks)
        self._numbered[number] = state
        self.building.add(number)
        # Listed as unwanted from the start: only what is completed is taken off the list.
        self.new.dropped.add(number)
        return state

    def end_copy(self, state: ShardState) -> None:
        """The copy is complete: from now on it is the shard."""
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
        """The copy will not be completed."""
        self.building.discard(state.id)
        self._give_up(state)

    # --- Cells -----------------------------------------------------------------------------------

    def cells_of(self, number: int, prefix: bytes = b"") -> dict[bytes, bytes]:
        """Kind and key → value of the cells under a number, in order."""
        low = number_bytes(number) + prefix
        high = _after(low)
        stored: list[tuple[bytes, bytes]] = []
        while True:
            cells = self.cells.range(Table.CELLS, low, high, limit=limits.RECLAIM_STEP)
            stored += cells
            if len(cells) < limits.RECLAIM_STEP:
                break
            low = cells[-1][0] + b"\0"
        found = {key[8:]: value for key, value in joined(stored).items()}
        for part in reversed(parts_of(self.layers, number)):
            for key in part.cells_order.between(prefix, _after(prefix)) if prefix else part.cells:
                value = part.cells[key]
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = value
        return dict(sorted(found.items()))

    def cells_from(self, number: int, kind: bytes, low: bytes, limit: int) -> dict[bytes, bytes]:
        """Key → value of the first cells of a kind from `low` on, in order.

        There are fewer than `limit` only where there are no more. Its keys have the same length, so
        that the parts of one value lie side by side.
        """
        found: dict[bytes, bytes] = {}
        at: bytes | None = kind + low
        while at is not None and len(found) < limit:
            page, at = self._page(number, at, _after(kind), limit)
            found.update((key[1:], value) for key, value in page)
        return dict(islice(found.items(), limit))

    def _page(
        self, number: int, low: bytes, high: bytes, limit: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Some of the cells within [low, high), in order, and where the next ones begin."""
        known, ends = self._stored_page(number, low, high, limit)
        changed: dict[bytes, bytes | None] = {}
        for part in reversed(parts_of(self.layers, number)):
            keys = part.cells_order.between(low, high, limit)
            changed.update((key, part.cells[key]) for key in keys)
            if len(keys) == limit:
                # What comes after the last of them in this layer is not known yet.
                ends.append(keys[-1] + b"\0")
        end = min(ends, default=None)
        if not changed:
            return list(known.items()), end
        found = {**known, **changed}
        page = [
            (key, value)
            for key in sorted(found)
            if (value := found[key]) is not None and (end is None or key < end)
        ]
        return page, end

    def _stored_page(
        self, number: int, low: bytes, high: bytes, limit: int
    ) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Some of the cells within [low, high) that the index holds, and where others may begin."""
        prefix = number_bytes(number)
        # One that `low` goes on from may be the first, one that goes on behind them the last.
        page = self.cells.range(Table.CELLS, prefix + low, prefix + high, limit=limit + 2)
        ends: list[bytes] = []
        if len(page) == limit + 2:
            # The last one may have more parts than this page has room for.
            cut = page[-1][0][:-2]
            page = [cell for cell in page if cell[0][:-2] != cut] or self._parts(cut)
            ends.append(page[-1][0][8:] + b"\0")
        # Parts of a key that `low` goes on from lie behind it.
        stored = {key[8:]: value for key, value in joined(page).items() if key[8:] >= low}
        return stored, ends

    def _parts(self, key: bytes) -> list[tuple[bytes, bytes]]:
        """All parts of a value that the index holds."""
        keys = part_keys(key, 0, part_count(self.cells.get(Table.CELLS, [first_part(key)])[0]))
        found = zip(keys, self.cells.get(Table.CELLS, keys), strict=True)
        return [(name, value) for name, value in found if value is not None]

    def cell_of(self, number: int, key: bytes) -> bytes | None:
        """The cell of this kind and key under a number, or None."""
        for part in parts_of(self.layers, number):
            if key in part.cells:
                return part.cells[key]
        at = number_bytes(number) + key
        return joined(self._parts(at)).get(at)

    def cells_at(self, number: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """The cells of these kinds and keys under a number, by two calls to the index at most."""
        known: dict[bytes, bytes | None] = {}
        for part in reversed(parts_of(self.layers, number)):
            known |= {key: part.cells[key] for key in keys if key in part.cells}
        prefix = number_bytes(number)
        # In order, neighbours are found on the same page.
        missing = sorted({prefix + key for key in keys if key not in known})
        firsts = self.cells.get(Table.CELLS, list(map(first_part, missing)))
        stored = {at: first for at, first in zip(missing, firsts, strict=True) if first is not None}
        # Most have one part.
        whole = {at: first[2:] for at, first in stored.items() if first[:2] == b"\0\1"}
        if len(whole) < len(stored):
            whole |= self._joined({at: stored[at] for at in stored if at not in whole})
        return [known[key] if key in known else whole.get(prefix + key) for key in keys]

    def _joined(self, firsts: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Whole values, by the first parts that the index holds of them."""
        rest = [
            name for at, first in firsts.items() for name in part_keys(at, 1, part_count(first))
        ]
        values = zip(rest, self.cells.get(Table.CELLS, rest), strict=True)
        parts = [(first_part(at), first) for at, first in firsts.items()]
        return joined([*parts, *((name, value) for name, value in values if value is not None)])

    def last_cell(self, number: int, prefix: bytes) -> bytes | None:
        """The greatest kind and key that begins with `prefix`; only for cells that rise in number
        and are dropped from the other end."""
        low = number_bytes(number) + prefix
        stored = self.cells.range(Table.CELLS, low, _after(low), limit=1, reverse=True)
        found = [key[8:-2] for key, _ in stored]
        for part in parts_of(self.layers, number):
            last = part.cells_order.last_before(_after(prefix))
            found += [last] if last is not None and last.startswith(prefix) else []
        return max(found, default=None)


def _after(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`."""
    return (number_of(prefix) + 1).to_bytes(len(prefix), "big")
