"""Partitions against a naive model, and the ids that they slice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from millrace import limits
from millrace.core import bounds
from millrace.core.answers import Explanation, Leased, PublishResult
from millrace.core.cells import Kind
from millrace.core.commands import (
    Configure,
    CreateQueue,
    Delete,
    Explain,
    LeaseMessages,
    Publish,
    Purge,
    Tick,
)
from millrace.core.format.message_id import (
    IDS,
    id_of,
    ids_of,
    key_of,
    seq_of,
)
from millrace.core.model import CATALOG, NewMessage, Seq
from millrace.core.spec import QueueSpec
from millrace.core.state.partition_state import (
    bounds_of,
    numbers_of,
    parent_of,
    part_of,
    parts_of,
    slice_of,
)
from tests.core.naive import LEASE_MS, QUEUE, NaiveQueue, NaiveRow
from tests.support.models.commit_group import SECRET, Group

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 9)),
        st.tuples(st.just("lease"), st.integers(1, 6)),
        st.tuples(st.just("lease"), st.integers(1, 6)),
        st.tuples(st.just("wait"), st.sampled_from([1, 30, 70, 500])),
        st.tuples(st.sampled_from(["settle", "settle", "release", "delay"]), st.integers(0, 20)),
        st.tuples(st.sampled_from(["extend", "delete"]), st.integers(0, 20)),
        st.tuples(st.sampled_from(["hold", "fold", "crash", "purge", "tick"]), st.just(0)),
        st.tuples(st.sampled_from(["hold", "hold", "fold"]), st.just(0)),
        st.tuples(st.just("bound"), st.sampled_from([(1, 1), (1, 3), (2, 7), (5, 5)])),
    ),
    min_size=20,
    max_size=60,
)
SPECS = st.builds(
    QueueSpec,
    delivery=st.just("partitions"),
    partitions_min=st.sampled_from([1, 2]),
    partitions_max=st.sampled_from([2, 4]),
    partition_age_ms=st.sampled_from([400, 432_000_000]),
)


@dataclass
class Row(NaiveRow):
    at: Fraction
    """Where its id lies among all ids."""


@dataclass
class Part:
    low: Fraction
    high: Fraction
    """Behind its last id."""
    served: int
    locks: set[int]


def equal(count: int) -> list[Part]:
    return [Part(Fraction(at, count), Fraction(at + 1, count), 0, set()) for at in range(count)]


class Naive(NaiveQueue[Row]):
    """A queue, and the expected state of its messages."""

    def __init__(self, spec: QueueSpec) -> None:
        super().__init__(spec)
        self.key = key_of(SECRET, QUEUE)
        self.parts = equal(spec.partitions_min)
        self.splits: list[Part] = []
        """Partitions that were split, latest last."""
        self.turn = self.peak = 0
        self.since = self.now

    def step(self, what: str, value: object) -> None:
        group = self.group
        match what, value:
            case "publish", int():
                answer = self.ask(Publish((NewMessage(b"x"),) * value))
                assert answer == PublishResult(Seq(self.last + 1), value)
                for seq in range(self.last + 1, self.last + value + 1):
                    self.rows[seq] = Row(Fraction(id_of(self.key, seq), IDS))
                self.last += value
            case "lease", int():
                self.lease(value)
            case "wait", int():
                group.now += value
            case "settle" | "release" | "delay" | "extend", int():
                self.end(what, value)
            case "delete", int():
                seqs = [seq for seq in self.rows if seq % 3 == value % 3]
                known = BitMap64([*seqs, self.last + 7])
                assert self.ask(Delete(known)) == len(seqs)
                assert self.ask(Delete(known)) == 0
                for seq in seqs:
                    del self.rows[seq]
            case "bound", (int() as least, int() as most):
                self.spec = msgspec.structs.replace(
                    self.spec, partitions_min=least, partitions_max=most
                )
                assert self.ask(Configure(self.spec)) == self.spec
                self.resize(min(max(len(self.parts), least), most))
            case "hold", _:
                group.hold = True
            case "fold" | "crash", _:
                group.fold()
                group.hold = False
                if what == "crash":
                    group.crash()
            case "purge", _:
                self.ask(Purge())
                self.rows.clear()
            case _:
                self.ask(Tick())
        if not group.pending:
            group.check()

    def locked(self, part: Part) -> bool:
        return any(
            row.lease in part.locks and not row.is_freed and row.ready_ms > self.now
            for row in self.rows.values()
        )

    def resize(self, count: int) -> None:
        if count == len(self.parts):
            return
        while len(self.parts) < count:
            self.split()
        while len(self.parts) > count and self.splits:
            self.join()
        if len(self.parts) > count:
            self.cut(count)
        self.peak, self.since = 0, self.now

    def split(self) -> None:
        """The first of the largest ones, as they are numbered, is halved."""
        most = max(part.high - part.low for part in self.parts)
        # Where slices are not of whole ids they are as large all the same.
        part = next(part for part in self.parts if part.high - part.low == most)
        middle = (part.low + part.high) / 2
        self.parts.append(Part(middle, part.high, 0, set()))
        part.high = middle
        self.splits.append(part)

    def join(self) -> None:
        last, part = self.parts.pop(), self.splits.pop()
        assert part.high == last.low
        part.high = last.high
        self.take_over(part, [part, last])

    def cut(self, count: int) -> None:
        old, self.parts = self.parts, equal(count)
        for part in self.parts:
            # Slices overlap where each begins before the other ends.
            self.take_over(
                part, [one for one in old if one.low < part.high and part.low < one.high]
            )

    def take_over(self, part: Part, several: list[Part]) -> None:
        part.served = min(one.served for one in several)
        part.locks = set[int]().union(*(one.locks for one in several if self.locked(one)))

    def expected(self, count: int) -> list[int]:
        """Return the messages that a lease call gets; the number of partitions follows."""
        if self.now >= self.since + self.spec.partition_age_ms:
            used = max(self.peak, self.spec.partitions_min)
            if used < len(self.parts):
                self.resize(used)
            elif len(self.parts) > self.spec.partitions_min:
                self.peak, self.since = 0, self.now
        ready = {
            seq: row for seq, row in self.rows.items() if not row.lease or row.ready_ms <= self.now
        }
        if not ready:
            return []
        while True:
            free = [part for part in self.parts if not self.locked(part)]
            for part in sorted(free, key=lambda part: part.served):
                inside = sorted(seq for seq, row in ready.items() if part.low <= row.at < part.high)
                if inside:
                    self.turn += 1
                    part.served = self.turn
                    return inside[:count]
            if len(self.parts) >= self.spec.partitions_max:
                return []
            self.resize(len(self.parts) + 1)

    def lease(self, count: int) -> int:
        expected = self.expected(count)
        answer = self.ask(LeaseMessages(count, LEASE_MS))
        assert isinstance(answer, Leased)
        assert list(answer.seqs) == sorted(expected)
        for seq in expected:
            row = self.rows[seq]
            assert not row.lease or row.ready_ms <= self.now, "someone has it"
            row.lease, row.is_freed, row.ready_ms = answer.lease, False, self.now + LEASE_MS
        if expected:
            part = next(part for part in self.parts if part.served == self.turn)
            part.locks = {answer.lease}
            self.peak = max(self.peak, sum(map(self.locked, self.parts)))
        view = self.group.view(QUEUE)
        assert view is not None
        assert view.parts is not None
        assert [one.served for one in view.parts.slices] == [one.served for one in self.parts]
        return len(expected)

    def finish(self) -> None:
        """Deliver all waiting messages, and check that nothing is left behind."""
        self.step("fold", 0)
        self.group.now += 10_000
        for seq in sorted(self.rows):
            answer = self.ask(Explain(Seq(seq)))
            assert isinstance(answer, Explanation)
            assert answer.state in ("ready", "returned")
        while self.rows:
            assert self.lease(3), "somebody waits for ever"
            self.settle_held()
            self.group.check()
        assert not self.lease(1)
        for _ in range(100):
            self.ask(Tick())
        self.group.check()
        assert not list(self.group.store.cells(QUEUE, Kind.ID))


def play(spec: QueueSpec, steps: list[tuple[str, object]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHUNK_ROWS", 3)
        patch.setattr(bounds, "PARTITIONS_PAGE", 2)
        patch.setattr(limits, "SWEEP_CELLS_MAX", 2)
        naive = Naive(spec)
        for what, value in steps:
            naive.step(what, value)
        naive.finish()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(steps=STEPS, spec=SPECS)
def test_d2_d3_partitions_are_served_as_a_naive_model_says(
    steps: list[tuple[str, object]], spec: QueueSpec
) -> None:
    play(spec, steps)


def bounded(least: int, most: int) -> QueueSpec:
    return QueueSpec(delivery="partitions", partitions_min=least, partitions_max=most)


def test_d2_every_partition_is_served_before_any_twice() -> None:
    play(bounded(3, 3), [("publish", 9), ("publish", 9), *[("lease", 1), ("settle", 0)] * 7])


def test_d2_a_partition_is_read_to_its_end() -> None:
    play(bounded(1, 1), [("publish", 9), ("lease", 8)])


def test_d2_what_was_purged_is_in_no_partition() -> None:
    play(bounded(2, 2), [("publish", 9), ("lease", 2), ("purge", 0), ("publish", 3), ("lease", 6)])


def test_d3_locks_hold_while_slices_are_cut_anew() -> None:
    steps: list[tuple[str, object]] = [("publish", 9), ("publish", 9)]
    steps += [("lease", 2)] * 4
    for least, most in ((3, 3), (2, 2), (7, 7)):
        steps += [("bound", (least, most)), *[("lease", 1)] * 4, ("crash", 0), ("lease", 1)]
    play(bounded(2, 4), steps)
    for least, most in ((2, 2), (7, 7), (3, 3), (1, 1)):
        steps += [("bound", (least, most)), *[("lease", 1)] * 4, ("crash", 0), ("lease", 1)]
    play(bounded(5, 7), steps)


def test_d2_what_ended_before_it_was_looked_at_is_in_no_partition() -> None:
    steps: list[tuple[str, object]] = [("publish", 1), ("hold", 0), ("publish", 5), ("delete", 0)]
    play(bounded(1, 1), [*steps, ("lease", 6), ("fold", 0), ("lease", 6)])


def test_oldest_first_before_what_is_not_known_yet() -> None:
    # After a crash released messages are known at once, and those before them are not.
    steps: list[tuple[str, object]] = [("publish", 9), ("publish", 9), ("lease", 1), ("lease", 9)]
    steps += [("bound", (1, 1)), ("crash", 0), ("wait", 70), ("lease", 4), ("lease", 3)]
    play(bounded(2, 2), steps)


def sliced(count: int, messages: int) -> Group:
    """Return a queue with `count` partitions and some messages."""
    group = Group()
    spec = bounded(count, count)
    group.ask((CATALOG, CreateQueue("default", "q", spec)))
    group.ask((QUEUE, Publish((NewMessage(b"x"),) * messages)))
    return group


def leased(group: Group, count: int) -> list[int]:
    [answer] = group.ask((QUEUE, LeaseMessages(count, LEASE_MS)))
    assert isinstance(answer, Leased)
    return list(answer.seqs)


def calls_of(act: Callable[[], object]) -> int:
    """Return the number of function calls during `act`."""
    counted = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return counted


def test_d2_each_of_a_thousand_partitions_is_served_once_before_any_twice() -> None:
    count = 1_000
    group = sliced(count, 12 * count)
    view = group.view(QUEUE)
    assert view is not None
    assert view.parts is not None
    served = [view.parts.part_of(leased(group, 1)[0]) for _ in range(count)]
    assert sorted(served) == list(range(count))
    assert leased(group, 1) == []
    group.check()
    group.crash()
    assert leased(group, 1) == []
    group.now += LEASE_MS
    # The order of turns is kept, across a crash too.
    view = group.view(QUEUE)
    assert view is not None
    assert view.parts is not None
    again = [view.parts.part_of(leased(group, 1)[0]) for _ in range(20)]
    assert again == served[:20]


@pytest.mark.parametrize("is_locked", [False, True])
def test_what_a_lease_call_costs_does_not_grow_with_partitions(*, is_locked: bool) -> None:
    costs: list[int] = []
    written: list[int] = []
    for count in (2 * bounds.PARTITIONS_PAGE, bounds.PARTITIONS_MAX):
        group = sliced(count, 12 * count)
        for _ in range(count - 10 if is_locked else 1):
            leased(group, 1)
        costs.append(calls_of(lambda group=group: leased(group, 1)))  # type: ignore[misc]
        [batch] = group.committed()[-1].batches
        pages = [value for kind, _, value in batch.changes.cells if kind == Kind.SLICES]
        assert len(pages) == 1
        written.append(sum(len(value or b"") for _, _, value in batch.changes.cells))
    assert costs[1] <= 2 * costs[0]
    assert written[1] <= 2 * written[0]


def test_d2_ten_workers_are_all_served_with_default_settings() -> None:
    group = Group()
    spec = QueueSpec(delivery="partitions")
    group.ask((CATALOG, CreateQueue("default", "q", spec)))
    group.ask((QUEUE, Publish((NewMessage(b"x"),) * 100)))
    batches = [leased(group, 5) for _ in range(10)]
    # One worker was served, and 95 messages waited for the end of its lock.
    assert all(batches)
    assert sum(map(len, batches)) >= 40
    every = [seq for batch in batches for seq in batch]
    assert len(set(every)) == len(every)
    group.check()


def test_d2_what_waits_behind_a_lock_is_free_with_the_new_partition() -> None:
    group = sliced(1, 40)
    group.ask((QUEUE, Configure(bounded(1, 2))))
    first = leased(group, 3)
    view = group.view(QUEUE)
    assert view is not None
    assert view.parts is not None
    assert leased(group, 40) == [seq for seq in range(4, 41) if view.parts.part_of(seq) == 1]
    assert first == [1, 2, 3]
    assert len(view.parts.slices) == 2
    # The lower half is locked: its worker holds something.
    assert leased(group, 40) == []


def test_a_partition_that_was_emptied_meanwhile_is_passed_over() -> None:
    group = sliced(2, 20)
    view = group.view(QUEUE)
    assert view is not None
    assert view.parts is not None
    [first] = leased(group, 1)
    part = view.parts.part_of(first)
    others = [seq for seq in range(1, 21) if view.parts.part_of(seq) != part]
    group.ask((QUEUE, Delete(BitMap64(others))))
    assert leased(group, 1) == []
    group.now += LEASE_MS
    assert leased(group, 1) == [first]


def test_polls_of_a_queue_in_which_nothing_waits_add_no_partitions() -> None:
    group = sliced(1, 3)
    group.ask((QUEUE, Configure(bounded(1, 64))))
    assert leased(group, 3) == [1, 2, 3]
    for _ in range(5):
        assert leased(group, 1) == []
    view = group.view(QUEUE)
    assert view is not None
    assert view.partition is not None
    assert view.partition.size == 1


def test_oldest_first_in_a_partition_whatever_came_back() -> None:
    group = sliced(1, 6)
    assert leased(group, 2) == [1, 2]
    group.now += LEASE_MS
    # New ones never overtake released ones.
    group.ask((QUEUE, Publish((NewMessage(b"x"),) * 6)))
    assert leased(group, 1) == [1]
    group.now += LEASE_MS
    assert leased(group, 4) == [1, 2, 3, 4]
    group.now += LEASE_MS
    assert leased(group, 12) == list(range(1, 13))


def test_nobody_waits_for_ever_while_others_come() -> None:
    group = sliced(4, 40)
    waiting = set(range(1, 41))
    last = 40
    for _ in range(40):
        group.ask((QUEUE, Publish((NewMessage(b"x"),) * 4)))
        last += 4
        seqs = leased(group, 2)
        waiting -= set(seqs)
        group.now += LEASE_MS
        [answer] = group.ask((QUEUE, Delete(BitMap64(seqs))))
        assert answer == len(seqs)
    assert not waiting


def test_messages_beyond_what_is_known_wait_for_a_lock_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "PARTITION_WINDOW", 8)
    monkeypatch.setattr(limits, "CHUNK_ROWS", 4)
    group = sliced(2, 60)
    held = [leased(group, 1), leased(group, 1)]
    assert leased(group, 1) == []
    group.now += LEASE_MS
    found: list[int] = []
    while seqs := leased(group, 3):
        found += seqs
        group.ask((QUEUE, Delete(BitMap64(seqs))))
    assert sorted(found) == list(range(1, 61))
    assert all(held)


def test_a_batch_is_what_is_known_where_much_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHUNK_ROWS", 10)
    group = sliced(2, 200)
    monkeypatch.setattr(bounds, "PARTITION_AHEAD", 50)
    first = leased(group, 1_000)
    # About half of the first fifty, and not the hundred that all rows would give.
    assert 10 < len(first) < 40
    assert max(first) <= 50
    second = leased(group, 1_000)
    assert max(second) <= 100
    view = group.view(QUEUE)
    assert view is not None
    assert view.parts is not None
    assert len(view.parts.fresh) <= 60
    group.check()


LAYOUTS = st.tuples(st.integers(1, 300), st.integers(1, 16)).flatmap(
    lambda two: st.tuples(st.just(two[0]), st.integers(two[0], two[0] * two[1]))
)


@given(layout=LAYOUTS, ids=st.lists(st.integers(0, IDS - 1), min_size=1, max_size=40))
def test_partitions_leave_no_id_out_and_are_split_one_by_one(
    layout: tuple[int, int], ids: list[int]
) -> None:
    base, count = layout
    many = parts_of(np.array(ids, np.int64), base, count).tolist()
    assert many == [part_of(id_, base, count) for id_ in ids]
    ranges = bounds_in(base, count)
    for id_, number in zip(ids, many, strict=True):
        assert any(low <= id_ < high for low, high in ranges[number])
    sizes = [sum(high - low for low, high in of) for of in ranges]
    assert max(sizes) <= 2 * min(sizes) + 4
    more = [part_of(id_, base, count + 1) for id_ in ids]
    parent = parent_of(base, count)
    for before, after in zip(many, more, strict=True):
        assert after == before or (before, after) == (parent, count)


def bounds_in(base: int, count: int) -> list[list[tuple[int, int]]]:
    """The ranges of ids of each partition."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    numbers = numbers_of(base, count)
    for at, number in enumerate(numbers):
        found[number].append(bounds_of(at, len(numbers)))
    return found


@given(key=st.integers(1, IDS - 1), seq=st.integers(1, 2**48))
def test_an_id_tells_its_seq(key: int, seq: int) -> None:
    id_ = id_of(key, seq)
    assert 0 <= id_ < IDS
    assert seq_of(key, id_) == seq
    assert ids_of(key, seq, 3) == [id_of(key, seq + at) for at in range(3)]


@given(key=st.integers(1, IDS - 1), id_=st.integers(0, IDS - 1))
def test_every_id_is_one_of_a_seq(key: int, id_: int) -> None:
    assert id_of(key, seq_of(key, id_)) == id_


FROZEN = [
    8498220828427431842,
    4562053691185578072,
    4487047932566992293,
    1763236937881169935,
]


def test_ids_never_change() -> None:
    assert key_of(bytes(range(32)), 1) == FROZEN[0]
    assert ids_of(FROZEN[0], 1, 3) == FROZEN[1:]
    assert key_of(bytes(range(32)), 2) != FROZEN[0]


@pytest.mark.parametrize("count", [2, 10, 256])
def test_d2_messages_spread_evenly(count: int) -> None:
    total = 1_000 * count
    found = [0] * count
    for id_ in ids_of(key_of(SECRET, 1), 1, total):
        found[slice_of(id_, count)] += 1
    # Far beyond what random ids would do: four deviations of a thousand.
    assert max(abs(one - 1_000) for one in found) < 4.5 * 1_000**0.5


@given(count=st.integers(1, bounds.PARTITIONS_MAX), id_=st.integers(0, IDS - 1))
def test_slices_are_equal_and_leave_no_id_out(count: int, id_: int) -> None:
    low, high = bounds_of(slice_of(id_, count), count)
    assert low <= id_ < high
    assert high - low in (IDS // count, IDS // count + 1)
    assert bounds_of(0, count)[0] == 0
    assert bounds_of(count - 1, count)[1] == IDS
