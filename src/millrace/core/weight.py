"""How many bytes rows have, by regions of seqs.

Settles and deaths name numbers alone. So that what is kept can be weighed all the same, the decider
notes after each region of rows, a mebibyte or more, how many bytes were published so far.

Rule 1: at the end of a region the sum is exact; within one, rows count as if they were all alike.
Rule 2: regions grow with what they weigh together, so that there are few of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from millrace.core.model import Cell, Kind, WeightCell

WEIGHT_BYTES = 1024 * 1024
"""The least region of rows that is weighed: a cell says how many bytes it has."""

WEIGHT_SHARE = 512
"""A region has at least this part of all bytes that are weighed: a terabyte takes some thousand
cells."""

MAXIMUM_SHARE = 64
"""Where a queue has a maximum of bytes, a region need not have more than this part of it."""

WEIGHTS_STEP = 4
"""Regions before all that is wanted which are forgotten when a new one begins."""


class Scale:
    """The regions of a shard, and the bytes of all that was ever published to it."""

    __slots__ = ("_cells", "_ends", "pinned", "total")

    def __init__(self) -> None:
        self.total = 0
        self.pinned: dict[int, int] = {}
        """Pin → the seq up to which nothing was there to be weighed when it was made, if known."""
        self._ends: list[int] = []
        self._cells: list[WeightCell] = []

    def __len__(self) -> int:
        return len(self._ends)

    def cells(self) -> dict[int, WeightCell]:
        """Every region by its last seq."""
        return dict(zip(self._ends, self._cells, strict=True))

    def add(self, end: int, cell: WeightCell) -> None:
        """A region that comes after all others."""
        self._ends.append(end)
        self._cells.append(cell)

    def publish(
        self, size: int, last: int, front: Callable[[], int], most: int = 0
    ) -> dict[tuple[Kind, bytes], Cell | None]:
        """Rows of `size` bytes were published, up to `last`; returns the cells that change.

        Regions up to `front` need not be known any more. Where a queue has `most` bytes, they are
        parts of it.
        """
        self.total += size
        after, before = (self._ends[-1], self._cells[-1].upto) if self._ends else (0, 0)
        first = self._cells[0].before if self._cells else 0
        part = min(WEIGHT_BYTES, most // MAXIMUM_SHARE) if most else WEIGHT_BYTES
        least = max(part, (self.total - first) // WEIGHT_SHARE)
        if self.total - before < least:
            return {}
        cell = WeightCell(after, before, self.total)
        self.add(last, cell)
        changed: dict[tuple[Kind, bytes], Cell | None] = {(Kind.WEIGHT, _key(last)): cell}
        unwanted = front()
        for end in self._ends[:WEIGHTS_STEP]:
            if end > unwanted or len(self._ends) == 1:
                break
            changed[Kind.WEIGHT, _key(end)] = None
            del self._ends[0], self._cells[0]
        return changed

    def upto(self, seq: int, last: int) -> int:
        """Bytes of all rows up to `seq`, where `last` is the shard's last seq.

        Of rows before the oldest region that is known: as many as before that region.
        """
        at = bisect_left(self._ends, seq)
        if at < len(self._ends):
            cell, end = self._cells[at], self._ends[at]
            after, before, total = cell.after, cell.before, cell.upto
        else:
            after, before = (self._ends[-1], self._cells[-1].upto) if self._ends else (0, 0)
            end, total = last, self.total
        if seq <= after:
            return before
        return total if seq >= end else before + (total - before) * (seq - after) // (end - after)

    def mean(self, last: int, size: int) -> int:
        """Bytes of a row, rounded up, of those in the regions that are known and up to `last`.

        Of these, rows of `size` bytes were not published yet.
        """
        after, before = (self._cells[0].after, self._cells[0].before) if self._cells else (0, 0)
        return -(-(self.total - before + size) // (last - after)) if last > after else 0

    def before(self, size: int) -> int:
        """The last seq of a region after which rows of at least `size` bytes were published."""
        low, high = 0, len(self._ends)
        while low < high:
            middle = (low + high) // 2
            if self.total - self._cells[middle].upto >= size:
                low = middle + 1
            else:
                high = middle
        return self._ends[low - 1] if low else 0


def _key(seq: int) -> bytes:
    return seq.to_bytes(8, "big")
