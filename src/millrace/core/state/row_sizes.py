"""Estimates of the bytes of rows, by regions of seqs.

Settles and deaths only name seqs. To know the size of the kept rows all the same, the decider
records the published bytes after each region of rows, of a mebibyte or more.

Rule 1: at the end of a region the sum is exact; within one, all rows count as equally large.
Rule 2: regions grow with their total, so that there are few of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from millrace.core.cells import Cell, Kind, RowSizesCell

WEIGHT_BYTES = 1024 * 1024
"""Smallest region of rows with a cell of its own, in bytes."""

WEIGHT_SHARE = 512
"""A region has at least this part of all counted bytes: a terabyte takes a few thousand cells."""

MAXIMUM_SHARE = 64
"""If a queue has a limit of bytes, a region need not exceed this part of it."""

WEIGHTS_STEP = 4
"""Obsolete regions that are deleted when a new one begins."""


class RowSizes:
    """The regions of a shard, and the total bytes ever published to it."""

    __slots__ = ("_cells", "_ends", "pinned", "total")

    def __init__(self) -> None:
        self.total = 0
        self.pinned: dict[int, int] = {}
        """Pin → the seq up to which no rows were counted when it was made, if known."""
        self._ends: list[int] = []
        self._cells: list[RowSizesCell] = []

    def __len__(self) -> int:
        return len(self._ends)

    def cells(self) -> dict[int, RowSizesCell]:
        """Return every region by its last seq."""
        return dict(zip(self._ends, self._cells, strict=True))

    def add(self, end: int, cell: RowSizesCell) -> None:
        """Add a region after all others."""
        self._ends.append(end)
        self._cells.append(cell)

    def publish(
        self, size: int, last: int, front: Callable[[], int], limit: int = 0
    ) -> dict[tuple[Kind, bytes], Cell | None]:
        """Count published rows of `size` bytes, up to the seq `last`; returns the changed cells.

        Regions up to `front` are no longer needed. If the queue has a limit of `limit` bytes,
        regions are parts of it.
        """
        self.total += size
        after, before = (self._ends[-1], self._cells[-1].upto) if self._ends else (0, 0)
        first = self._cells[0].before if self._cells else 0
        part = min(WEIGHT_BYTES, limit // MAXIMUM_SHARE) if limit else WEIGHT_BYTES
        least = max(part, (self.total - first) // WEIGHT_SHARE)
        if self.total - before < least:
            return {}
        cell = RowSizesCell(after, before, self.total)
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
        """Return the bytes of all rows up to `seq`; `last` is the shard's last seq.

        For rows before the oldest known region it is the total before that region.
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
        """Return the mean bytes of a row, rounded up, in the known regions up to `last`.

        Rows of `size` bytes among them were not published yet.
        """
        after, before = (self._cells[0].after, self._cells[0].before) if self._cells else (0, 0)
        return -(-(self.total - before + size) // (last - after)) if last > after else 0

    def before(self, size: int) -> int:
        """Return the last seq of a region after which at least `size` bytes were published."""
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
