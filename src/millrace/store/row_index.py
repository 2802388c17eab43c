"""The row index: finds the locations of visible and staged rows, in all layers and the index.

Rule 1: layers are read before the index, since entries move from a layer into the index only.
Rule 2: locations do not overlap. A reader concurrent with a checkpoint may see an old and a new
location of the same rows; it detects that, and reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millrace import limits
from millrace.errors import Corrupt
from millrace.store.cells import Cells, Table
from millrace.store.index_codec import (
    block_key,
    first_of,
    number_of,
    stage_of,
    stage_range,
    stages_range,
)
from millrace.store.overlay import Layers, Rows, firsts_between, location_at, parts_of
from millrace.store.row_location import RowLocation, decode_location

Located = tuple[int, RowLocation]
"""First seq and location."""


class RowIndex:
    """Finds row locations; visible rows on any thread, staged ones on the engine's."""

    def __init__(self, cells: Cells, layers: Callable[[], Layers]) -> None:
        self._cells = cells
        self._layers = layers

    def at(self, shard: int, seq: int) -> Located | None:
        """Return the location whose rows span `seq`, or None if no row is left there."""
        rows = self._rows(shard)
        for level, layer in enumerate(rows):
            located = location_at(layer, seq)
            if (
                located is not None
                and seq < located[0] + located[1].span
                and not _is_replaced(located[0], rows[:level])
            ):
                return located
        located = self._stored_before(shard, seq, rows)
        return located if located is not None and seq < located[0] + located[1].span else None

    def _stored_before(self, shard: int, seq: int, rows: list[Rows]) -> Located | None:
        """Return the last valid location in the index that begins at or before `seq`."""
        low, high = block_key(shard, 0), block_key(shard, seq + 1)
        limit = 1
        while True:
            cells = self._cells.range(Table.BLOCKS, low, high, limit=limit, reverse=True)
            for key, value in cells:
                first = first_of(key)
                if not _is_replaced(first, rows):
                    return first, decode_location(value)
            if len(cells) < limit:
                return None
            high = cells[-1][0]
            limit = limits.PLACES_STEP

    def between(self, shard: int, low: int, high: int) -> Iterator[Located]:
        """Yield the locations with rows within [low, high], in order; read in steps."""
        is_begin = False
        while low <= high:
            page, low = self.page(shard, low, high, is_begin=is_begin)
            yield from page
            is_begin = True

    def after(self, shard: int, low: int, high: int) -> Located | None:
        """Return the first location with rows within [low, high], or None."""
        limit = 2
        while low <= high:
            page, low = self.page(shard, low, high, limit=limit, is_begin=limit > 2)
            if page:
                return page[0]
            limit = limits.PLACES_STEP
        return None

    def front(self, shard: int, low: int, high: int) -> int:
        """Return the first seq from `low` on that may still have a location.

        At most `FRONT_PAGES_MAX` pages are read.
        """
        # Rows that a resync has taken over may begin before `low`.
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
    ) -> tuple[list[Located], int]:
        """Return a page of locations with rows within [low, high], and the seq of the next page.

        `is_begin`: no location spans `low`, as at the seq that an earlier page returned.
        """
        for _ in range(limits.LOOK_AGAIN_MAX):
            rows = self._rows(shard)
            begin = None if is_begin else self.at(shard, low)
            start = begin[0] if begin is not None else low
            page, after = self._page(shard, start, high, rows, limit)
            ends = [first + location.span for first, location in page]
            if all(end <= first for end, (first, _) in zip(ends, page[1:], strict=False)):
                return page, after
        raise Corrupt(f"shard {shard}: places of the rows {low} to {high} overlap")

    def _page(
        self, shard: int, start: int, high: int, rows: list[Rows], limit: int
    ) -> tuple[list[Located], int]:
        cells = self._cells.range(
            Table.BLOCKS,
            block_key(shard, start),
            block_key(shard, high + 1),
            limit=limit,
        )
        upto = first_of(cells[-1][0]) if len(cells) == limit else high
        locations: dict[int, RowLocation] = {}
        for key, value in cells:
            first = first_of(key)
            if not _is_replaced(first, rows):
                locations[first] = decode_location(value)
        for level, layer in enumerate(rows):
            for first in firsts_between(layer, start, upto):
                if not _is_replaced(first, rows[:level]):
                    locations[first] = layer[1][first]
        page = sorted(locations.items())
        return page, max(upto, page[-1][0] + page[-1][1].span - 1 if page else 0) + 1

    def _rows(self, shard: int) -> list[Rows]:
        return [part.rows for part in parts_of(self._layers(), shard)]

    # --- Stages --------------------------------------------------------------------------------

    def stages(self, shard: int) -> list[str]:
        """Return the names of the stages that may have blocks."""
        low, high = stages_range(shard)
        names: set[str] = set()
        while cells := self._cells.range(Table.BLOCKS, low, high, limit=limits.PLACES_STEP):
            names.update(stage[1] for key, _ in cells if (stage := stage_of(key)) is not None)
            low = cells[-1][0] + b"\0"
        for part in parts_of(self._layers(), shard):
            names.update(name for name, _ in part.staged)
        return sorted(names)

    def staged(self, shard: int, name: str) -> list[tuple[int, RowLocation]]:
        """Return ordinal and location of a stage's blocks, in order."""
        low, high = stage_range(shard, name)
        locations: dict[int, RowLocation] = {}
        while True:
            cells = self._cells.range(Table.BLOCKS, low, high, limit=limits.PLACES_STEP)
            locations.update((number_of(key[-8:]), decode_location(value)) for key, value in cells)
            if len(cells) < limits.PLACES_STEP:
                break
            low = cells[-1][0] + b"\0"
        for part in reversed(parts_of(self._layers(), shard)):
            for (stage, ordinal), location in part.staged.items():
                if stage == name:
                    if location is None:
                        locations.pop(ordinal, None)
                    else:
                        locations[ordinal] = location
        return sorted(locations.items())


def _is_replaced(first: int, newer: list[Rows]) -> bool:
    """Return True if a newer layer replaces or removes the location that begins at `first`."""
    return any(first in locations or first in gone for _, locations, gone in newer)
