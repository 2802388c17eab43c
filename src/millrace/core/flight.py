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
    again: int = 0
    """So many of `seqs`, the first ones, were given back; the others never were in flight."""


NEVER_SEQ = 1 << 63
"""No message has this number or a higher one."""

_NONE = BitMap64()
"""Most groups are never given anything back: they share this one, to which nothing is added."""


class Flight:
    """The messages of a group that were handed out and have not ended."""

    __slots__ = ("count", "is_limited", "more", "returned", "seqs")

    def __init__(
        self,
        count: int = 0,
        more: bool | None = None,  # noqa: FBT001
        seqs: BitMap64 | None = None,
    ) -> None:
        self.count = count
        self.seqs = seqs
        """All of them, where each blocks the group by itself (`group_blocking`); else None."""
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

    def add(self, seqs: Sequence[int]) -> None:
        """Count messages that are in flight from now on."""
        self.count += len(seqs)
        if self.seqs is not None:
            self.seqs.update(seqs)

    def remove(self, seq: int) -> None:
        """Forget a message that has ended."""
        self.count -= 1
        self.returned.discard(seq)
        if self.seqs is not None:
            self.seqs.discard(seq)

    def visible(self, overdue: BitMap64) -> tuple[BitMap64, bool]:
        """Walk the group from its oldest message on, up to the first that is not visible.

        Returns the messages walked over, and whether the walk reached those that never were in
        flight. A message in flight whose time to live is over (`overdue`) stops nobody: it will
        never be delivered again.
        """
        assert self.seqs is not None
        hidden = self.seqs - self.returned
        hidden -= overdue
        if not hidden:
            return self.returned, True
        before = BitMap64(self.returned)
        before.remove_range(hidden.min(), NEVER_SEQ)
        return before, False

    def may_give(self, blocking: str, overdue: BitMap64) -> bool:
        """Return whether the group has a turn with what it was given back, by the rule."""
        if blocking == "message":
            before, is_whole = self.visible(overdue)
            return bool(before) or (is_whole and self.more is not False)
        if blocking == "lease":
            return bool(self.returned) and len(self.returned) == self.count
        return bool(self.returned)


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

    def load(
        self,
        held: Iterable[tuple[int, int]],
        returned: BitMap64,
        overdue: BitMap64,
        *,
        blocking: str,
    ) -> None:
        """Take in the seqs in flight and their groups."""
        flights = self.flights
        for seq, group in held:
            flight = flights.get(group)
            if flight is None:
                flight = Flight(seqs=BitMap64() if blocking == "message" else None)
                flights[group] = flight
            flight.add((seq,))
            if seq in returned:
                flight.give_back(seq)
        back = [group for group in flights if flights[group].returned]
        back.sort(key=lambda group: flights[group].returned.min())
        if blocking == "message" and overdue:
            # Nothing came back of these; what is overdue does not block what waits behind it.
            back += sorted(group for group in flights if not flights[group].returned)
        for group in back:
            self.look(group, flights[group], overdue, blocking=blocking, turn=0)

    def look(
        self, group: int, flight: Flight, overdue: BitMap64, *, blocking: str, turn: int
    ) -> None:
        """Let a group take its turn with what it was given back, or no longer.

        `blocking`: as `QueueSpec.blocking`.
        """
        if not flight.is_limited and flight.may_give(blocking, overdue):
            self.again.setdefault(group, turn)
        else:
            self.again.pop(group, None)
