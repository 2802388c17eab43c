"""What a view remembers of groups: who has messages in flight, who was given some back, and whose
turn it is.

All of it follows from the cells of leases, and from the ring of which the first turns are known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.group_cells import TurnCell
from millrace.core.ring import Ring
from millrace.core.window import Window


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """A group whose turn it is."""

    turn: int
    """0: it takes its turn with what it was given back."""
    group: int
    seqs: Sequence[int]
    """What it may give."""
    cell: TurnCell | None = None
    """Its own cell, where that was looked at; a partition has none."""


_NONE = BitMap64()
"""Most groups are never given anything back: they share this one, to which nothing is added."""


class Flight:
    """The messages of a group that were handed out and have not ended."""

    __slots__ = ("count", "is_limited", "more", "returned")

    def __init__(self, count: int = 0, more: bool | None = None) -> None:  # noqa: FBT001
        self.count = count
        self.returned = _NONE
        """Those of them that are ready again; see `give_back`."""
        self.more = more
        """Whether others wait that were never handed out; None: not known."""
        self.is_limited = False
        """Those that were given back wait for the group's rate."""

    def give_back(self, seq: int) -> None:
        """One of them is ready again."""
        if self.returned is _NONE:
            self.returned = BitMap64()
        self.returned.add(seq)


class Groups:
    """The groups of a shard, as far as anything happens to them."""

    __slots__ = ("again", "buckets", "cells", "flights", "ring")

    def __init__(self, known_to: bytes | None = None, front: int = 0) -> None:
        """Begin with an empty ring, or with one that is not known yet."""
        self.flights: dict[int, Flight] = {}
        self.again: OrderedDict[int, int] = OrderedDict()
        """Groups that were given messages back, and the last turn before their own."""
        self.ring = Ring(None if known_to is None else 0, front)
        self.buckets: Window[int] = Window(limits.WINDOW_CELLS, known_to)
        """When groups come back that wait for their rate."""
        self.cells: dict[int, TurnCell | None] = {}
        """Groups → their cells as they are now, None if there is none; of those that were looked at
        last. Every change of such a cell is written here as well."""

    def forget(self) -> None:
        """Of many cells only some are remembered; not while a batch is decided that needs them."""
        spare = len(self.cells) - limits.GROUPS_KNOWN
        if spare > limits.GROUPS_KNOWN:
            self.cells = dict(islice(self.cells.items(), spare, None))

    def load(self, held: Iterable[tuple[int, int]], returned: BitMap64, *, whole: bool) -> None:
        """Take in the seqs in flight and their groups."""
        for seq, group in held:
            flight = self.flights.setdefault(group, Flight())
            flight.count += 1
            if seq in returned:
                flight.give_back(seq)
        flights = self.flights
        back = [group for group in flights if flights[group].returned]
        for group in sorted(back, key=lambda group: flights[group].returned.min()):
            self.look(group, flights[group], whole=whole, turn=0)

    def look(self, group: int, flight: Flight, *, whole: bool, turn: int) -> None:
        """Let a group take its turn with what it was given back, or no longer.

        `whole`: not before all that is in flight of it is ready again.
        """
        is_ready = bool(flight.returned) and not flight.is_limited
        if is_ready and whole:
            is_ready = len(flight.returned) == flight.count
        if is_ready:
            self.again.setdefault(group, turn)
        else:
            self.again.pop(group, None)
