"""In-memory cells: the test double of `LmdbCells` for the simulator.

It implements the same interface over an in-memory image of a disk. A commit is atomic: a crash
leaves an image with all of it or none, and `fail_next` chooses which. Nothing here uses a clock or
random numbers, so that a seed reproduces a whole run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType

from millrace import errors
from millrace.store.cells import Table, Writes, check_bounds

Image = Mapping[Table, Mapping[bytes, bytes]]
"""The immutable content of a disk after a crash."""


class Room(Enum):
    """Free space on the simulated disk."""

    AMPLE = "ample"
    BALLAST = "ballast"
    """Only the ballast, which is enough for every commit."""
    NONE = "none"


class MemoryCells:
    """Cells over an image; empty without one."""

    def __init__(self, image: Image | None = None) -> None:
        given: Image = {} if image is None else image
        self.room = Room.AMPLE
        """Set by the simulator."""
        self._values = {table: dict(given.get(table, {})) for table in Table}
        self._orders: dict[Table, list[bytes]] = {}
        self._failure: errors.MillraceError | None = None
        self._next_is_applied: bool | None = None
        self._is_short = False

    def image(self) -> Image:
        """Return the image that a crash would leave now, for the next `MemoryCells`."""
        return MappingProxyType(
            {table: MappingProxyType(dict(values)) for table, values in self._values.items()}
        )

    def fail_next(self, *, is_applied: bool) -> None:
        """Let the next commit raise `DiskFailed`, with all of it in the image or none."""
        self._next_is_applied = is_applied

    @property
    def short_of_space(self) -> bool:
        return self._is_short

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        self._must_live()
        check_bounds(keys)
        return list(map(self._values[table].get, keys))

    def range(
        self, table: Table, low: bytes, high: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        self._must_live()
        values = self._values[table]
        order = self._orders.get(table)
        if order is None:
            order = self._orders[table] = sorted(values)
        start, end = bisect_left(order, low), bisect_left(order, high)
        keys = order[start:end]
        if reverse:
            keys.reverse()
        return [(key, values[key]) for key in keys[:limit]]

    def commit(self, writes: Writes) -> None:
        self._must_live()
        for cells in writes.values():
            check_bounds(list(cells), list(cells.values()))
        if not any(writes.values()):
            return
        is_failing, is_applied = self._next_is_applied is not None, self._next_is_applied
        self._next_is_applied = None
        if self.room is not Room.AMPLE:
            self._is_short = True
        if self.room is Room.NONE:
            raise errors.Full("no room for the index; nothing was committed")
        if not is_failing or is_applied:
            for table, cells in writes.items():
                self._apply(table, cells)
        if is_failing:
            self._failure = errors.DiskFailed("the simulated disk failed during a commit")
            raise self._failure

    def maintain(self) -> None:
        self._must_live()
        self._is_short = self.room is not Room.AMPLE

    def check(self) -> list[str]:
        """Return no findings: memory always holds exactly the committed values."""
        self._must_live()
        return []

    def close(self) -> None:
        self._failure = errors.Closed("the cells are closed; open them again")

    def _must_live(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)

    def _apply(self, table: Table, cells: Mapping[bytes, bytes | None]) -> None:
        values = self._values[table]
        for key, value in cells.items():
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        # The next range sorts them again.
        self._orders.pop(table, None)
