"""Priorities and delays against a naive model, with windows that hold next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from millrace import limits
from millrace.core.answers import Explanation, Leased, PublishResult
from millrace.core.cells import WINDOW_KINDS, Kind
from millrace.core.commands import (
    Command,
    CreateQueue,
    Explain,
    LeaseMessages,
    Publish,
    Purge,
    Release,
    RowSchedule,
    Settle,
    Tick,
)
from millrace.core.model import (
    CATALOG,
    Millis,
    NewMessage,
    Seq,
    ShardId,
)
from millrace.core.spec import QueueSpec
from millrace.core.state.deferred_cells import DeferredMessages
from millrace.core.state.draft import Draft
from tests.support.models.commit_group import Group

QUEUE = ShardId(1)
LEASE_MS = 10**9
USUAL = limits.PRIORITY_DEFAULT

ROWS = st.lists(
    st.tuples(
        st.sampled_from([USUAL, USUAL, 0, 3, 5, 9]),
        st.sampled_from([None, None, 0, 1, 5, 40]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=8,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), ROWS),
        st.tuples(st.just("lease"), st.integers(1, 12)),
        st.tuples(st.just("wait"), st.sampled_from([1, 5, 50])),
        st.tuples(st.sampled_from(["settle", "release"]), st.integers(0, 20)),
        st.tuples(st.sampled_from(["hold", "fold", "crash", "purge", "tick"]), st.just(0)),
    ),
    min_size=15,
    max_size=40,
)


@contextmanager
def small() -> Iterator[pytest.MonkeyPatch]:
    """Limits that a few messages reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "WINDOW_CELLS", 3)
        patch.setattr(limits, "ASIDE_CELL_SEQS_MAX", 2)
        patch.setattr(limits, "LOOK_AT_CELLS_MAX", 2)
        patch.setattr(limits, "SWEEP_CELLS_MAX", 2)
        yield patch


class Naive:
    """A queue, and the expected state of its messages."""

    def __init__(self, *, keyed: bool, delay_ms: int) -> None:
        self.group = Group()
        self.keyed = keyed
        self.delay_ms = delay_ms
        spec = QueueSpec(keyed, delay_ms=delay_ms)
        self.group.ask((CATALOG, CreateQueue("default", "q", spec)))
        self.last = 0
        self.waiting: dict[int, tuple[int, int]] = {}
        """Seq → its turn (0 is the first), and when it comes."""
        self.returned = BitMap64()
        self.leased: dict[int, int] = {}
        self.keys: dict[int, int] = {}

    def ask(self, command: Command) -> object:
        [answer] = self.group.ask((QUEUE, command))
        return answer

    def step(self, what: str, value: object) -> None:
        group = self.group
        match what, value:
            case "publish", list():
                self.publish(value)
            case "lease", int():
                self.lease(value)
            case "wait", int():
                group.now += value
            case "settle" | "release", int():
                self.end(what, value)
            case "hold", _:
                group.hold = True
            case "fold" | "crash", _:
                group.fold()
                group.hold = False
                if what == "crash":
                    group.crash()
            case "purge", _:
                self.ask(Purge())
                self.waiting.clear()
                self.returned.clear()
                self.leased.clear()
            case _:
                self.ask(Tick())
        if not group.pending:
            group.check()

    def publish(self, rows: list[tuple[int, int | None, int]]) -> None:
        runs: list[RowSchedule] = []
        messages: list[NewMessage] = []
        for at, (priority, delay_ms, key) in enumerate(rows):
            is_delete = self.keyed and key == 9
            messages.append(NewMessage(None if is_delete else b"x", b"%d" % (key % 4)))
            if priority != USUAL or delay_ms is not None:
                runs.append(RowSchedule(at, 1, priority, delay_ms))
        answer = self.ask(Publish(tuple(messages), None, tuple(runs)))
        assert answer == PublishResult(self.last + 1, len(rows))  # type: ignore[arg-type]
        for priority, delay_ms, key in rows:
            self.last += 1
            wait = self.delay_ms if delay_ms is None else delay_ms
            if self.keyed:
                self.kill(self.keys.get(key % 4, 0))
                self.keys[key % 4] = self.last
                if key == 9:
                    continue
            is_aside = wait > 0 or priority != USUAL
            turn = 2 * (limits.PRIORITY_MAX - priority) + (not is_aside)
            self.waiting[self.last] = (turn, self.group.now + wait)

    def kill(self, seq: int) -> None:
        self.waiting.pop(seq, None)
        self.leased.pop(seq, None)
        self.returned.discard(seq)

    def ready(self) -> list[int]:
        """Return the turns of all deliverable messages, except released ones."""
        return sorted(turn for turn, due_ms in self.waiting.values() if due_ms <= self.group.now)

    def lease(self, count: int) -> int:
        again = BitMap64(list(self.returned)[:count])
        ready = self.ready()
        answer = self.ask(LeaseMessages(count, LEASE_MS))
        assert isinstance(answer, Leased)
        fresh = answer.seqs - again
        assert again.issubset(answer.seqs), "what was given back comes first"
        assert fresh.issubset(BitMap64(self.waiting)), "dead, delayed, or handed out twice"
        assert len(answer.seqs) <= count
        assert fresh or not ready or len(again) == count, "there is something"
        turns = sorted(self.waiting[seq][0] for seq in fresh)
        assert turns == ready[: len(turns)], "something else should have come first"
        if answer.turns:
            assert BitMap64().union(*answer.turns) == answer.seqs
            told = [self.waiting[seq][0] for seqs in answer.turns for seq in seqs - again]
            assert told == sorted(told)
        for seq in answer.seqs:
            self.leased[seq] = answer.lease
            self.waiting.pop(seq, None)
        self.returned -= again
        return len(answer.seqs)

    def end(self, what: str, at: int) -> None:
        held = sorted(self.leased)
        if not held:
            return
        seq = held[at % len(held)]
        lease, history = self.leased.pop(seq), self.group.history
        make = Settle if what == "settle" else Release
        self.ask(make(lease, BitMap64([seq]), history))  # type: ignore[arg-type]
        if what == "release":
            self.returned.add(seq)

    def finish(self) -> None:
        """Deliver all waiting messages, and check that nothing is left behind."""
        for seq, (_, due_ms) in sorted(self.waiting.items()):
            explained = self.ask(Explain(seq))  # type: ignore[arg-type]
            assert isinstance(explained, Explanation)
            assert explained.state in ("ready", "delayed")
            if explained.until_ms is not None:
                assert explained.until_ms == due_ms > self.group.now
            if explained.not_before_ms is not None:
                assert self.group.now <= explained.not_before_ms <= due_ms
        self.step("fold", 0)
        self.group.now += 1000
        while self.lease(7):
            pass
        assert not self.waiting
        assert not self.returned
        for _ in range(100):
            self.ask(Tick())
        self.group.check()
        for kind in WINDOW_KINDS:
            assert not list(self.group.store.cells(QUEUE, kind))


def play(steps: list[tuple[str, object]], *, keyed: bool = False, delay_ms: int = 0) -> None:
    with small():
        naive = Naive(keyed=keyed, delay_ms=delay_ms)
        for what, value in steps:
            naive.step(what, value)
        naive.finish()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(steps=STEPS, keyed=st.booleans(), delay_ms=st.sampled_from([0, 0, 7]))
def test_whoever_waits_apart_comes_to_its_turn(
    steps: list[tuple[str, object]], *, keyed: bool, delay_ms: int
) -> None:
    play(steps, keyed=keyed, delay_ms=delay_ms)


def test_who_comes_first_is_asked_for_before_anybody_goes_on() -> None:
    first = [(9, None, 0), (8, None, 0)]
    steps: list[tuple[str, object]] = [("publish", [*first, (USUAL, None, 0)])] * 6
    play([*steps, *[("lease", 5), ("crash", 0), ("lease", 5)] * 2])


def test_what_is_due_is_made_ready_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROMOTE_CELLS_MAX", 4)
    naive = Naive(keyed=False, delay_ms=0)
    for at in range(40):
        naive.publish([(USUAL, 1 + at, 0)])
    naive.group.now += 100
    answer = naive.ask(LeaseMessages(40, LEASE_MS))
    assert isinstance(answer, Leased)
    assert 0 < len(answer.seqs) <= 4
    seen = len(answer.seqs)
    while seen < 40:
        answer = naive.ask(LeaseMessages(40, LEASE_MS))
        assert isinstance(answer, Leased)
        assert answer.seqs
        seen += len(answer.seqs)
    naive.group.check()


def test_a_window_is_small_however_many_wait() -> None:
    with small():
        naive = Naive(keyed=False, delay_ms=0)
        for at in range(200):
            naive.publish([(9, None, 0), (USUAL, 10 + at, 0)])
        view = naive.group.view(QUEUE)
        assert view is not None
        assert all(len(window) <= 2 * limits.WINDOW_CELLS for window in view.windows.values())
        naive.finish()


def test_what_is_in_flight_is_found_when_a_window_is_filled() -> None:
    with small():
        naive = Naive(keyed=False, delay_ms=0)
        naive.step("hold", 0)
        for at in range(20):
            naive.publish([(USUAL, 1 + at, 0)])
        naive.group.now += 100
        while naive.waiting:
            assert naive.lease(7)


def test_a_cell_that_is_changed_and_used_up_in_one_batch_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "WINDOW_CELLS", 3)
    naive = Naive(keyed=False, delay_ms=0)
    naive.publish([(USUAL, 8 - at, 0) for at in range(8)])
    naive.publish([(9, None, 0)])
    naive.group.now += 100
    # The delayed ones are made ready window by window, the highest seqs first.
    assert naive.ask(LeaseMessages(1, LEASE_MS)).seqs == BitMap64([9])  # type: ignore[attr-defined]
    naive.group.ask((QUEUE, LeaseMessages(4, LEASE_MS)), (QUEUE, LeaseMessages(4, LEASE_MS)))
    assert naive.ask(LeaseMessages(1, LEASE_MS)).seqs == BitMap64()  # type: ignore[attr-defined]
    naive.group.check()
    assert not list(naive.group.store.cells(QUEUE, Kind.READY))


def test_what_is_published_does_not_join_those_who_have_waited() -> None:
    naive = Naive(keyed=False, delay_ms=0)
    naive.publish([(5, 10, 0)])
    naive.group.now += 15
    naive.publish([(5, None, 0)])
    naive.publish([(9, None, 0)])
    naive.group.now += 5
    # The first one is made ready in the batch that publishes the last.
    last = Publish((NewMessage(b""),), None, (RowSchedule(0, 1, 5, None),))
    naive.group.ask((QUEUE, LeaseMessages(1, LEASE_MS)), (QUEUE, last))
    turns = [naive.ask(LeaseMessages(1, LEASE_MS)).seqs for _ in range(3)]  # type: ignore[attr-defined]
    assert turns == [BitMap64([1]), BitMap64([2]), BitMap64([4])]


def test_who_is_delayed_beyond_the_window_is_told_until_when_at_least() -> None:
    with small():
        naive = Naive(keyed=False, delay_ms=0)
        began = naive.group.now
        for at in range(20):
            naive.publish([(USUAL, 100 + at, 0)])
        first, last = naive.ask(Explain(Seq(1))), naive.ask(Explain(Seq(20)))
        assert first == Explanation(Seq(1), "delayed", until_ms=began + 100)
        view = naive.group.view(QUEUE)
        assert view is not None
        soonest = began + 100 + len(view.due)
        assert last == Explanation(Seq(20), "delayed", not_before_ms=soonest)
        assert began + 100 < soonest < began + 119


def test_a_draft_ends_a_cell_that_it_has_ended_and_put_again() -> None:
    naive = Naive(keyed=False, delay_ms=0)
    naive.publish([(9, None, 0)])
    view = naive.group.view(QUEUE)
    assert view is not None
    [(_, key, _)] = naive.group.store.cells(QUEUE, Kind.READY)
    draft = Draft(view, Millis(naive.group.now))
    for cell in (None, DeferredMessages.of(BitMap64([1]), 9), None):
        draft.put_waiting(Kind.READY, key, cell)
    assert draft.waits == {(Kind.READY, key): None}, "it is stored, and nobody ends it"
