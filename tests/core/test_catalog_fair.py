"""A queue becomes fair at any moment: nothing is lost, duplicated or leased twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from millrace import limits
from millrace.core.answers import Leased, Outcome, PublishResult
from millrace.core.commands import (
    Command,
    Configure,
    CreateQueue,
    Extend,
    LeaseMessages,
    Publish,
    Purge,
    Release,
    RowSchedule,
    Settle,
    SpecPart,
    Tick,
)
from millrace.core.model import (
    CATALOG,
    GROUP_HEADER,
    LeaseId,
    NewMessage,
    ShardId,
)
from millrace.core.spec import QueueSpec
from millrace.errors import Full
from tests.support.models.commit_group import Group

QUEUE = ShardId(1)
LEASE_MS = 60
TTL_MS = 200
MOST = 8

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4)),
        st.tuples(st.just("late"), st.integers(1, 100)),
        st.tuples(st.just("lease"), st.integers(1, 5)),
        st.tuples(st.just("wait"), st.sampled_from([1, 30, 70])),
        st.tuples(st.sampled_from(["settle", "release", "delay", "extend"]), st.integers(0, 20)),
        st.tuples(st.sampled_from(["hold", "fold", "crash", "purge", "tick"]), st.just(0)),
        st.tuples(st.just("fair"), st.integers(0, 3)),
    ),
    min_size=10,
    max_size=50,
)


class Queue:
    """A queue, and the expected state of its messages."""

    def __init__(self, ttl_ms: int) -> None:
        self.group = Group()
        self.ttl_ms = ttl_ms
        self.group.ask((CATALOG, CreateQueue("default", "q", QueueSpec(ttl_ms=ttl_ms))))
        self.live: dict[int, int] = {}
        """Seq → when it was published."""
        self.held: dict[int, tuple[int, int]] = {}
        """Seq → its lease, and until when it is nobody else's."""
        self.is_fair = False

    def ask(self, command: Command) -> object:
        [answer] = self.group.ask((QUEUE, command))
        return answer

    def step(self, what: str, value: int) -> None:
        group = self.group
        match what:
            case "publish":
                names = [b"%d" % (at % 3) for at in range(value)]
                self.publish([NewMessage(b"x", None, ((GROUP_HEADER, name),)) for name in names])
            case "late":
                self.publish([NewMessage(b"x")], value)
            case "lease":
                self.lease(value)
            case "wait":
                group.now += value
            case "settle" | "release" | "delay" | "extend":
                self.end(what, value)
            case "fair":
                self.change(value)
            case "hold":
                group.hold = True
            case "fold" | "crash":
                group.fold()
                group.hold = False
                if what == "crash":
                    group.crash()
            case "purge":
                self.ask(Purge())
                self.live.clear()
                self.held.clear()
            case _:
                self.ask(Tick())
        if not group.pending:
            group.check()

    def publish(self, messages: list[NewMessage], delay_ms: int = 0) -> None:
        runs = (RowSchedule(0, 1, delay_ms=delay_ms),) if delay_ms else ()
        answer = self.ask(Publish(tuple(messages), None, runs))
        assert isinstance(answer, PublishResult)
        assert answer.first is not None
        self.live |= dict.fromkeys(range(answer.first, answer.first + len(messages)), self.now)

    @property
    def now(self) -> int:
        return self.group.now

    def lease(self, count: int) -> int:
        answer = self.ask(LeaseMessages(count, LEASE_MS))
        assert isinstance(answer, Leased)
        for seq in answer.seqs:
            assert seq in self.live, "it had ended"
            assert self.held.get(seq, (0, 0))[1] <= self.now, "another worker has it"
            assert not self.ttl_ms or self.live[seq] + self.ttl_ms > self.now, "it was over"
            self.held[seq] = (answer.lease, answer.deadline_ms)
        return len(answer.seqs)

    def end(self, what: str, at: int) -> None:
        if not self.held:
            return
        seq = sorted(self.held)[at % len(self.held)]
        number, seqs, history = LeaseId(self.held[seq][0]), BitMap64([seq]), self.group.history
        match what:
            case "settle":
                answer = self.ask(Settle(number, seqs, history))
            case "extend":
                answer = self.ask(Extend(number, seqs, history, 2 * LEASE_MS))
            case _:
                wait = 40 if what == "delay" else 0
                answer = self.ask(Release(number, seqs, history, delay_ms=wait))
        assert isinstance(answer, Outcome)
        if not answer.done:
            # It had expired.
            assert self.ttl_ms
            return
        if what == "settle":
            del self.live[seq]
            del self.held[seq]
        else:
            until = {"extend": self.now + 2 * LEASE_MS, "delay": self.now + 40}
            self.held[seq] = (number, until.get(what, 0))

    def change(self, most: int) -> None:
        answer = self.ask(Configure(SpecPart(order="fair", group_in_flight=most)))
        if isinstance(answer, Full):
            assert not self.is_fair
            return
        assert isinstance(answer, QueueSpec)
        self.is_fair = True

    def order_after_change(self) -> str:
        self.change(0)
        view = self.group.view(QUEUE)
        assert view is not None
        return view.spec.order

    def drain(self) -> None:
        """Deliver all remaining messages."""
        self.group.fold()
        self.group.hold = False
        for _ in range(200):
            self.group.now += 1 if self.ttl_ms else 2 * LEASE_MS
            if not self.lease(10) and not self.ttl_ms:
                break
            for seq in [seq for seq, (_, until) in self.held.items() if until > self.now]:
                answer = self.ask(
                    Settle(LeaseId(self.held[seq][0]), BitMap64([seq]), self.group.history)
                )
                if isinstance(answer, Outcome) and answer.done:
                    del self.live[seq]
                    del self.held[seq]
        assert self.ttl_ms or not self.live, "some were never handed out"


@settings(deadline=None)
@given(steps=STEPS, ttl_ms=st.sampled_from([0, 0, TTL_MS]))
def test_a_queue_becomes_fair_at_any_moment(steps: list[tuple[str, int]], ttl_ms: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "REORDERED_MESSAGES_MAX", MOST)
        patch.setattr(limits, "WINDOW_CELLS", 2)
        patch.setattr(limits, "TURN_SEQS_MAX", 2)
        patch.setattr(limits, "GROUP_CELL_SEQS_MAX", 3)
        patch.setattr(limits, "CHUNK_ROWS", 4)
        queue = Queue(ttl_ms)
        for what, value in steps:
            queue.step(what, value)
        queue.drain()


def test_many_messages_have_to_wait_for_it() -> None:
    queue = Queue(0)
    most = limits.REORDERED_MESSAGES_MAX
    queue.publish([NewMessage(b"x")] * (most + 1))
    assert queue.order_after_change() == "none"
    queue.lease(2)
    assert queue.order_after_change() == "none", "those in flight count as well"
    queue.end("settle", 0)
    assert queue.order_after_change() == "fair"
