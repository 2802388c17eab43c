"""What was folded since the last checkpoint.

Rule 1: an overlay is written to by one thread only, and not at all once it is frozen.
Rule 2: a newer layer wins over an older one, and every layer over the index.
Rule 3: the places of visible rows never overlap: one that a newer layer neither replaces nor
removes is valid.
Rule 4: other threads may read: what must be seen together is replaced together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from pyroaring import BitMap64

from millrace.core.changes import Changes
from millrace.store.order import KeyOrder
from millrace.store.place import Place
from millrace.store.tables import FileFacts

Rows = tuple[list[int], dict[int, Place], frozenset[int]]
"""First seqs, rising; first seq → place; first seqs whose places in older layers count no more."""

Extent = tuple[bool, int, str | None]
"""(Sealed or not, file or generation, stage or None): where blocks were put."""

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
        """Where visible rows lie. Appended to in place, replaced whole by anything else."""
        self.staged: dict[tuple[str, int], Place | None] = {}
        """(Stage, ordinal) → where its rows lie; None: no longer there."""
        self.moved: dict[tuple[str, int], int] = {}
        """(Stage, ordinal) → the first seq that its block was published under."""
        self.keys: dict[bytes, int] = {}
        """Key → the newest seq that was published under it."""
        self.key_drops: list[tuple[bytes, int]] = []
        """Keys whose entries go, if they still name the seq: the row was reclaimed."""
        self.cells: dict[bytes, bytes | None] = {}
        """Kind and key → value; None: deleted."""
        self.cells_order = KeyOrder(self.cells)
        self.marks: dict[tuple[int, int], BitMap64] = {}
        """(Pin, mark) → seqs."""
        self.extents: dict[Extent, list[int]] = {}
        """Where blocks were put → the lowest and the highest first seq, or ordinal, there."""

    def put(self, first: int, place: Place) -> None:
        """Rows that come after all others."""
        order, places, _ = self.rows
        places[first] = place
        order.append(first)
        extent = self.extents.get((place.sealed, place.home, None))
        if extent is None:
            self.extents[place.sealed, place.home, None] = [first, first]
        else:
            extent[1] = first

    def replace(self, removed: Iterable[int], put: Iterable[tuple[int, Place]]) -> None:
        """Other places for rows that were there before."""
        _, known, gone = self.rows
        places = known.copy()
        dead = set(gone)
        for first in removed:
            places.pop(first, None)
            dead.add(first)
        for first, place in put:
            places[first] = place
            extent = self.extents.setdefault((place.sealed, place.home, None), [first, first])
            extent[0] = min(extent[0], first)
            extent[1] = max(extent[1], first)
        self.rows = (sorted(places), places, frozenset(dead - places.keys()))

    def stage(self, name: str, ordinal: int, place: Place) -> None:
        self.staged[name, ordinal] = place
        extent = self.extents.setdefault((place.sealed, place.home, name), [ordinal, ordinal])
        extent[0] = min(extent[0], ordinal)
        extent[1] = max(extent[1], ordinal)

    def put_cells(self, changes: Changes) -> None:
        cells = self.cells
        for kind, key, value in changes.cells:
            cells[KINDS[kind] + key] = value

    def mark(self, pin: int, mark: int, seqs: BitMap64) -> None:
        known = self.marks.get((pin, mark))
        if known is None:
            # A copy: the caller may go on with its own.
            self.marks[pin, mark] = seqs.copy()
        else:
            known |= seqs


def place_at(rows: Rows, seq: int) -> tuple[int, Place] | None:
    """The last place of a layer that begins at or before `seq`."""
    order, places, _ = rows
    found = bisect_right(order, seq) - 1
    if found < 0:
        return None
    return order[found], places[order[found]]


def firsts_between(rows: Rows, low: int, high: int) -> list[int]:
    """The first seqs of the places of a layer that begin within [low, high]."""
    order = rows[0]
    return order[bisect_right(order, low - 1) : bisect_right(order, high)]


class Overlay:
    """One layer above the index: everything that was folded between two checkpoints."""

    __slots__ = ("copies", "dropped", "ended", "files", "homes", "shards")

    def __init__(self) -> None:
        self.shards: dict[int, ShardOverlay] = {}
        """By the number under which the index holds a shard."""
        self.ended: set[int] = set()
        """Shards that ended; older layers may not know it."""
        self.dropped: set[int] = set()
        """Numbers under which the index holds what nobody wants any more."""
        self.copies: dict[int, int] = {}
        """Copies that are complete → their shards."""
        self.files: dict[int, FileFacts | None] = {}
        """Sealed files; None: forgotten."""
        self.homes: list[tuple[bool, int]] = []
        """Generations and files in which nothing lies any more; their extents go."""

    def shard(self, number: int) -> ShardOverlay:
        found = self.shards.get(number)
        if found is None:
            found = self.shards[number] = ShardOverlay()
        return found


Layers = tuple[Overlay, ...]
"""The layers above the index, newest first; replaced whole, so that any thread may read it."""


def parts_of(layers: Layers, number: int) -> list[ShardOverlay]:
    """What the layers hold under a number, newest first."""
    return [part for layer in layers if (part := layer.shards.get(number)) is not None]
