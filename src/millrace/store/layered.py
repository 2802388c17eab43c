"""The layers above the index, and the shards that were loaded from both.

Everything that the parts of the disk store share is here; each of them does one thing with it.
"""

from __future__ import annotations

from millrace import limits
from millrace.core.model import GroupId
from millrace.store.blocks import Blocks
from millrace.store.cells import Cells, Table
from millrace.store.ledger import KnownMarks, Marks, ShardState, new_shard
from millrace.store.overlay import Layers, Overlay, parts_of
from millrace.store.tables import (
    decode_shard,
    joined,
    number_bytes,
    number_of,
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
        """Shards that ended, and of which the index still holds something."""
        self.marks = Marks(cells, lambda: self.layers)
        self.known = KnownMarks(self.marks, lambda: self.layers)
        self.blocks = Blocks(cells, lambda: self.layers)
        self._states: dict[int, ShardState] = {}

    @property
    def new(self) -> Overlay:
        """The layer that takes what is folded."""
        return self.layers[0]

    def state(self, shard: int) -> ShardState | None:
        """The shard, loaded when it is first asked for; None if there is none."""
        found = self._states.get(shard)
        if found is None and not self._is_dropped(shard):
            low, high = shard_range(shard)
            stored = joined(self.cells.range(Table.META, low, high, limit=limits.PLACES_STEP))
            if stored:
                known = decode_shard(stored[number_bytes(shard)])
                found = self._states[shard] = ShardState(shard, known, self.marks)
                if known.sources:
                    self.marks.merging.add(shard)
        return found

    def must(self, shard: int) -> ShardState:
        """The shard, which the caller knows to be there."""
        found = self.state(shard)
        if found is None:
            raise KeyError(shard)
        return found

    def make(self, shard: int) -> ShardState:
        """A shard that begins now."""
        state = self._states[shard] = ShardState(shard, new_shard(), self.marks)
        return state

    def touch(self, state: ShardState) -> ShardState:
        """The shard is about to be changed: what changes goes to the newest layer."""
        state.part = self.new.shard(state.id)
        return state

    def drop(self, shard: int) -> None:
        """The shard ends at once; what the index holds of it is removed later."""
        self.new.shards.pop(shard, None)
        self.new.dropped.add(shard)
        self._states.pop(shard, None)

    def loaded(self, shard: int) -> ShardState | None:
        """The shard if it is in memory."""
        return self._states.get(shard)

    def all(self) -> list[int]:
        """Every shard there is."""
        found = {shard for shard in self._states if not self._is_dropped(shard)}
        low = b""
        while True:
            cells = self.cells.range(Table.META, low, b"\xff" * 10, limit=limits.PLACES_STEP)
            found.update(
                shard for key, _ in cells if not self._is_dropped(shard := number_of(key[:8]))
            )
            if len(cells) < limits.PLACES_STEP:
                return sorted(found)
            low = cells[-1][0] + b"\0"

    def _is_dropped(self, shard: int) -> bool:
        return shard in self.reclaiming or any(shard in layer.dropped for layer in self.layers)

    def cells_of(self, shard: int, prefix: bytes = b"") -> dict[bytes, bytes]:
        """Kind and key → value of the shard's cells, in order."""
        low = number_bytes(shard) + prefix
        high = _after(low)
        stored: list[tuple[bytes, bytes]] = []
        while True:
            cells = self.cells.range(Table.CELLS, low, high, limit=limits.RECLAIM_STEP)
            stored += cells
            if len(cells) < limits.RECLAIM_STEP:
                break
            low = cells[-1][0] + b"\0"
        found = {key[8:]: value for key, value in joined(stored).items()}
        for part in reversed(parts_of(self.layers, shard)):
            for key, value in part.cells.items():
                if not key.startswith(prefix):
                    continue
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = value
        return dict(sorted(found.items()))

    def last_cell(self, shard: int, prefix: bytes) -> bytes | None:
        """The greatest kind and key that begins with `prefix`; only for cells that rise in number
        and are dropped from the other end."""
        low = number_bytes(shard) + prefix
        stored = self.cells.range(Table.CELLS, low, _after(low), limit=1, reverse=True)
        found = [key[8:-2] for key, _ in stored]
        for part in parts_of(self.layers, shard):
            found += [key for key in part.cells if key.startswith(prefix)]
        return max(found, default=None)


def _after(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`."""
    return (number_of(prefix) + 1).to_bytes(len(prefix), "big")
