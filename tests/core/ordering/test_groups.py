"""Groups against a naive model, with windows and cells that hold next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from millrace import limits
from millrace.core.answers import Explanation, Leased, PublishResult
from millrace.core.cells import (
    ERA_KINDS,
    GroupCell,
    Kind,
    RingCell,
    TurnCell,
)
from millrace.core.commands import (
    Configure,
    Explain,
    LeaseMessages,
    Publish,
    Purge,
    RowSchedule,
    Tick,
)
from millrace.core.format.codec import encode_cell
from millrace.core.model import GROUP_HEADER, NewMessage, Seq
from millrace.core.spec import QueueSpec
from millrace.store.index_codec import PART_BYTES
from tests.core.naive import LEASE_MS, QUEUE, NaiveQueue, NaiveRow

MANY = 50
"""More turns than there ever are."""

ROWS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from([None, None, None, 0, 1, 5, 40]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=9,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), ROWS),
        st.tuples(st.sampled_from(["lease", "together"]), st.integers(1, 12)),
        st.tuples(st.just("wait"), st.sampled_from([1, 5, 70])),
        st.tuples(st.sampled_from(["settle", "release", "extend"]), st.integers(0, 20)),
        st.tuples(st.sampled_from(["settle", "delay"]), st.integers(0, 20)),
        st.tuples(st.sampled_from(["hold", "fold", "crash", "purge", "tick"]), st.just(0)),
        st.tuples(st.just("bound"), st.integers(0, 3)),
        st.tuples(st.just("blocking"), st.integers(0, 1)),
    ),
    min_size=15,
    max_size=50,
)


@contextmanager
def small(turns: int = 2) -> Iterator[pytest.MonkeyPatch]:
    """Limits that a few messages reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "WINDOW_CELLS", 2)
        patch.setattr(limits, "RING_TURNS", turns)
        patch.setattr(limits, "RING_PAGE_TURNS", 2)
        patch.setattr(limits, "GROUPS_KNOWN", 1)
        patch.setattr(limits, "GROUPS_AHEAD", 2)
        patch.setattr(limits, "THIN_GROUPS_AHEAD", 2)
        patch.setattr(limits, "THIN_DEPTH", 1)
        patch.setattr(limits, "TURN_SEQS_MAX", 2)
        patch.setattr(limits, "GROUP_CELL_SEQS_MAX", 3)
        patch.setattr(limits, "ASIDE_CELL_SEQS_MAX", 2)
        patch.setattr(limits, "SWEEP_CELLS_MAX", 2)
        yield patch


@dataclass
class Row(NaiveRow):
    group: int
    entry: tuple[int, bool, int]
    """When it begins to wait, and its order among others."""
    key: int


class Bucket:
    """A token bucket, in its usual definition."""

    def __init__(self, rate_us: int, burst: int) -> None:
        self.rate_us, self.burst = rate_us, burst
        self.micros = burst * rate_us
        self.time_us = 0

    def tokens(self, now: int) -> int:
        passed = 1000 * now - self.time_us
        self.micros = min(self.burst * self.rate_us, self.micros + passed)
        self.time_us = 1000 * now
        return self.micros // self.rate_us

    def pay(self, count: int) -> None:
        self.micros -= count * self.rate_us
        assert self.micros >= 0, "more than the rate allows"


class Naive(NaiveQueue[Row]):
    """A queue, and the expected state of its messages."""

    def __init__(self, spec: QueueSpec) -> None:
        super().__init__(spec)
        self.keys: dict[int, int] = {}
        self.buckets: dict[int, Bucket] = {}
        self.bucket = Bucket(spec.rate_us, spec.rate_burst)
        self.since: dict[int, int] = {}
        """Since which step each group may be served."""
        self.timed: set[int] = set()
        self.steps = 0
        self.is_exact = True
        """Nothing has happened after which a group may have a turn too many."""

    def step(self, what: str, value: object) -> None:
        group = self.group
        self.steps += 1
        match what, value:
            case "publish", list():
                self.publish(value)
            case "lease" | "together", int():
                self.lease(value, together=what == "together")
            case "wait", int():
                group.now += value
            case "settle" | "release" | "delay" | "extend", int():
                self.end(what, value)
            case "blocking", int() if self.spec.order == "group":
                self.spec = msgspec.structs.replace(
                    self.spec, group_blocking=("lease", "message")[value]
                )
                assert self.ask(Configure(self.spec)) == self.spec
                self.is_exact = False
            case "bound", int():
                self.spec = msgspec.structs.replace(self.spec, group_in_flight=value)
                assert self.ask(Configure(self.spec)) == self.spec
                self.is_exact = False
            case "hold", _:
                group.hold = True
            case "fold" | "crash", _:
                group.fold()
                group.hold = False
                if what == "crash":
                    group.crash()
                    self.is_exact = False
            case "purge", _:
                self.ask(Purge())
                self.rows.clear()
                # What groups had of their rates goes with them.
                self.buckets.clear()
            case _:
                self.ask(Tick())
        if not group.pending:
            group.check()
        if self.spec.blocking == "lease":
            assert self.held_by_one(), "two calls hold messages of one group"
        self.note_ready(by_time=what == "wait")

    def publish(self, rows: list[tuple[int, int | None, int]]) -> None:
        runs: list[RowSchedule] = []
        messages: list[NewMessage] = []
        for at, (group, delay_ms, key) in enumerate(rows):
            is_delete = self.spec.keyed and key == 9
            headers = ((GROUP_HEADER, b"%d" % group),)
            messages.append(NewMessage(None if is_delete else b"x", b"%d" % (key % 4), headers))
            if delay_ms is not None:
                runs.append(RowSchedule(at, 1, delay_ms=delay_ms))
        answer = self.ask(Publish(tuple(messages), None, tuple(runs)))
        assert answer == PublishResult(Seq(self.last + 1), len(rows))
        for group, delay_ms, key in rows:
            self.last += 1
            wait = self.spec.delay_ms if delay_ms is None else delay_ms
            if self.spec.keyed:
                old = self.rows.pop(self.keys.get(key % 4, 0), None)
                if old is not None and not old.lease:
                    # The turn that its group had for it serves another one.
                    self.is_exact = False
                elif old is not None:
                    # Its group no longer has a turn with released messages.
                    self.since.pop(old.group, None)
                self.keys[key % 4] = self.last
                if key == 9:
                    continue
            self.rows[self.last] = Row(group, (self.now + wait, not wait, self.last), key)

    def of(self, group: int) -> tuple[list[int], list[int], list[int]]:
        """Return the messages of a group that are ready again, held or delayed, and waiting."""
        again: list[int] = []
        held: list[int] = []
        waiting: list[tuple[tuple[int, bool, int], int]] = []
        for seq, row in self.rows.items():
            if row.group != group:
                continue
            if row.lease:
                (again if row.ready_ms <= self.now else held).append(seq)
            elif row.entry[0] <= self.now:
                waiting.append((row.entry, seq))
        return sorted(again), held, [seq for _, seq in sorted(waiting)]

    def eligible(self) -> dict[int, list[int]]:
        """The groups that may be served, and what of them, in order."""
        out: dict[int, list[int]] = {}
        most = self.spec.group_in_flight or 10**6
        for group in range(6):
            again, held, waiting = self.of(group)
            if again and self.spec.order == "fair":
                # It has a turn for these, and kept the one that it had.
                self.is_exact = False
            if self.spec.blocking == "lease":
                found = [] if held else again or waiting
            elif self.spec.blocking == "message":
                found = again + waiting if not held else [s for s in again if s < min(held)]
            else:
                room = most - len(again) - len(held)
                found = again or waiting[: max(room, 0)]
            found = found[:most]
            if self.spec.group_rate_us:
                found = found[: self.bucket_of(group).tokens(self.now)]
            if found:
                out[group] = found
        return out

    def bucket_of(self, group: int) -> Bucket:
        spec = self.spec
        return self.buckets.setdefault(group, Bucket(spec.group_rate_us, spec.group_burst))

    def note_ready(self, *, by_time: bool = False) -> None:
        ready = self.eligible()
        for group in range(6):
            if group not in ready:
                self.since.pop(group, None)
                self.timed.discard(group)
            elif group not in self.since:
                self.since[group] = self.steps
                if by_time:
                    # When it is given its turn is found out later.
                    self.timed.add(group)

    def lease(self, count: int, *, together: bool = False) -> int:
        self.note_ready(by_time=True)
        ready = self.eligible()
        answer = self.ask(LeaseMessages(count, LEASE_MS, together=together))
        assert isinstance(answer, Leased)
        if self.spec.rate_us:
            count = min(count, self.bucket.tokens(self.now))
            self.bucket.pay(len(answer.seqs))
        assert len(answer.seqs) <= count
        told = [seq for seqs in answer.turns for seq in seqs] or list(answer.seqs)
        assert BitMap64(told) == answer.seqs
        served: dict[int, list[int]] = {}
        for seq in told:
            assert seq in self.rows, "dead, or there never was such a message"
            served.setdefault(self.rows[seq].group, []).append(seq)
        if self.spec.blocking == "message":
            by_group = [seq for seqs in served.values() for seq in seqs]
            assert told == by_group, "the answer goes by groups"
        for group, seqs in served.items():
            assert group in ready, "the group is blocked"
            assert seqs == ready[group][: len(seqs)], "another of the group comes first"
        # A small window may show groups that are of no use, or not all that come before others.
        known = 1 if together or limits.RING_TURNS < MANY else MANY
        assert len(served) >= min(count, len(ready), known), "a group was passed over"
        if count <= min(len(ready), known) and not together:
            assert all(len(seqs) == 1 for seqs in served.values()), "one each, first"
        if self.is_exact:
            told_by = {group: at for group, at in self.since.items() if group not in self.timed}
            waited = [at for group, at in told_by.items() if group not in served]
            got = [at for group, at in told_by.items() if group in served]
            assert not waited or not got or max(got) <= min(waited), "it was another one's turn"
        for group, seqs in served.items():
            self.since.pop(group)
            self.timed.discard(group)
            if self.spec.group_rate_us:
                self.bucket_of(group).pay(len(seqs))
        for seq in told:
            row = self.rows[seq]
            row.lease, row.is_freed = answer.lease, False
            row.ready_ms = self.now + LEASE_MS
        return len(told)

    def may_extend(self, seq: int) -> bool:
        row = self.rows[seq]
        if self.spec.order != "group" or row.ready_ms > self.now:
            return True
        upto = seq if self.spec.blocking == "message" else self.last
        return len(self.holders(row.group, upto) - {row.lease}) == 0

    def holders(self, group: int, upto: int) -> set[int]:
        """Return the lease calls that hold messages of a group, or for whose delays it waits."""
        rows = [row for seq, row in self.rows.items() if row.group == group and seq <= upto]
        return {row.lease for row in rows if row.lease and row.ready_ms > self.now}

    def held_by_one(self) -> bool:
        """Return True if each group is held by at most one call; released messages are held by
        none."""
        held = {(row.group, row.lease) for row in self.rows.values() if self.is_held(row)}
        return len(held) == len({group for group, _ in held})

    def is_held(self, row: Row) -> bool:
        return bool(row.lease) and not row.is_freed and row.ready_ms > self.now

    def finish(self) -> None:
        """Deliver all waiting messages, and check that nothing is left behind."""
        self.step("fold", 0)
        self.group.now += 10_000
        for seq in sorted(self.rows):
            answer = self.ask(Explain(Seq(seq), b"%d" % self.rows[seq].group))
            assert isinstance(answer, Explanation)
            assert answer.state in ("ready", "returned", "blocked", "limited", "delayed")
        idle = 0
        while self.rows and idle < 3:
            idle = 0 if self.lease(7) else idle + 1
            self.settle_held()
            self.group.now += 10_000
            self.group.check()
            self.note_ready()
        assert not self.rows, "somebody waits for ever"
        assert not self.lease(1)
        for _ in range(100):
            self.ask(Tick())
        self.group.check()
        for kind in ERA_KINDS:
            assert not list(self.group.store.cells(QUEUE, kind))


SPECS = st.builds(
    lambda order, **settings: QueueSpec(order=order[0], group_blocking=order[1], **settings),
    st.sampled_from([("group", "lease"), ("group", "message"), ("fair", "lease")]),
    keyed=st.booleans(),
    group_in_flight=st.sampled_from([0, 0, 1, 2]),
    delay_ms=st.sampled_from([0, 0, 7]),
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, spec=SPECS, turns=st.sampled_from([2, MANY]))
def test_groups_take_turns_and_keep_their_order(
    steps: list[tuple[str, object]], spec: QueueSpec, turns: int
) -> None:
    with small(turns):
        naive = Naive(spec)
        for what, value in steps:
            naive.step(what, value)
        naive.finish()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS,
    spec=st.builds(
        lambda order, **settings: QueueSpec(order=order[0], group_blocking=order[1], **settings),
        st.sampled_from([("group", "lease"), ("group", "message"), ("fair", "lease")]),
        rate_us=st.sampled_from([0, 300, 4_000]),
        rate_burst=st.sampled_from([1, 3]),
        group_rate_us=st.sampled_from([300, 4_000, 30_000]),
        group_burst=st.sampled_from([1, 2, 5]),
    ),
)
def test_rates_hold_across_crashes(steps: list[tuple[str, object]], spec: QueueSpec) -> None:
    with small():
        naive = Naive(spec)
        # When a group's share comes back is not one of the steps.
        naive.is_exact = False
        for what, value in steps:
            naive.step(what, value)
        naive.finish()


def test_a_group_of_many_is_written_in_cells_of_one_part() -> None:
    """The index takes them as they are, without asking how many parts there were before."""
    naive = Naive(QueueSpec(order="group"))
    naive.publish([(0, None, 0)] * (limits.TURN_SEQS_MAX + limits.GROUP_CELL_SEQS_MAX))
    assert naive.lease(1_000) == limits.TURN_SEQS_MAX
    naive.settle_held()
    assert naive.lease(1) == 1
    # Behind a cell of kind GROUP that was just taken as a whole.
    naive.publish([(0, None, 0)] * 1_000)
    naive.group.check()
    for kind in (Kind.TURN, Kind.GROUP, Kind.RING):
        for _, _, value in naive.group.store.cells(QUEUE, kind):
            assert len(value) <= PART_BYTES
    widest = 2**64 - 1
    for cell in (
        TurnCell((widest,) * limits.GROUP_CELL_SEQS_MAX, widest, widest, widest, widest),
        TurnCell((widest,) * limits.TURN_SEQS_MAX, widest, widest, widest, widest),
        GroupCell((widest,) * limits.GROUP_CELL_SEQS_MAX),
        RingCell((widest,) * limits.RING_PAGE_TURNS),
    ):
        assert len(encode_cell(cell)) <= PART_BYTES
    naive.finish()
