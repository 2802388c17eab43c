"""Overlays (memtables): the changes folded since the last checkpoint.

Rule 1: one thread writes to an overlay, and none once it is frozen.
Rule 2: a newer layer overrides an older one, and every layer overrides the index.
Rule 3: the locations of visible rows never overlap: one that a newer layer neither replaces nor
removes is valid.
Rule 4: other threads may read: values that belong together are replaced together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import islice
from typing import Generic, TypeVar

from pyroaring import BitMap64

from millrace.core.changes import Changes
from millrace.store.index_codec import FileFacts
from millrace.store.row_location import RowLocation

Rows = tuple[list[int], dict[int, RowLocation], frozenset[int]]
"""First seqs, ascending; first seq → location; first seqs whose older locations are removed."""

Extent = tuple[bool, int, str | None]
"""(Sealed or not, file or generation, stage or None): a container of blocks."""

KINDS = [bytes([kind]) for kind in range(256)]
"""A cell's kind as the first byte of its key."""


class ShardOverlay:
    """One shard's part of an overlay."""

    __slots__ = (
        "cells",
        "cells_order",
        "extents",
        "key_drops",
        "keys",
        "marks",
        "moved",
        "rows",
        "staged",
    )

    def __init__(self) -> None:
        self.rows: Rows = ([], {}, frozenset())
        """Locations of visible rows. Appended to in place; any other change replaces the tuple."""
        self.staged: dict[tuple[str, int], RowLocation | None] = {}
        """(Stage, ordinal) → location of its rows; None: removed."""
        self.moved: dict[tuple[str, int], int] = {}
        """(Stage, ordinal) → first seq of its published block."""
        self.keys: dict[bytes, int] = {}
        """Key → the newest seq that was published with it."""
        self.key_drops: list[tuple[bytes, int]] = []
        """Keys to delete if they still name the seq, whose row was reclaimed."""
        self.cells: dict[bytes, bytes | None] = {}
        """Kind and key → value; None: deleted."""
        self.cells_order = KeyOrder(self.cells)
        self.marks: dict[tuple[int, int], BitMap64] = {}
        """(Pin, mark) → seqs."""
        self.extents: dict[Extent, list[int]] = {}
        """Container → the lowest and the highest first seq, or ordinal, of its blocks."""

    def put(self, first: int, location: RowLocation) -> None:
        """Append the location of rows that come after all others."""
        order, locations, _ = self.rows
        locations[first] = location
        order.append(first)
        extent = self.extents.get((location.sealed, location.home, None))
        if extent is None:
            self.extents[location.sealed, location.home, None] = [first, first]
        else:
            extent[1] = first

    def replace(self, removed: Iterable[int], put: Iterable[tuple[int, RowLocation]]) -> None:
        """Replace the locations of existing rows."""
        _, old_locations, gone = self.rows
        locations = old_locations.copy()
        dead = set(gone)
        for first in removed:
            locations.pop(first, None)
            dead.add(first)
        for first, location in put:
            locations[first] = location
            extent = self.extents.setdefault((location.sealed, location.home, None), [first, first])
            extent[0] = min(extent[0], first)
            extent[1] = max(extent[1], first)
        self.rows = (sorted(locations), locations, frozenset(dead - locations.keys()))

    def stage(self, name: str, ordinal: int, location: RowLocation) -> None:
        self.staged[name, ordinal] = location
        extent = self.extents.setdefault((location.sealed, location.home, name), [ordinal, ordinal])
        extent[0] = min(extent[0], ordinal)
        extent[1] = max(extent[1], ordinal)

    def put_cells(self, changes: Changes) -> None:
        cells = self.cells
        for kind, key, value in changes.cells:
            cells[KINDS[kind] + key] = value

    def mark(self, pin: int, mark: int, seqs: BitMap64) -> None:
        marked = self.marks.get((pin, mark))
        if marked is None:
            # Copy it: the caller may change its own.
            self.marks[pin, mark] = seqs.copy()
        else:
            marked |= seqs


def location_at(rows: Rows, seq: int) -> tuple[int, RowLocation] | None:
    """Return the last location of a layer that begins at or before `seq`."""
    order, locations, _ = rows
    at = bisect_right(order, seq) - 1
    if at < 0:
        return None
    return order[at], locations[order[at]]


def firsts_between(rows: Rows, low: int, high: int) -> list[int]:
    """Return the first seqs of the locations of a layer that begin within [low, high]."""
    order = rows[0]
    return order[bisect_right(order, low - 1) : bisect_right(order, high)]


class Overlay:
    """One layer above the index: all changes folded between two checkpoints."""

    __slots__ = ("copies", "dropped", "ended", "files", "homes", "shards")

    def __init__(self) -> None:
        self.shards: dict[int, ShardOverlay] = {}
        """By the number under which the index holds a shard."""
        self.ended: set[int] = set()
        """Dropped shards; older layers may still have them."""
        self.dropped: set[int] = set()
        """Numbers under which the index holds garbage."""
        self.copies: dict[int, int] = {}
        """Completed copies → their shards."""
        self.files: dict[int, FileFacts | None] = {}
        """Sealed files; None: removed."""
        self.homes: list[tuple[bool, int]] = []
        """Generations and files that are empty now; their extents are deleted."""

    def shard(self, number: int) -> ShardOverlay:
        part = self.shards.get(number)
        if part is None:
            part = self.shards[number] = ShardOverlay()
        return part


Layers = tuple[Overlay, ...]
"""The layers above the index, newest first; replaced whole, so that any thread may read it."""


def parts_of(layers: Layers, number: int) -> list[ShardOverlay]:
    """Return the parts of the layers for a number, newest first."""
    return [part for layer in layers if (part := layer.shards.get(number)) is not None]


# --- Ordered keys of a growing table -------------------------------------------------------------
#
# Rule 5: keys are sorted lazily, by the first range query after they were added.
# Rule 6: a key is sorted a few times, however many queries there are: each sorted run is less than
# half as long as the one before it, so that there are few runs.
# Rule 7: no key is ever removed from the table.

V = TypeVar("V")


class KeyOrder(Generic[V]):
    """The sorted keys of one table, for range queries."""

    __slots__ = ("_runs", "_table")

    def __init__(self, table: dict[bytes, V]) -> None:
        self._table = table
        self._runs: tuple[list[bytes], ...] = ()
        """Replaced as a whole, so that any thread may query a table that no longer grows."""

    def between(self, low: bytes, high: bytes, limit: int | None = None) -> list[bytes]:
        """Return the first keys within [low, high), at most `limit`."""
        keys: list[bytes] = []
        for run in self._sorted():
            first = bisect_left(run, low)
            last = bisect_left(run, high, first)
            keys += run[first : last if limit is None else min(last, first + limit)]
        keys.sort()
        return keys[:limit]

    def last_before(self, high: bytes) -> bytes | None:
        """Return the last key below `high`, or None."""
        ends = [(run, bisect_left(run, high)) for run in self._sorted()]
        return max((run[end - 1] for run, end in ends if end), default=None)

    def _sorted(self) -> tuple[list[bytes], ...]:
        runs = self._runs
        new = len(self._table) - sum(map(len, runs))
        if new:
            # A dictionary keeps the order of insertion: the new keys are its last.
            newest = sorted(islice(reversed(self._table), new))
            kept_runs = list(runs)
            while kept_runs and len(kept_runs[-1]) <= 2 * len(newest):
                newest = sorted(kept_runs.pop() + newest)
            self._runs = runs = (*kept_runs, newest)
        return runs
