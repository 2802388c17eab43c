"""Groups with blocking by message, against a naive form of the rule of AWS.

A lease call walks the messages of a group that have not ended, from the oldest on, and stops at the
first invisible one. The model is a list of messages with times and counters; besides the rule it
has TTL, dead letters, sessions, successors, purges and changes of the settings.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from millrace.core.answers import Leased, Outcome, PublishResult
from millrace.core.commands import (
    Command,
    Configure,
    CreateQueue,
    Discard,
    Extend,
    LeaseMessages,
    MoveDeadLetters,
    Publish,
    Purge,
    Release,
    Replace,
    RowSchedule,
    RowTtl,
    Settle,
    Tick,
)
from millrace.core.model import (
    CATALOG,
    GROUP_HEADER,
    NEVER_MS,
    LeaseId,
    NewMessage,
    Seq,
    ShardId,
)
from millrace.core.retention import expiry
from millrace.core.session_commands import (
    Claim,
    CloseSession,
    OpenSession,
    Receive,
    ReceiveResult,
    ResumeSession,
    SessionRef,
)
from millrace.core.spec import QueueSpec
from millrace.core.state.view import View
from millrace.errors import Refused
from tests.core.ordering.test_groups import small
from tests.support.models.commit_group import Group

GROUPS = 3
LEASE_MS = 60
SESSION_CREDIT = 4
DEAD = "default/dead"

ROWS = st.lists(
    st.tuples(
        st.integers(0, GROUPS - 1),
        st.sampled_from([None, None, None, None, 0, 5]),
        st.sampled_from([None, None, None, 8, 40]),
    ),
    min_size=1,
    max_size=6,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), ROWS),
        st.tuples(st.sampled_from(["lease", "together", "together"]), st.integers(1, 10)),
        st.tuples(st.just("wait"), st.sampled_from([1, 5, 30, 70])),
        st.tuples(
            st.sampled_from(["settle", "release", "delay", "fail", "extend", "show", "discard"]),
            st.integers(0, 20),
        ),
        st.tuples(st.just("replace"), st.integers(0, 20)),
        st.tuples(st.sampled_from(["receive", "close"]), st.integers(0, 5)),
        st.tuples(st.just("failures"), st.sampled_from([0, 1, 2])),
        st.tuples(st.just("letters"), st.integers(0, 1)),
        st.tuples(st.just("blocking"), st.sampled_from(["message", "message", "lease"])),
        st.tuples(st.sampled_from(["hold", "fold", "crash", "tick", "bury"]), st.just(0)),
        st.tuples(st.sampled_from(["purge", "tick"]), st.just(0)),
    ),
    min_size=15,
    max_size=60,
)


@dataclass
class Row:
    """A message that has not ended."""

    group: int
    entry: tuple[int, bool, int]
    """When it begins to wait, and its order among others."""
    dies_ms: int | None
    lease: int = 0
    """The lease call that holds it; 0: it was never delivered."""
    session: bool = False
    is_freed: bool = False
    ready_ms: int = 0
    deliveries: int = 0
    failures: int = 0
    is_doomed: bool = False


class Model:
    """A queue, and the expected messages in the order in which they were sent."""

    def __init__(self, spec: QueueSpec) -> None:
        self.group = Group()
        self.spec = spec
        self.group.ask((CATALOG, CreateQueue("default", "dead", QueueSpec())))
        self.queue = ShardId(2)
        self.group.ask((CATALOG, CreateQueue("default", "q", spec)))
        self.rows: dict[int, Row] = {}
        self.last = 0
        self.claim: Claim | None = None
        self.told = 0
        self.has_lives = False

    @property
    def now(self) -> int:
        return self.group.now

    @property
    def view(self) -> View:
        view = self.group.view(self.queue)
        assert view is not None
        return view

    def ask(self, command: Command) -> object:
        [answer] = self.group.ask((self.queue, command))
        return answer

    # --- What is expected ------------------------------------------------------------------------

    def is_dead(self, row: Row) -> bool:
        """Return True if a released message is never delivered again."""
        failures = row.failures + (not row.is_freed)
        most, least = self.spec.max_deliveries, self.spec.max_failures
        is_over = row.dies_ms is not None and row.dies_ms <= self.now
        return is_over or 0 < most <= row.deliveries or 0 < least <= failures

    def walk(self, group: int) -> list[int]:
        """Return the messages of a group that a lease call may get, in this order."""
        back: list[int] = []
        for seq, row in sorted(self.rows.items()):
            if row.group != group or not row.lease or row.is_doomed:
                continue
            is_over = row.dies_ms is not None and row.dies_ms <= self.now
            if row.ready_ms > self.now:
                if self.spec.blocking == "lease":
                    return []
                if is_over:
                    continue
                return back
            if not self.is_dead(row):
                back.append(seq)
        waiting = sorted(
            (row.entry, seq)
            for seq, row in self.rows.items()
            if row.group == group
            and not row.lease
            and row.entry[0] <= self.now
            and (row.dies_ms is None or row.dies_ms > self.now)
        )
        if self.spec.blocking == "lease" and back:
            return back
        return back + [seq for _, seq in waiting]

    def may_extend(self, seq: int) -> bool:
        """Return True if no other call holds a message before this expired one."""
        row = self.rows[seq]
        if row.ready_ms > self.now:
            return True
        by_message = self.spec.blocking == "message"
        return not any(
            other.group == row.group
            and other.lease not in (0, row.lease)
            and not other.is_doomed
            and other.ready_ms > self.now
            and not (by_message and at in self.view.overdue)
            for at, other in self.rows.items()
            if at < seq or not by_message
        )

    def note_ended(self) -> None:
        """Record the end of messages, which is found out when they are released."""
        view = self.view
        for seq, row in list(self.rows.items()):
            if row.lease and seq not in view.holder:
                assert self.is_dead(row) or row.is_doomed, f"{seq} is gone"
                del self.rows[seq]
            elif row.lease and not row.is_doomed and seq in view.doomed:
                assert row.ready_ms <= self.now
                assert self.is_dead(row), f"{seq} is a dead letter"
                self.doom(row)

    def doom(self, row: Row) -> None:
        row.failures += not row.is_freed
        row.is_doomed = row.is_freed = True

    # --- What happens ----------------------------------------------------------------------------

    def step(self, what: str, value: object) -> None:
        match what, value:
            case "publish", list():
                self.publish(value)
            case (("lease" | "together"), int()):
                self.lease(value, together=what == "together")
            case "wait", int():
                self.group.now += value
            case "receive", int():
                self.receive()
            case "close", int():
                self.close(value)
            case "replace", int():
                self.replace(value)
            case "failures", int():
                self.configure(max_failures=value)
            case "letters", int():
                self.configure(dead_letter=DEAD if value else "")
            case "blocking", str():
                self.configure(group_blocking=value)
            case "hold", _:
                self.group.hold = True
            case (("fold" | "crash"), _):
                self.group.fold()
                self.group.hold = False
                if what == "crash":
                    self.group.crash()
                    self.resume()
            case "purge", _:
                self.ask(Purge())
                self.rows.clear()
            case "tick", _:
                self.ask(Tick())
            case "bury", _:
                self.bury()
            case _, int():
                self.end(what, value)
        if not self.group.pending:
            self.group.check()
        self.note_ended()

    def publish(self, rows: list[tuple[int, int | None, int | None]]) -> None:
        asides: list[RowSchedule] = []
        lives: list[RowTtl] = []
        for at, (_, delay_ms, ttl_ms) in enumerate(rows):
            if delay_ms is not None:
                asides.append(RowSchedule(at, 1, delay_ms=delay_ms))
            if ttl_ms is not None:
                lives.append(RowTtl(at, 1, ttl_ms))
                self.has_lives = True
        messages = tuple(message_of(group) for group, _, _ in rows)
        answer = self.ask(Publish(messages, None, tuple(asides), lives=tuple(lives)))
        assert answer == PublishResult(Seq(self.last + 1), len(rows))
        for group, delay_ms, ttl_ms in rows:
            self.last += 1
            entry = (self.now + (delay_ms or 0), not delay_ms, self.last)
            dies_ms = None if ttl_ms is None else self.now + ttl_ms
            self.rows[self.last] = Row(group, entry, dies_ms)

    def lease(self, count: int, *, together: bool = False) -> int:
        ready = {group: found for group in range(GROUPS) if (found := self.walk(group))}
        answer = self.ask(LeaseMessages(count, LEASE_MS, together=together))
        assert isinstance(answer, Leased)
        assert len(answer.seqs) <= count
        told = [seq for seqs in answer.turns for seq in seqs] or list(answer.seqs)
        assert BitMap64(told) == answer.seqs
        self.see(told, ready, count, together=together)
        for seq in told:
            self.hand_out(seq, answer.lease, self.now + LEASE_MS)
        return len(told)

    def see(
        self, told: list[int], ready: dict[int, list[int]], count: int, *, together: bool
    ) -> None:
        """See that these are what the walks say."""
        served: dict[int, list[int]] = {}
        for seq in told:
            served.setdefault(self.rows[seq].group, []).append(seq)
        for group, seqs in served.items():
            assert seqs == ready.get(group, [])[: len(seqs)], f"of {group}: {ready}"
        if self.spec.blocking == "message":
            assert told == [seq for seqs in served.values() for seq in seqs], "by groups"
        # Nothing is delivered while it is unknown which messages have expired.
        is_known = not self.group.pending and not expiry.tick_due(self.view, self.now)
        is_behind = self.has_lives and not is_known
        assert bool(told) == bool(ready) or is_behind, f"nothing of {ready}"
        if together:
            for group in list(served)[:-1]:
                # Some of the messages that are examined together may have expired.
                is_part = self.is_small or self.has_lives
                assert served[group] == ready[group] or is_part, "the group has more"
        else:
            known = 1 if self.is_small else GROUPS
            assert len(served) >= min(count, len(ready), known) or is_behind, "a group waits"

    is_small = False

    def hand_out(self, seq: int, lease: int, ready_ms: int) -> None:
        row = self.rows[seq]
        if row.lease:
            row.failures += not row.is_freed
        row.deliveries += 1
        row.lease, row.is_freed, row.ready_ms = lease, False, ready_ms
        row.session = ready_ms == NEVER_MS

    def configure(self, **changed: object) -> None:
        self.spec = msgspec.structs.replace(self.spec, **changed)
        assert self.ask(Configure(self.spec)) == self.spec

    def held(self) -> list[int]:
        return sorted(
            seq
            for seq, row in self.rows.items()
            if row.lease and not row.is_freed and not row.is_doomed
        )

    def end(self, what: str, at: int) -> None:
        """Settle, release, extend or discard a held message."""
        held = self.held()
        if not held:
            return
        seq = held[at % len(held)]
        row = self.rows[seq]
        lease, seqs, history = LeaseId(row.lease), BitMap64([seq]), self.group.history
        delay_ms = 9 if what == "delay" else 0
        if what in ("extend", "show"):
            may = self.may_extend(seq)
            lease_ms = LEASE_MS if what == "extend" else 0
            answer = self.ask(Extend(lease, seqs, history, lease_ms))
            assert isinstance(answer, Outcome)
            assert may == (seq in answer.done), f"{seq}: {answer.refused}"
            if answer.done and not row.session:
                row.ready_ms = self.now + lease_ms
            return
        if what == "settle":
            answer = self.ask(Settle(lease, seqs, history))
        elif what == "discard":
            answer = self.ask(Discard(lease, seqs, history))
        else:
            release = Release(lease, seqs, history, failed=what == "fail", delay_ms=delay_ms)
            answer = self.ask(release)
        assert isinstance(answer, Outcome)
        assert answer.done == seqs
        if what in ("settle", "discard"):
            del self.rows[seq]
            return
        row.failures += what == "fail"
        row.is_freed, row.ready_ms = True, self.now + delay_ms
        most, least = self.spec.max_deliveries, self.spec.max_failures
        row.is_doomed = 0 < most <= row.deliveries or 0 < least <= row.failures

    def replace(self, at: int) -> None:
        """Settle one that is held, and hold its successor, which comes last."""
        held = [seq for seq in self.held() if not self.rows[seq].session]
        if not held:
            return
        seq = held[at % len(held)]
        row = self.rows[seq]
        may = self.may_extend(seq)
        message = message_of(row.group)
        history = self.group.history
        answer = self.ask(Replace(LeaseId(row.lease), BitMap64([seq]), history, message, LEASE_MS))
        if isinstance(answer, Refused):
            assert not may, answer
            return
        assert isinstance(answer, Leased)
        self.last += 1
        assert answer.seqs == BitMap64([self.last])
        del self.rows[seq]
        self.rows[self.last] = Row(
            row.group,
            row.entry,
            None,
            answer.lease,
            ready_ms=self.now + LEASE_MS,
            deliveries=row.deliveries,
            failures=row.failures,
        )

    def bury(self) -> None:
        """Move dead letters; without a dead-letter queue, those that would be none are messages
        again."""
        doomed = list(self.view.doomed)
        groups = [self.rows[seq].group if seq in self.rows else 0 for seq in doomed]
        rows = [(seq, 0, message_of(group)) for seq, group in zip(doomed, groups, strict=True)]
        self.ask(MoveDeadLetters(tuple(rows)))
        for seq in doomed:
            row = self.rows.get(seq)
            if row is None:
                # It was discarded.
                assert seq not in self.view.holder
            elif self.spec.dead_letter or self.is_counted_out(row):
                del self.rows[seq]
            else:
                row.is_doomed, row.ready_ms = False, self.now

    def is_counted_out(self, row: Row) -> bool:
        most, least = self.spec.max_deliveries, self.spec.max_failures
        return 0 < most <= row.deliveries or 0 < least <= row.failures

    # --- A session -------------------------------------------------------------------------------

    def receive(self) -> None:
        """The session is handed what its credit allows."""
        if self.claim is None:
            answer = self.ask(OpenSession(SESSION_CREDIT, True, 0, 10**9))
            assert isinstance(answer, SessionRef)
            self.claim, self.told = answer.claim, 0
        ready = {group: found for group in range(GROUPS) if (found := self.walk(group))}
        held = sum(row.session for seq, row in self.rows.items() if seq in self.held())
        count = SESSION_CREDIT - held
        answer = self.ask(Receive(self.claim, self.told, 10))
        assert isinstance(answer, ReceiveResult)
        told = [seq for delivery in answer.deliveries for seq in delivery.numbers]
        if count > 0:
            self.see(told, ready, count, together=False)
        else:
            assert not told
        self.told = answer.next
        for delivery in answer.deliveries:
            for seq in delivery.numbers:
                self.hand_out(seq, delivery.lease, NEVER_MS)

    def close(self, unseen: int) -> None:
        """Release the messages of a session, the last `unseen` ones as undelivered."""
        if self.claim is None:
            return
        seen = max(self.told - unseen, 0)
        numbers: dict[int, int] = {}
        for lease in self.view.leases.values():
            if lease.session:
                numbers |= {
                    seq: number
                    for number, seq in enumerate(lease.order or lease.handed, lease.first)
                }
        for seq in self.held():
            row = self.rows[seq]
            if row.session:
                row.is_freed, row.ready_ms = True, self.now
                row.deliveries -= numbers[seq] >= seen
                row.is_doomed = self.is_counted_out(row)
        self.ask(CloseSession(self.claim, seen))
        self.claim = None

    def resume(self) -> None:
        if self.claim is not None:
            answer = self.ask(ResumeSession(self.claim.session, self.group.history))
            assert isinstance(answer, SessionRef)
            self.claim = answer.claim

    def finish(self) -> None:
        """Deliver everything that waits."""
        self.step("fold", 0)
        self.step("close", 0)
        idle = 0
        while idle < 3:
            idle = 0 if self.lease(7, together=True) else idle + 1
            self.note_ended()
            for seq in self.held():
                self.end("settle", self.held().index(seq))
            self.group.now += 10_000
            self.ask(Tick())
            self.group.check()
            self.note_ended()
        left = [seq for seq, row in self.rows.items() if not row.is_doomed and not row.dies_ms]
        assert not left, "somebody waits for ever"


def message_of(group: int) -> NewMessage:
    return NewMessage(b"x", None, ((GROUP_HEADER, b"%d" % group),))


SPECS = st.builds(
    QueueSpec,
    order=st.just("group"),
    group_blocking=st.just("message"),
    max_failures=st.sampled_from([0, 0, 2]),
    max_deliveries=st.sampled_from([0, 0, 3]),
    dead_letter=st.sampled_from(["", DEAD]),
)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, spec=SPECS, is_small=st.booleans())
def test_a_lease_call_walks_each_group_to_the_first_hidden_message(
    steps: list[tuple[str, object]],
    spec: QueueSpec,
    is_small: bool,  # noqa: FBT001
) -> None:
    with small(2) if is_small else pytest.MonkeyPatch.context():
        model = Model(spec)
        model.is_small = is_small
        for what, value in steps:
            model.step(what, value)
        model.finish()


def test_what_waits_for_its_rate_behind_an_expired_message_is_not_forgotten() -> None:
    """A dead letter that is a message again is in flight while its group waits in its bucket."""
    spec = QueueSpec(
        order="group",
        group_blocking="message",
        group_rate_us=1_000_000,
        group_burst=1,
        max_failures=1,
        dead_letter=DEAD,
    )
    model = Model(spec)

    def given(lease_ms: int = LEASE_MS) -> list[int]:
        answer = model.ask(LeaseMessages(1, lease_ms))
        assert isinstance(answer, Leased)
        return list(answer.seqs)

    model.publish([(0, None, 100)])
    assert model.lease(1) == 1
    model.step("fail", 0)
    model.publish([(0, None, None)])
    assert given() == []
    model.configure(dead_letter="", max_failures=0)
    model.step("bury", 0)
    # Its bucket names the time of the old rate.
    model.configure(group_rate_us=1)
    assert given() == []
    model.group.now += 1
    assert given(10_000) == [1]
    model.group.now += 200
    assert given() == []
    model.group.check()
    model.group.now += 1_000
    assert given() == [2]
    model.group.check()
