"""A bounded window onto the first cells of a kind, of which memory cannot hold all.

Delayed messages, messages with a priority, and groups have cells that are sorted by their turn. The
decider only ever needs the first ones.

Rule 1: every cell whose key lies below `known_to` is here; all others are only in the store.
Rule 2: the store answers as of the last folded batch. Later decisions are put on top of its answer,
in the order in which they were made.
Rule 3: a window that has grown too large evicts its last cells: they are in the store as well, or
will be when their batch is folded.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

C = TypeVar("C")
"""The type of a cell, which must not be modified once it is here."""


class CellWindow(Generic[C]):
    """The first cells of a kind, in the order of their keys."""

    __slots__ = ("_cells", "_keys", "_size", "known_to")

    def __init__(self, size: int, known_to: bytes | None = b"") -> None:
        """Hold up to twice `size` cells before the last ones are evicted."""
        self._size = size
        self._cells: dict[bytes, C] = {}
        self._keys: list[bytes] = []
        """A heap; may hold keys that are no longer in `_cells`."""
        self.known_to = known_to
        """The first key that may be missing here; None: all existing cells are here."""

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[tuple[bytes, C]]:
        """Yield the cells in the window, unordered."""
        return iter(self._cells.items())

    def first(self) -> tuple[bytes, C] | None:
        """Return the first cell; None if there is none below `known_to`."""
        keys, cells = self._keys, self._cells
        while keys and keys[0] not in cells:
            heapq.heappop(keys)
        return (keys[0], cells[keys[0]]) if keys else None

    def firsts(self, count: int) -> list[tuple[bytes, C]]:
        """Return the first cells in the window, up to `count`."""
        keys = self._keys
        cells: list[tuple[bytes, C]] = []
        while len(cells) < count and (first := self.first()) is not None:
            heapq.heappop(keys)
            if not cells or cells[-1][0] != first[0]:
                cells.append(first)
        for key, _ in cells:
            heapq.heappush(keys, key)
        return cells

    def take_below(self, high: bytes, limit: int) -> list[tuple[bytes, C]]:
        """Remove and return the first cells whose keys lie below `high`, up to `limit`."""
        keys, cells = self._keys, self._cells
        taken: list[tuple[bytes, C]] = []
        while keys and keys[0] < high and len(taken) < limit:
            key = heapq.heappop(keys)
            if key in cells:
                taken.append((key, cells.pop(key)))
        return taken

    def wanted_from(self) -> bytes | None:
        """Return the key from which the store must be read before `first` is known; None: no
        read."""
        return None if self.first() is not None else self.known_to

    def put(self, key: bytes, value: C) -> None:
        """Add a new cell, or replace a changed one."""
        if self.known_to is not None and key >= self.known_to:
            return
        if key not in self._cells:
            heapq.heappush(self._keys, key)
        self._cells[key] = value
        if len(self._cells) > 2 * self._size:
            self._shrink()

    def drop(self, key: bytes) -> None:
        """Remove a cell that was deleted."""
        self._cells.pop(key, None)

    def learn(
        self,
        stored: Sequence[tuple[bytes, C]],
        pending: Iterable[Mapping[bytes, C | None]],
        *,
        is_all: bool,
    ) -> None:
        """Add the store's cells from `known_to` on; `is_all`: there are none after them.

        `pending` holds the cells that were put or deleted (None) since the store's last fold,
        oldest first.
        """
        low = self.known_to
        if low is None:
            return
        self.known_to = None if is_all else stored[-1][0] + b"\0"
        cells = dict(stored)
        for changed in pending:
            for key, value in changed.items():
                if key < low or (self.known_to is not None and key >= self.known_to):
                    continue
                if value is None:
                    cells.pop(key, None)
                else:
                    cells[key] = value
        for key, value in cells.items():
            self.put(key, value)

    def _shrink(self) -> None:
        keys = sorted(self._cells)
        self.known_to = keys[self._size]
        self._cells = {key: self._cells[key] for key in keys[: self._size]}
        self._keys = keys[: self._size]
