"""A lease in the decider's memory."""

from __future__ import annotations

from pyroaring import BitMap64, FrozenBitMap64

from millrace.core.cells import LeaseCell
from millrace.core.format.seq_sets import pack_seqs, unpack_seqs
from millrace.core.model import DeadLetterReason, LeaseId

NO_SEQS = FrozenBitMap64()
"""The shared empty set, since most sets of most leases are empty."""


class LeaseState:
    """The in-memory form of a `LeaseCell`, with sets of seqs.

    The sets are values: they are replaced and never modified.
    """

    __slots__ = (
        "buried",
        "counts",
        "deadline_ms",
        "deadlines",
        "discarded",
        "doomed",
        "ended_ms",
        "first",
        "firsts",
        "freed",
        "groups",
        "handed",
        "id",
        "index",
        "open",
        "order",
        "overdue",
        "overtaken",
        "session",
        "settled",
        "span_ms",
        "superseded",
    )

    def __init__(
        self,
        lease: LeaseId,
        index: int,
        seqs: FrozenBitMap64,
        deadline_ms: int,
        span_ms: int = 0,
    ) -> None:
        self.id = lease
        self.index = index
        self.open = seqs
        self.deadline_ms = deadline_ms
        self.span_ms = span_ms
        self.freed = NO_SEQS
        self.settled = NO_SEQS
        self.overtaken = NO_SEQS
        self.superseded = NO_SEQS
        self.ended_ms = 0
        self.counts: dict[int, tuple[int, int]] = {}
        self.firsts: dict[int, int] = {}
        self.deadlines: dict[int, int] = {}
        self.doomed: dict[int, int] = {}
        self.buried = NO_SEQS
        self.session = 0
        self.first = 0
        self.handed = NO_SEQS
        self.order: tuple[int, ...] = ()
        self.overdue = NO_SEQS
        self.groups: dict[int, int] = {}
        self.discarded = NO_SEQS

    @classmethod
    def load(cls, lease: LeaseId, cell: LeaseCell) -> LeaseState:
        state = cls(lease, cell.index, _unpack(cell.open), cell.deadline_ms)
        state.freed = _unpack(cell.freed)
        state.settled = _unpack(cell.settled)
        state.overtaken = _unpack(cell.overtaken)
        state.superseded = _unpack(cell.superseded)
        state.ended_ms = cell.ended_ms
        state.counts = dict(cell.counts)
        state.deadlines = dict(cell.deadlines)
        state.doomed = dict(cell.doomed)
        state.buried = _unpack(cell.buried)
        state.session = cell.session
        state.first = cell.first
        state.handed = _unpack(cell.handed)
        state.order = cell.order
        state.overdue = _unpack(cell.overdue)
        state.groups = dict(cell.groups)
        state.span_ms = cell.span_ms
        state.firsts = dict(cell.firsts)
        state.discarded = _unpack(cell.discarded)
        return state

    def cell(self) -> LeaseCell:
        # For single messages most sets are empty, and must cost nothing.
        none = NO_SEQS
        return LeaseCell(
            self.deadline_ms,
            pack_seqs(self.open) if self.open is not none else b"",
            pack_seqs(self.freed) if self.freed is not none else b"",
            pack_seqs(self.settled) if self.settled is not none else b"",
            pack_seqs(self.overtaken) if self.overtaken is not none else b"",
            pack_seqs(self.superseded) if self.superseded is not none else b"",
            self.ended_ms,
            dict(sorted(self.counts.items())) if self.counts else {},
            dict(sorted(self.deadlines.items())) if self.deadlines else {},
            self.index,
            dict(sorted(self.doomed.items())) if self.doomed else {},
            pack_seqs(self.buried) if self.buried is not none else b"",
            self.session,
            self.first,
            pack_seqs(self.handed) if self.handed is not none else b"",
            self.order,
            pack_seqs(self.overdue & self._may_return()) if self.overdue else b"",
            dict(sorted(self.groups.items())) if self.groups else {},
            self.span_ms,
            dict(sorted(self.firsts.items())) if self.firsts else {},
            pack_seqs(self.discarded) if self.discarded is not none else b"",
        )

    def is_over(self) -> bool:
        """Return True if none of its messages is held, released or a dead letter."""
        return not (self.open or self.freed or self.doomed)

    def _may_return(self) -> FrozenBitMap64:
        """Return the messages that may be delivered again, including dead letters that a change
        of the settings can revive."""
        spared = [seq for seq, why in self.doomed.items() if why != DeadLetterReason.EXPIRED]
        return self.open | self.freed | FrozenBitMap64(spared)

    def delayed(self) -> BitMap64:
        """Return the released seqs with a retry delay."""
        if not self.deadlines:
            return BitMap64()
        return BitMap64([seq for seq in self.freed if seq in self.deadlines])

    def deadline_of(self, seq: int) -> int:
        return self.deadlines.get(seq, self.deadline_ms)

    def first_of(self, seq: int) -> int:
        """Return the time of the first delivery of a message; 0: unknown."""
        made_ms = self.deadline_ms - self.span_ms if self.span_ms else 0
        return self.firsts.get(seq, made_ms)

    def forget_counts(self, seq: int) -> None:
        """Forget how often and when a message was delivered."""
        self.counts.pop(seq, None)
        self.firsts.pop(seq, None)

    def counts_of(self, seq: int) -> tuple[int, int]:
        return self.counts.get(seq, (1, 0))

    def due(self, now: int) -> BitMap64:
        """Return the seqs whose deadline has passed, and those whose retry delay has expired."""
        if not self.deadlines:
            return BitMap64(self.open) if self.deadline_ms <= now else BitMap64()
        due = [seq for seq in self.open if self.deadline_of(seq) <= now]
        due += [seq for seq, ready_ms in self.deadlines.items() if ready_ms <= now]
        return BitMap64(due)


def _unpack(data: bytes) -> FrozenBitMap64:
    return FrozenBitMap64(unpack_seqs(data)) if data else NO_SEQS


# --- Messages in flight of a session ---


class SessionInFlight:
    """Number of messages that a session holds, by lease."""

    __slots__ = ("leases", "total")

    def __init__(self) -> None:
        self.leases: dict[int, int] = {}
        self.total = 0

    def note(self, lease: int, count: int) -> None:
        """Set the number of messages that it holds of a lease."""
        self.total += count - self.leases.pop(lease, 0)
        if count:
            self.leases[lease] = count
