"""In-memory state of message groups: messages in flight, released messages, and turns.

All of it is derived from the cells of leases, and from the first turns of the ring.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import TurnCell
from millrace.core.state.cell_window import CellWindow
from millrace.core.state.ready_ring import ReadyRing


class ChosenGroup(msgspec.Struct, frozen=True, gc=False):
    """A group that was selected for a lease call."""

    turn: int
    """0: it takes its turn with released messages."""
    group: int
    seqs: Sequence[int]
    """Its deliverable messages."""
    cell: TurnCell | None = None
    """Its own cell, if that was read; a partition has none."""
    again: int = 0
    """Number of released messages, which come first in `seqs`; the others were never delivered."""


NEVER_SEQ = 1 << 63
"""No message has this number or a higher one."""

_NONE = BitMap64()
"""Shared empty set, since most groups never have a released message; never modified."""


class GroupInFlight:
    """The messages of a group that were delivered and have not ended."""

    __slots__ = ("count", "is_limited", "more", "returned", "seqs")

    def __init__(
        self,
        count: int = 0,
        more: bool | None = None,  # noqa: FBT001
        seqs: BitMap64 | None = None,
    ) -> None:
        self.count = count
        self.seqs = seqs
        """All of them, if each blocks the group by itself (`group_blocking`); else None."""
        self.returned = _NONE
        """The released ones among them; see `give_back`."""
        self.more = more
        """True if undelivered messages of the group wait; None: unknown."""
        self.is_limited = False
        """The released messages wait for the group's rate limit."""

    def give_back(self, seq: int) -> None:
        """Mark a message as released."""
        if self.returned is _NONE:
            self.returned = BitMap64()
        self.returned.add(seq)

    def add(self, seqs: Sequence[int]) -> None:
        """Add messages that are in flight from now on."""
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
        """Walk the group from its oldest message on, up to the first invisible one.

        Returns the messages passed, and whether the walk reached the undelivered ones. A message in
        flight whose TTL has expired (`overdue`) blocks nothing: it will never be delivered again.
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
        """Return True if the group has a turn with its released messages, by the blocking rule."""
        if blocking == "message":
            before, is_whole = self.visible(overdue)
            return bool(before) or (is_whole and self.more is not False)
        if blocking == "lease":
            return bool(self.returned) and len(self.returned) == self.count
        return bool(self.returned)


class GroupIndex:
    """The groups with messages in flight, the ring of ready groups, and cached cells."""

    __slots__ = ("again", "buckets", "cells", "flights", "ring")

    def __init__(self, known_to: bytes | None = None, front: int = 0) -> None:
        """Begin with an empty ring, or with one that is not read yet."""
        self.flights: dict[int, GroupInFlight] = {}
        self.again: OrderedDict[int, int] = OrderedDict()
        """Groups with released messages → the last turn before their own."""
        self.ring = ReadyRing(None if known_to is None else 0, front)
        self.buckets: CellWindow[int] = CellWindow(limits.WINDOW_CELLS, known_to)
        """Times at which groups that wait for their rate get a turn again."""
        self.cells: dict[int, TurnCell | None] = {}
        """Cache of group number → its cell, None if there is none. Every change of such a cell
        is written here as well."""

    def forget(self) -> None:
        """Evict some of many cached cells; not while a batch is decided that needs them."""
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
        """Add the seqs in flight and their groups."""
        flights = self.flights
        for seq, group in held:
            flight = flights.get(group)
            if flight is None:
                flight = GroupInFlight(seqs=BitMap64() if blocking == "message" else None)
                flights[group] = flight
            flight.add((seq,))
            if seq in returned:
                flight.give_back(seq)
        back = [group for group in flights if flights[group].returned]
        back.sort(key=lambda group: flights[group].returned.min())
        if blocking == "message" and overdue:
            # None of these was released; a message with an expired TTL does not block the ones
            # behind it.
            back += sorted(group for group in flights if not flights[group].returned)
        for group in back:
            self.look(group, flights[group], overdue, blocking=blocking, turn=0)

    def look(
        self, group: int, flight: GroupInFlight, overdue: BitMap64, *, blocking: str, turn: int
    ) -> None:
        """Give a group a turn with its released messages, or take it away.

        `blocking`: as `QueueSpec.blocking`.
        """
        if not flight.is_limited and flight.may_give(blocking, overdue):
            self.again.setdefault(group, turn)
        else:
            self.again.pop(group, None)
