"""Which rows lie where: the places of visible and of staged rows, in all layers and the index.

Rule 1: the layers are looked at before the index: what moves, moves from a layer into the index.
Rule 2: places do not overlap. A reader beside a checkpoint may see an old and a new one of the same
rows; it notices, and looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millrace import limits
from millrace.errors import Corrupt
from millrace.store.cells import Cells, Table
from millrace.store.overlay import Layers, Rows, firsts_between, parts_of, place_at
from millrace.store.place import Place, decode_place
from millrace.store.tables import (
    block_key,
    first_of,
    number_of,
    stage_of,
    stage_range,
    stages_range,
)

Found = tuple[int, Place]
"""First seq and place."""


class Blocks:
    """Finds places; visible ones on any thread, staged ones on the engine's."""

    def __init__(self, cells: Cells, layers: Callable[[], Layers]) -> None:
        self._cells = cells
        self._layers = layers

    def at(self, shard: int, seq: int) -> Found | None:
        """The place whose rows span `seq`, or None if nothing is left there."""
        rows = self._rows(shard)
        for level, layer in enumerate(rows):
            found = place_at(layer, seq)
            if (
                found is not None
                and seq < found[0] + found[1].span
                and not _is_replaced(found[0], rows[:level])
            ):
                return found
        found = self._stored_before(shard, seq, rows)
        return found if found is not None and seq < found[0] + found[1].span else None

    def _stored_before(self, shard: int, seq: int, rows: list[Rows]) -> Found | None:
        """The last place of the index that begins at or before `seq` and still counts."""
        low, high = block_key(shard, 0), block_key(shard, seq + 1)
        limit = 1
        while True:
            cells = self._cells.range(Table.BLOCKS, low, high, limit=limit, reverse=True)
            for key, value in cells:
                first = first_of(key)
                if not _is_replaced(first, rows):
                    return first, decode_place(value)
            if len(cells) < limit:
                return None
            high = cells[-1][0]
            limit = limits.PLACES_STEP

    def between(self, shard: int, low: int, high: int) -> Iterator[Found]:
        """The places with rows within [low, high], in order; found in steps."""
        is_begin = False
        while low <= high:
            page, low = self.page(shard, low, high, is_begin=is_begin)
            yield from page
            is_begin = True

    def after(self, shard: int, low: int, high: int) -> Found | None:
        """The first place with rows within [low, high]."""
        limit = 2
        while low <= high:
            page, low = self.page(shard, low, high, limit=limit, is_begin=limit > 2)
            if page:
                return page[0]
            limit = limits.PLACES_STEP
        return None

    def front(self, shard: int, low: int, high: int) -> int:
        """The first seq from `low` on that something may still lie at, looking no further than one
        step does."""
        # What a resync has taken over may begin before it.
        is_begin = False
        for _ in range(limits.FRONT_PAGES_MAX):
            if low > high:
                break
            page, after = self.page(shard, low, high, is_begin=is_begin)
            if page:
                return max(page[0][0], low)
            low, is_begin = after, True
        return low

    def page(
        self,
        shard: int,
        low: int,
        high: int,
        *,
        limit: int = limits.PLACES_STEP,
        is_begin: bool = False,
    ) -> tuple[list[Found], int]:
        """Some of the places with rows within [low, high], and the seq at which to go on.

        `is_begin`: nothing lies across `low`, as where an earlier page said to go on.
        """
        for _ in range(limits.LOOK_AGAIN_MAX):
            rows = self._rows(shard)
            begin = None if is_begin else self.at(shard, low)
            start = begin[0] if begin is not None else low
            page, after = self._page(shard, start, high, rows, limit)
            ends = [first + place.span for first, place in page]
            if all(end <= first for end, (first, _) in zip(ends, page[1:], strict=False)):
                return page, after
        raise Corrupt(f"shard {shard}: places of the rows {low} to {high} overlap")

    def _page(
        self, shard: int, start: int, high: int, rows: list[Rows], limit: int
    ) -> tuple[list[Found], int]:
        cells = self._cells.range(
            Table.BLOCKS,
            block_key(shard, start),
            block_key(shard, high + 1),
            limit=limit,
        )
        upto = first_of(cells[-1][0]) if len(cells) == limit else high
        found: dict[int, Place] = {}
        for key, value in cells:
            first = first_of(key)
            if not _is_replaced(first, rows):
                found[first] = decode_place(value)
        for level, layer in enumerate(rows):
            for first in firsts_between(layer, start, upto):
                if not _is_replaced(first, rows[:level]):
                    found[first] = layer[1][first]
        page = sorted(found.items())
        return page, max(upto, page[-1][0] + page[-1][1].span - 1 if page else 0) + 1

    def _rows(self, shard: int) -> list[Rows]:
        return [part.rows for part in parts_of(self._layers(), shard)]

    # --- Stages --------------------------------------------------------------------------------

    def stages(self, shard: int) -> list[str]:
        """The names of the stages that may have blocks."""
        low, high = stages_range(shard)
        found: set[str] = set()
        while cells := self._cells.range(Table.BLOCKS, low, high, limit=limits.PLACES_STEP):
            found.update(stage[1] for key, _ in cells if (stage := stage_of(key)) is not None)
            low = cells[-1][0] + b"\0"
        for part in parts_of(self._layers(), shard):
            found.update(name for name, _ in part.staged)
        return sorted(found)

    def staged(self, shard: int, name: str) -> list[tuple[int, Place]]:
        """Ordinal and place of a stage's blocks, in order."""
        low, high = stage_range(shard, name)
        found: dict[int, Place] = {}
        while True:
            cells = self._cells.range(Table.BLOCKS, low, high, limit=limits.PLACES_STEP)
            found.update((number_of(key[-8:]), decode_place(value)) for key, value in cells)
            if len(cells) < limits.PLACES_STEP:
                break
            low = cells[-1][0] + b"\0"
        for part in reversed(parts_of(self._layers(), shard)):
            for (stage, ordinal), place in part.staged.items():
                if stage == name:
                    if place is None:
                        found.pop(ordinal, None)
                    else:
                        found[ordinal] = place
        return sorted(found.items())


def _is_replaced(first: int, newer: list[Rows]) -> bool:
    """Whether one of the newer layers has its own word on the place that begins at `first`."""
    return any(first in places or first in gone for _, places, gone in newer)
