"""Base of naive models of delivery: a queue, and its messages one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from pyroaring import BitMap64

from millrace.core.answers import Outcome
from millrace.core.commands import Command, CreateQueue, Extend, Release, Settle
from millrace.core.model import CATALOG, LeaseId, ShardId
from millrace.core.spec import QueueSpec
from millrace.errors import Stale
from tests.support.models.commit_group import Group

QUEUE = ShardId(1)
LEASE_MS = 60


@dataclass(kw_only=True)
class NaiveRow:
    """A message that has not ended."""

    lease: int = 0
    is_freed: bool = False
    ready_ms: int = 0
    """For a delivered message: when it is ready again."""


R = TypeVar("R", bound=NaiveRow)


class NaiveQueue(Generic[R]):
    """A queue, and the messages that are expected in it."""

    def __init__(self, spec: QueueSpec) -> None:
        self.group = Group()
        self.spec = spec
        self.group.ask((CATALOG, CreateQueue("default", "q", spec)))
        self.last = 0
        self.rows: dict[int, R] = {}

    @property
    def now(self) -> int:
        return self.group.now

    def ask(self, command: Command) -> object:
        [answer] = self.group.ask((QUEUE, command))
        return answer

    def held(self) -> list[int]:
        return sorted(seq for seq, row in self.rows.items() if row.lease and not row.is_freed)

    def end(self, what: str, at: int) -> None:
        """Settle, extend, release or delay a held message."""
        held = self.held()
        if not held:
            return
        seq = held[at % len(held)]
        row = self.rows[seq]
        lease, seqs, history = LeaseId(row.lease), BitMap64([seq]), self.group.history
        if what == "settle":
            self.ask(Settle(lease, seqs, history))
            del self.rows[seq]
        elif what == "extend":
            answer = self.ask(Extend(lease, seqs, history, LEASE_MS))
            assert isinstance(answer, Outcome)
            if self.may_extend(seq):
                assert answer.done == seqs, "nobody else has anything of it"
                row.ready_ms = self.now + LEASE_MS
            else:
                assert isinstance(answer.refused[seq], Stale), "another call holds its group"
        else:
            delay_ms = 9 if what == "delay" else 0
            self.ask(Release(lease, seqs, history, delay_ms=delay_ms))
            row.is_freed, row.ready_ms = True, self.now + delay_ms

    def may_extend(self, _seq: int) -> bool:
        """Return True if the worker of a message may extend its lease, past its deadline too."""
        return True

    def settle_held(self) -> None:
        for seq in self.held():
            self.ask(Settle(LeaseId(self.rows[seq].lease), BitMap64([seq]), self.group.history))
            del self.rows[seq]
