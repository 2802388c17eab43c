"""Partitions against a naive model, and the ids that they slice."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from millrace import limits
from millrace.core import bounds
from millrace.core.answers import Explanation, Leased, Published
from millrace.core.commands import Configure, Explain, Lease, Publish, Purge, Tick
from millrace.core.message_id import IDS, id_of, ids_of, key_of, seq_of
from millrace.core.model import Kind, Message, QueueSpec, Seq
from millrace.core.partition_commands import Delete
from millrace.core.partitions import bounds_of, slice_of
from millrace.testing.group import SECRET
from tests.core.naive import LEASE_MS, QUEUE, NaiveQueue, NaiveRow

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
    served: int
    locks: set[int]


class Naive(NaiveQueue[Row]):
    """A queue, and what is expected of it."""

    def __init__(self, spec: QueueSpec) -> None:
        super().__init__(spec)
        self.key = key_of(SECRET, QUEUE)
        self.parts = [Part(0, set()) for _ in range(spec.partitions_min)]
        self.turn = self.resized = self.peak = 0
        self.since = self.now

    def step(self, what: str, value: object) -> None:
        group = self.group
        match what, value:
            case "publish", int():
                answer = self.ask(Publish((Message(b"x"),) * value))
                assert answer == Published(Seq(self.last + 1), value)
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
        before = len(self.parts)
        if count == before:
            return
        new: list[Part] = []
        for at in range(count):
            # Slices overlap where each begins before the other ends.
            low, high = at * IDS // count, (at + 1) * IDS // count
            old = [
                part
                for one, part in enumerate(self.parts)
                if one * IDS // before < high and low < (one + 1) * IDS // before
            ]
            locks = set[int]().union(*(part.locks for part in old if self.locked(part)))
            new.append(Part(min(part.served for part in old), locks))
        self.parts = new
        self.resized, self.peak, self.since = self.turn, 0, self.now

    def expected(self, count: int) -> list[int]:
        """What a lease call is given; how many partitions there are follows."""
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
        free = [part for part in self.parts if not self.locked(part)]
        for part in sorted(free, key=lambda part: part.served):
            at = next(one for one, other in enumerate(self.parts) if other is part)
            low, high = bounds_of(at, len(self.parts))
            inside = sorted(
                (row.at, seq)
                for seq, row in ready.items()
                if Fraction(low, IDS) <= row.at < Fraction(high, IDS)
            )
            if inside:
                seqs = [seq for _, seq in inside[:count]]
                self.turn += 1
                part.served = self.turn
                return seqs
        is_busy = not free and min(part.served for part in self.parts) > self.resized
        if is_busy and len(self.parts) < self.spec.partitions_max:
            self.resize(len(self.parts) + 1)
        return []

    def lease(self, count: int) -> int:
        expected = self.expected(count)
        answer = self.ask(Lease(count, LEASE_MS))
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
        assert view.partition is not None
        assert [one.served for one in view.partition.slices] == [one.served for one in self.parts]
        return len(expected)

    def finish(self) -> None:
        """Whoever waits gets its turn, and nothing is left behind."""
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
        patch.setattr(bounds, "ID_CELLS_MIN", 2)
        patch.setattr(bounds, "ID_CELLS_MAX", 3)
        patch.setattr(limits, "SWEEP_CELLS_MAX", 2)
        naive = Naive(spec)
        for what, value in steps:
            naive.step(what, value)
        naive.finish()


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
