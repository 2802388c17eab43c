"""A lease, as the decider keeps it in memory."""

from __future__ import annotations

from pyroaring import BitMap64

from millrace.core.model import LeaseCell, LeaseId
from millrace.core.seqs import pack_seqs, unpack_seqs


class LeaseState:
    """A `LeaseCell` at work: the same facts, with sets that can be changed."""

    __slots__ = (
        "buried",
        "counts",
        "deadline_ms",
        "deadlines",
        "doomed",
        "ended_ms",
        "first",
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
        "superseded",
    )

    def __init__(self, lease: LeaseId, index: int, seqs: BitMap64, deadline_ms: int) -> None:
        self.id = lease
        self.index = index
        self.open = seqs
        self.deadline_ms = deadline_ms
        self.freed = BitMap64()
        self.settled = BitMap64()
        self.overtaken = BitMap64()
        self.superseded = BitMap64()
        self.ended_ms = 0
        self.counts: dict[int, tuple[int, int]] = {}
        self.deadlines: dict[int, int] = {}
        self.doomed: dict[int, int] = {}
        self.buried = BitMap64()
        self.session = 0
        self.first = 0
        self.handed = BitMap64()
        self.order: tuple[int, ...] = ()
        self.overdue = BitMap64()
        self.groups: dict[int, int] = {}

    @classmethod
    def load(cls, lease: LeaseId, cell: LeaseCell) -> LeaseState:
        state = cls(lease, cell.index, unpack_seqs(cell.open), cell.deadline_ms)
        state.freed = unpack_seqs(cell.freed)
        state.settled = unpack_seqs(cell.settled)
        state.overtaken = unpack_seqs(cell.overtaken)
        state.superseded = unpack_seqs(cell.superseded)
        state.ended_ms = cell.ended_ms
        state.counts = dict(cell.counts)
        state.deadlines = dict(cell.deadlines)
        state.doomed = dict(cell.doomed)
        state.buried = unpack_seqs(cell.buried)
        state.session = cell.session
        state.first = cell.first
        state.handed = unpack_seqs(cell.handed)
        state.order = cell.order
        state.overdue = unpack_seqs(cell.overdue)
        state.groups = dict(cell.groups)
        return state

    def cell(self) -> LeaseCell:
        return LeaseCell(
            self.deadline_ms,
            pack_seqs(self.open),
            pack_seqs(self.freed),
            pack_seqs(self.settled),
            pack_seqs(self.overtaken),
            pack_seqs(self.superseded),
            self.ended_ms,
            dict(sorted(self.counts.items())) if self.counts else {},
            dict(sorted(self.deadlines.items())) if self.deadlines else {},
            self.index,
            dict(sorted(self.doomed.items())) if self.doomed else {},
            pack_seqs(self.buried),
            self.session,
            self.first,
            pack_seqs(self.handed),
            self.order,
            pack_seqs(self.overdue & (self.open | self.freed)) if self.overdue else b"",
            dict(sorted(self.groups.items())) if self.groups else {},
        )

    def is_over(self) -> bool:
        """Whether it has no message left that anything could still happen to."""
        return not (self.open or self.freed or self.doomed)

    def delayed(self) -> BitMap64:
        """The seqs that were given back and are ready again at a time of their own."""
        if not self.deadlines:
            return BitMap64()
        return BitMap64([seq for seq in self.freed if seq in self.deadlines])

    def deadline_of(self, seq: int) -> int:
        return self.deadlines.get(seq, self.deadline_ms)

    def counts_of(self, seq: int) -> tuple[int, int]:
        return self.counts.get(seq, (1, 0))

    def due(self, now: int) -> BitMap64:
        """The seqs whose worker had its time, and those whose delay is over."""
        if not self.deadlines:
            return self.open if self.deadline_ms <= now else BitMap64()
        due = [seq for seq in self.open if self.deadline_of(seq) <= now]
        due += [seq for seq, ready_ms in self.deadlines.items() if ready_ms <= now]
        return BitMap64(due)
