"""A bounded window onto cells of which there may be more than memory should hold.

Messages that wait for their time, for their priority or for their group have cells of their own,
sorted by when they come to their turn. The decider only ever needs the first ones.

Rule 1: every cell whose key lies below `known_to` is here; the others are in the store alone.
Rule 2: the store answers as of the last folded batch. What was decided since is put on top of its
answer, in the order in which it was decided.
Rule 3: a window that has grown too large forgets its last cells: they are in the store as well, or
will be when their batch is folded.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

C = TypeVar("C")
"""What a cell holds. Not to be changed once it is here."""


class Window(Generic[C]):
    """The first cells of a kind, in the order of their keys."""

    __slots__ = ("_cells", "_keys", "_size", "known_to")

    def __init__(self, size: int, known_to: bytes | None = b"") -> None:
        """Hold up to twice `size` cells before the last ones are forgotten."""
        self._size = size
        self._cells: dict[bytes, C] = {}
        self._keys: list[bytes] = []
        """A heap; may hold keys that are no longer in `_cells`."""
        self.known_to = known_to
        """The first key that may be unknown; None: all cells there are, are here."""

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[tuple[bytes, C]]:
        """Yield the cells that are here, in no order."""
        return iter(self._cells.items())

    def first(self) -> tuple[bytes, C] | None:
        """The first cell; None if there is none below `known_to`."""
        keys, cells = self._keys, self._cells
        while keys and keys[0] not in cells:
            heapq.heappop(keys)
        return (keys[0], cells[keys[0]]) if keys else None

    def firsts(self, count: int) -> list[tuple[bytes, C]]:
        """The first cells that are here, up to so many."""
        keys = self._keys
        found: list[tuple[bytes, C]] = []
        while len(found) < count and (first := self.first()) is not None:
            heapq.heappop(keys)
            if not found or found[-1][0] != first[0]:
                found.append(first)
        for key, _ in found:
            heapq.heappush(keys, key)
        return found

    def take_below(self, high: bytes, most: int) -> list[tuple[bytes, C]]:
        """Take out the first cells whose keys lie below `high`, up to so many."""
        keys, cells = self._keys, self._cells
        taken: list[tuple[bytes, C]] = []
        while keys and keys[0] < high and len(taken) < most:
            key = heapq.heappop(keys)
            if key in cells:
                taken.append((key, cells.pop(key)))
        return taken

    def wanted_from(self) -> bytes | None:
        """From which key on the store must be asked before `first` can be trusted, if at all."""
        return None if self.first() is not None else self.known_to

    def put(self, key: bytes, value: C) -> None:
        """A cell is new, or was changed."""
        if self.known_to is not None and key >= self.known_to:
            return
        if key not in self._cells:
            heapq.heappush(self._keys, key)
        self._cells[key] = value
        if len(self._cells) > 2 * self._size:
            self._shrink()

    def drop(self, key: bytes) -> None:
        """A cell is no longer there."""
        self._cells.pop(key, None)

    def learn(
        self,
        found: Sequence[tuple[bytes, C]],
        pending: Iterable[Mapping[bytes, C | None]],
        *,
        is_all: bool,
    ) -> None:
        """Take in the store's cells from `known_to` on; `is_all`: it has no others behind them.

        `pending` is what was put, or deleted (None), since the store last folded, oldest first.
        """
        low = self.known_to
        if low is None:
            return
        self.known_to = None if is_all else found[-1][0] + b"\0"
        cells = dict(found)
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
