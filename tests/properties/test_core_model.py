"""The core against the naive model: the same commands, the same answers, the same rows.

Commands are decided alone or together, committed at once or later; the decider crashes and loads
its views again, or another history takes over and loses the last batches. Whenever all is folded,
the decider's memory must equal the state that is loaded from the cells.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyroaring import BitMap64

from millrace import limits
from millrace.core.answers import (
    Leased,
    Outcome,
    PublishResult,
    SnapshotRef,
)
from millrace.core.cells import CursorCell
from millrace.core.commands import (
    ApplyTransaction,
    Command,
    CommitCursor,
    Configure,
    CreateQueue,
    DeleteCursor,
    Discard,
    DropStage,
    Extend,
    LeaseMessages,
    MoveDeadLetters,
    NextSnapshot,
    OpenCursor,
    Pin,
    ProducerNumber,
    Publish,
    PublishStaged,
    Purge,
    Release,
    Replace,
    ResetCursor,
    Rewind,
    Settle,
    Stage,
    Tick,
    Unpin,
)
from millrace.core.format.block import Block
from millrace.core.model import (
    CATALOG,
    CursorPosition,
    Death,
    LeaseId,
    NewMessage,
    ShardId,
    StartPoint,
)
from millrace.core.spec import QueueSpec
from millrace.core.state.fold import Reader
from tests.support.models.commit_group import Group, Result
from tests.support.models.parts import Limits
from tests.support.models.shard import Model

DEAD = ShardId(1)
QUEUE = ShardId(2)
KEEP_DELETES_MS = 5_000
PIN_MS = 60_000
FIRST_ENTRIES = 4
"""Found, two queues made, and the follower's cursor: no takeover loses them."""


def plain(answer: Result) -> object:
    """The answer in the model's words."""
    match answer:
        case Exception():
            return type(answer).__name__
        case PublishResult():
            where = (answer.seqs or answer.first, answer.count)
            return (*where, "repeated") if answer.repeated else where
        case Leased():
            return {seq: answer.counts.get(seq, (1, 0)) for seq in answer.seqs}
        case Outcome():
            refused = {seq: type(error).__name__ for seq, error in answer.refused.items()}
            return dict.fromkeys(answer.done, "done") | refused
        case SnapshotRef():
            return (answer.pin, answer.after, answer.start)
        case CursorCell():
            return answer.position.seq
        case tuple():
            return tuple(plain(part) for part in answer)
        case _:
            return answer


@dataclass
class Receipt:
    """The receipt of a lease call."""

    lease: int
    token: int
    history: bytes
    seqs: list[int]
    entry: int
    """What must be committed before it is handed over."""


@dataclass
class Follower:
    """A reader with a table of its own, which it commits together with its cursor."""

    table: dict[object, bytes]
    history: bytes
    seq: int
    base: int
    """Seq up to which rows were purged when it began."""


@dataclass
class Waiting:
    """A command that is decided with the next ones."""

    command: Command
    expect: Callable[[], object]
    then: Callable[[Result], None]


class Driver:
    """The core and the model, driven by the same users."""

    model_class = Model

    def __init__(self, *, keyed: bool, log: bool, retain: bool, limits: Limits) -> None:
        self.group = Group()
        self.model = self.model_class(keyed, log, KEEP_DELETES_MS, limits=limits, dedup_ms=DEDUP_MS)
        self.waiting: list[Waiting] = []
        self.together = False
        self.receipts: list[Receipt] = []
        self.refs: dict[str, SnapshotRef] = {}
        self.ids: dict[str, int] = {}
        self.shared: dict[bytes, int] = {}
        self.read_of = BitMap64()
        self.pin = 0
        """What the core has answered: which of several pins it shares is its own affair."""
        self.token = 0
        self.takeovers = 0
        self.group.ask((CATALOG, CreateQueue("default", "dead", QueueSpec())))
        spec = make_spec(limits, keyed=keyed, log=log)
        self.group.ask((CATALOG, CreateQueue("default", "q", spec)))
        self.states = [copy.deepcopy(self.model)] * FIRST_ENTRIES
        self.is_exact = log or retain
        self.retain = retain
        self.is_fixed = True
        self.was_log = log
        self.follower = self.stored = Follower({}, b"", 0, 0)
        self.open_cursor("f", 0, retain=retain)

    # --- Deciding -----------------------------------------------------------------------------

    def ask(
        self,
        command: Command,
        expect: Callable[[], object],
        then: Callable[[Result], None] = lambda _: None,
    ) -> None:
        self.waiting.append(Waiting(command, expect, then))
        if not self.together:
            self.decide()

    def decide(self) -> None:
        waiting, self.waiting = self.waiting, []
        before = self.entries()
        self.model.now = self.group.now
        answers = self.group.ask(*((QUEUE, one.command) for one in waiting))
        for one, answer in zip(waiting, answers, strict=True):
            self.pin = answer.pin if isinstance(answer, SnapshotRef) else 0
            assert self.plain(answer) == one.expect(), one.command
        self.model.end_batch()
        for one, answer in zip(waiting, answers, strict=True):
            one.then(answer)
        if self.entries() > before:
            self.states.append(copy.deepcopy(self.model))
        assert len(self.states) == self.entries() + 1

    def plain(self, answer: Result) -> object:
        return plain(answer)

    def entries(self) -> int:
        return len(self.group.log) + len(self.group.pending)

    def crash(self) -> None:
        self._lose_answers()
        self.group.crash()
        self._go_back(len(self.group.log))

    def _lose_answers(self) -> None:
        """Drop the answers of uncommitted commands."""
        committed = len(self.group.log)
        self.receipts = [receipt for receipt in self.receipts if receipt.entry <= committed]

    def take_over(self, lost: int) -> None:
        self._lose_answers()
        upto = max(FIRST_ENTRIES, len(self.group.log) - lost)
        self.takeovers += 1
        self.group.take_over(f"T{self.takeovers}", upto)
        self._go_back(upto)
        for history in [*self.shared, *(entry.history for entry in self.group.committed())]:
            self.shared[history] = min(self.shared.get(history, self.model.last), self.model.last)
        for follower in (self.follower, self.stored):
            follower.base = min(follower.base, self.model.purged)

    def _go_back(self, entries: int) -> None:
        self.waiting.clear()
        del self.states[entries + 1 :]
        self.model = copy.deepcopy(self.states[entries])

    def configure(self, limits: Limits, *, log: bool) -> None:
        def expect() -> object:
            if spec.retention == "log" and self.model.has_replaced:
                return "Invalid"
            self.model.log = spec.retention == "log"
            self.model.limits = limits
            return spec

        # Messages settled under "log" would never end: there is no way back.
        self.was_log = self.was_log or log
        spec = make_spec(limits, keyed=self.model.keyed, log=self.was_log)
        self.ask(Configure(spec), expect)
        self.is_fixed = False
        self.is_exact = self.is_exact and self.retain

    # --- Publishing and working -----------------------------------------------------------------

    def publish(
        self,
        messages: list[NewMessage],
        *,
        is_block: bool,
        number: int | None,
        ids: tuple[str | None, ...] = (),
    ) -> None:
        rows = Block.of_messages(messages) if is_block else tuple(messages)
        if number is None:
            self.ask(Publish(rows, ids=ids), lambda: self.model.publish(messages, ids=ids))
            return
        wanted = max(1, self.model.producers.get("p", (0, {}))[0] + number)
        self.ask(
            Publish(rows, ProducerNumber("p", wanted), ids=ids),
            lambda: self.model.publish(messages, "p", wanted, ids),
        )

    def stage(self, name: str, messages: list[NewMessage]) -> None:
        self.ask(Stage(name, Block.of_messages(messages)), lambda: self.model.stage(name, messages))

    def publish_staged(self, names: list[str]) -> None:
        self.ask(PublishStaged(tuple(names)), lambda: self.model.publish_staged(names))

    def lease(self, count: int, lease_ms: int, attempt: str = "") -> None:
        self.token += 1
        token = self.token

        def keep(answer: Result) -> None:
            assert isinstance(answer, Leased)
            if answer.seqs:
                seqs, history = list(answer.seqs), self.group.history
                known = self.model.leases[answer.lease].token
                receipt = Receipt(answer.lease, known, history, seqs, self.entries())
                self.receipts.append(receipt)

        self.ask(
            LeaseMessages(count, lease_ms, attempt),
            lambda: self.model.lease(count, lease_ms, token, attempt),
            keep,
        )

    def replace(self, receipt: Receipt, seq: int, message: NewMessage) -> None:
        self.token += 1
        token = self.token

        def keep(answer: Result) -> None:
            if isinstance(answer, Leased):
                found, history = list(answer.seqs), self.group.history
                receipt = Receipt(answer.lease, token, history, found, self.entries())
                self.receipts.append(receipt)

        seqs = BitMap64([seq])
        self.ask(
            Replace(LeaseId(receipt.lease), seqs, receipt.history, message, 5_000),
            lambda: self.model.replace(receipt.lease, receipt.token, seq, message, 5_000, token),
            keep,
        )

    def settle(
        self, receipt: Receipt, seqs: list[int], *, on_time: bool = False, is_any: bool = False
    ) -> None:
        def expected() -> dict[int, str]:
            words: dict[int, str] = {}
            for (lease, token), some in self._latest(receipt, seqs, is_any=is_any).items():
                words |= self.model.settle(lease, token, some, on_time=on_time)
            return words

        lease, found = LeaseId(receipt.lease), BitMap64(seqs)
        self.ask(Settle(lease, found, receipt.history, on_time, is_any), expected)

    def _latest(
        self, receipt: Receipt, seqs: list[int], *, is_any: bool
    ) -> dict[tuple[int, int], list[int]]:
        if not is_any:
            return {(receipt.lease, receipt.token): seqs}
        is_current = receipt.history == self.group.history
        return self.model.by_latest(receipt.lease, receipt.token, seqs, is_current=is_current)

    def release(
        self,
        receipt: Receipt,
        seqs: list[int],
        *,
        failed: bool,
        delay: int,
        unseen: bool,
        on_time: bool,
    ) -> None:
        lease, found = LeaseId(receipt.lease), BitMap64(seqs)
        self.ask(
            Release(lease, found, receipt.history, failed, delay, unseen, on_time),
            lambda: self.model.release(
                receipt.lease,
                receipt.token,
                seqs,
                failed=failed,
                delay=delay,
                unseen=unseen,
                on_time=on_time,
            ),
        )

    def discard(self, receipt: Receipt, seqs: list[int]) -> None:
        self.ask(
            Discard(LeaseId(receipt.lease), BitMap64(seqs), receipt.history),
            lambda: self.model.discard(receipt.lease, receipt.token, seqs),
        )

    def bury(self, *, is_late: bool) -> None:
        """Move dead letters as the mover does; perhaps late, with rows that it has read earlier."""
        view = self.group.view(QUEUE)
        assert view is not None
        seqs = view.doomed | self.read_of if is_late else view.doomed
        rows = self.group.store.rows(QUEUE, seqs)
        self.read_of = BitMap64([row.seq for row in rows])
        letters = tuple(
            (row.seq, row.time_ms, NewMessage(row.body, row.key, row.headers)) for row in rows
        )
        named = list(self.read_of)
        self.ask(MoveDeadLetters(letters), lambda: self.model.bury(named))

    def rewind(self, start: int) -> None:
        place = StartPoint.END if start < 0 else start
        self.ask(Rewind(place), lambda: self.model.rewind(start))

    def extend(
        self,
        receipt: Receipt,
        seqs: list[int],
        lease_ms: int,
        *,
        on_time: bool = False,
        is_any: bool = False,
    ) -> None:
        def expected() -> dict[int, str]:
            words: dict[int, str] = {}
            for (lease, token), some in self._latest(receipt, seqs, is_any=is_any).items():
                words |= self.model.extend(lease, token, some, lease_ms, on_time=on_time)
            return words

        lease, found = LeaseId(receipt.lease), BitMap64(seqs)
        self.ask(Extend(lease, found, receipt.history, lease_ms, on_time, 0, is_any), expected)

    def transact(
        self, receipt: Receipt, seqs: list[int], messages: list[NewMessage], *, is_first: bool
    ) -> None:
        """Settle and publish at once: the way of a worker that must do neither twice."""
        settle = Settle(LeaseId(receipt.lease), BitMap64(seqs), receipt.history)
        publish = Publish(tuple(messages))

        def expect() -> object:
            judged = self.model.judge("settle", receipt.lease, receipt.token, seqs)
            errors = [judged[seq] for seq in sorted(judged) if judged[seq] != "done"]
            if any(m.body is None and (m.key is None or not self.model.keyed) for m in messages):
                errors.insert(0 if is_first else len(errors), "Invalid")
            if errors:
                return errors[0]
            done = self.model.settle(receipt.lease, receipt.token, seqs)
            where = self.model.publish(messages)
            return (where, done) if is_first else (done, where)

        parts = ((QUEUE, settle), (QUEUE, publish))
        self.ask(ApplyTransaction((parts[1], parts[0]) if is_first else parts), expect)

    # --- Cursors ------------------------------------------------------------------------------

    def open_cursor(self, name: str, start: int, *, retain: bool) -> None:
        self.ask(
            OpenCursor(name, StartPoint.END if start < 0 else StartPoint.BEGINNING, retain),
            lambda: self.model.open_cursor(name, start, retain=retain),
            lambda answer: self._keep_id(name, answer),
        )

    def reset_cursor(self, name: str, start: int) -> None:
        self.ask(
            ResetCursor(name, StartPoint.END if start < 0 else StartPoint.BEGINNING),
            lambda: self.model.reset(name, start),
            lambda answer: self._keep_id(name, answer),
        )

    def _keep_id(self, name: str, answer: Result) -> None:
        if isinstance(answer, CursorCell):
            self.ids[name] = answer.id

    def next_snapshot(self, name: str, after: int) -> None:
        cursor_id = self.ids.get(name, 0)

        def keep(answer: Result) -> None:
            if isinstance(answer, SnapshotRef):
                pin = self.model.pins.get(answer.pin)
                assert pin is None or pin.boundary == answer.boundary
                self.refs[name] = answer

        def expect() -> object:
            cursor = self.model.cursors.get(name)
            if cursor is not None and cursor.id != cursor_id:
                return "NotFound"
            return self.model.next(name, after, PIN_MS, shared=self.pin)

        self.ask(NextSnapshot(name, cursor_id, after, PIN_MS), expect, keep)

    def commit(self, name: str, seq: int) -> None:
        ref = self.refs[name]
        cursor_id = self.ids.get(name, 0)
        position = CursorPosition(ref.history, seq, ref.start, ref.boundary)

        def expect() -> object:
            cursor = self.model.cursors.get(name)
            is_found = cursor is not None and cursor.id == cursor_id
            if is_found and ref.history != self.group.history:
                return "Stale"
            return self.model.commit(name, cursor_id, seq, ref.start, ref.boundary)

        self.ask(CommitCursor(name, cursor_id, position), expect)

    # --- A follower that keeps a table -----------------------------------------------------------

    def commit_all(self) -> None:
        """Decide and commit all waiting commands: only then readers get their answers."""
        self.together = False
        if self.waiting:
            self.decide()
        self.group.fold()

    def follow(self) -> list[Result]:
        """Ask for the follower's next snapshot."""
        self.commit_all()
        cursor = self.model.cursors["f"]
        self.ids["f"] = cursor.id
        if self.follower.seq < cursor.seq:
            # A takeover has lost that it started over.
            self.start_over()
        answers: list[Result] = []
        follower = self.follower
        self.ask(
            NextSnapshot("f", self.ids["f"], follower.seq, PIN_MS, follower.history),
            self._expect_next,
            answers.append,
        )
        self.commit_all()
        return answers

    def _expect_next(self) -> object:
        follower = self.follower
        if follower.history in (b"", self.group.history):
            return self.model.next("f", follower.seq, PIN_MS, shared=self.pin)
        known = {
            entry.history
            for entry in self.group.committed()
            if any(batch.shard == QUEUE for batch in entry.batches)
        }
        shared = self.shared[follower.history] if follower.history in known else 0
        if follower.seq > shared:
            return "RolledBack"
        return self.model.next("f", 0, PIN_MS, follower.seq, self.pin)

    def read(self, ref: SnapshotRef, share: float, *, commits: bool) -> None:
        """Read a part of a snapshot, and perhaps commit it."""
        reader = Reader(ref.pin, ref.retain)
        rows = [
            row
            for batch in self.group.store.scan(QUEUE, ref.after, ref.boundary, reader)
            for row in batch.to_pylist()
        ]
        stop = round(len(rows) * share)
        is_whole = stop == len(rows)
        seq = ref.boundary if is_whole else rows[stop - 1]["seq"] if stop else ref.after
        table = dict(self.follower.table)
        for row in rows[:stop]:
            if row["value"] is None:
                table.pop(self._key(row["seq"]), None)
            else:
                table[self._key(row["seq"])] = row["value"]
        # After a takeover it may be sent what it has already: its table began before.
        base = self.follower.base if self.follower.seq else self.model.pins[ref.pin].purged
        self.follower = Follower(table, ref.history, seq, base)
        if is_whole:
            self._check_table(ref, table)
        if commits:
            position = CursorPosition(ref.history, seq, ref.start, ref.boundary)
            self.ask(
                CommitCursor("f", self.ids["f"], position),
                lambda: self.model.commit("f", self.ids["f"], seq, ref.start, ref.boundary),
            )
            self.commit_all()
            self.stored = self.follower

    def _check_table(self, ref: SnapshotRef, table: dict[object, bytes]) -> None:
        """K2: at a boundary a follower holds what the shard held."""
        pin = self.model.pins[ref.pin]
        assert pin.rows is not None
        for seq, body in pin.rows.items():
            assert body is None or table[self._key(seq)] == body
        if self.is_exact and not self.has_dead():
            assert table == self._replay(ref.boundary)

    def has_dead(self) -> bool:
        """Return True if messages were dropped or moved: followers do not get those."""
        ends = ("dropped", "dead_lettered")
        return any(row.state in ends for row in self.model.rows.values())

    def _key(self, seq: int) -> object:
        key = self.model.rows[seq].key
        return key if self.model.keyed and key is not None else seq

    def _replay(self, boundary: int) -> dict[object, bytes]:
        """Every row that was published since the follower began, settled or not."""
        table: dict[object, bytes] = {}
        for seq in range(self.follower.base + 1, boundary + 1):
            body = self.model.rows[seq].body
            table.pop(self._key(seq), None)
            if body is not None:
                table[self._key(seq)] = body
        return table

    def start_over(self) -> None:
        """Begin again with an empty table, since its content cannot be repaired."""
        self.reset_cursor("f", 0)
        self.commit_all()
        self.is_exact = self.model.log and self.is_fixed
        self.follower = self.stored = Follower({}, b"", 0, self.model.purged)

    # --- What always holds ----------------------------------------------------------------------

    def check(self) -> None:
        if self.group.pending or self.waiting:
            return
        self.group.check()
        meta = self.group.store.meta(QUEUE)
        assert meta is not None
        assert meta.last_seq == meta.published == self.model.last
        for retain in (False, True):
            shown = self.group.seqs(QUEUE, Reader(retain=retain))
            assert shown == BitMap64(self.model.visible(retain=retain))
        for number, pin in self.model.pins.items():
            assert pin.rows is not None
            seen = self.group.seqs(QUEUE, Reader(number, pin.retain))
            assert seen & BitMap64(range(pin.boundary + 1)) == BitMap64(pin.rows), "I7"
        states = [row.state for row in self.model.rows.values()]
        for why in Death:
            assert meta.died[why] == states.count(why.name.lower()), why
        self._check_dead()

    def _check_dead(self) -> None:
        """Check that the dead-letter queue holds all moved messages, once, with their reasons."""
        rows = self.group.store.rows(DEAD, BitMap64(range(1, len(self.model.dead) + 2)))
        found = []
        for row in rows:
            told = {name: value.decode() for name, value in row.headers}
            seq = int(told["millrace-dead-seq"])
            counts = (told["millrace-dead-deliveries"], told["millrace-dead-failures"])
            found.append((seq, told["millrace-dead-reason"], *map(int, counts)))
            given = self.model.rows[seq]
            assert (row.key, row.body) == (given.key, given.body)
        assert found == self.model.dead


def make_spec(limits: Limits, *, keyed: bool, log: bool) -> QueueSpec:
    return QueueSpec(
        keyed,
        "log" if log else "work",
        KEEP_DELETES_MS,
        limits.retry_min,
        limits.retry_max,
        limits.max_failures,
        limits.max_deliveries,
        "default/dead" if limits.buries else "",
        dedup_ms=DEDUP_MS,
        keep_messages=limits.keep_messages if log and not keyed else 0,
        notes=(("failures", str(limits.max_failures)),) if limits.max_failures else (),
        max_in_flight=limits.max_in_flight,
    )


WEIGHTS = {
    "publish": 12,
    "configure": 1,
    "lease": 8,
    "work": 6,
    "settle": 8,
    "release": 6,
    "discard": 2,
    "bury": 3,
    "rewind": 2,
    "extend": 3,
    "replace": 3,
    "transact": 4,
    "stage": 5,
    "publish_staged": 3,
    "stage_and_publish": 4,
    "drop_stage": 1,
    "purge": 1,
    "follow": 8,
    "crash_follower": 1,
    "open_cursor": 3,
    "reset_cursor": 1,
    "delete_cursor": 1,
    "next": 4,
    "commit": 5,
    "pin": 2,
    "unpin": 2,
    "tick": 4,
    "wait": 5,
    "hold": 4,
    "fold": 6,
    "crash": 2,
    "take_over": 1,
}

KEYS = st.sampled_from([b"a", b"b", b"c", b"a", b"b", None])
BODIES = st.sampled_from([b"x", b"yy", b"zzz", b"", None])
MESSAGES = st.lists(st.tuples(KEYS, BODIES), min_size=1, max_size=3)
IDS = st.sampled_from(["i", "j", "k", None])
DEDUP_MS = 20_000
STAGES = st.sampled_from(["s", "t"])
CURSORS = st.sampled_from(["c", "r"])
WAITS = st.sampled_from([1, 900, 6_000, 6_000, 31_000, 61_000, limits.LEASE_REMEMBERED_MS])
SHARES = st.sampled_from([1.0, 1.0, 0.5, 0.7, 0.0])
DELAYS = st.sampled_from([0, 0, 900, 6_000, 31_000])
LIMITS = st.one_of(
    st.just(Limits()),
    st.builds(
        Limits,
        max_failures=st.integers(0, 3),
        max_deliveries=st.sampled_from([0, 0, 1, 2, 4]),
        retry_min=st.sampled_from([0, 0, 900, 6_000]),
        retry_max=st.sampled_from([0, 0, 6_000, 10_000]),
        buries=st.booleans(),
        keep_messages=st.sampled_from([0, 0, 1, 5]),
        max_in_flight=st.sampled_from([0, 0, 1, 3]),
    ),
)
SOMETIMES = st.sampled_from([False, False, True])


class CoreMachine(RuleBasedStateMachine):
    """Random commands to one queue."""

    driver_class = Driver
    weights: ClassVar[dict[str, int]] = WEIGHTS

    @initialize(
        keyed=st.sampled_from([True, True, True, False]),
        log=SOMETIMES,
        retain=st.booleans(),
        limits=LIMITS,
        muted=st.sets(st.sampled_from(sorted(WEIGHTS)), max_size=12),
    )
    def make(
        self, *, keyed: bool, log: bool, retain: bool, limits: Limits, muted: set[str]
    ) -> None:
        self.driver = self.driver_class(keyed=keyed, log=log, retain=retain, limits=limits)
        often = [kind for kind, weight in self.weights.items() for _ in range(weight)]
        self.kinds = st.sampled_from([kind for kind in often if kind not in muted])

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        self.driver.together = data.draw(SOMETIMES, label="together")
        self._act(data.draw(self.kinds, label="what"), data)

    def _act(self, kind: str, data: st.DataObject) -> None:
        driver = self.driver
        match kind:
            case "publish":
                number = data.draw(st.sampled_from([None, None, 0, 1, 1, 2]))
                messages = self._messages(data)
                ids: tuple[str | None, ...] = ()
                if data.draw(SOMETIMES):
                    ids = tuple(data.draw(IDS) for _ in messages)
                driver.publish(messages, is_block=data.draw(st.booleans()), number=number, ids=ids)
            case "stage":
                driver.stage(data.draw(STAGES), self._messages(data))
            case "publish_staged":
                driver.publish_staged(data.draw(st.lists(STAGES, min_size=1, max_size=2)))
            case "stage_and_publish":
                name = data.draw(STAGES)
                driver.stage(name, self._messages(data))
                driver.publish_staged([name])
            case "drop_stage":
                name = data.draw(STAGES)
                driver.ask(DropStage(name), lambda: driver.model.drop_stage(name))
            case "lease":
                driver.lease(
                    data.draw(st.integers(1, 4)),
                    data.draw(st.sampled_from([5_000, 60_000])),
                    data.draw(st.sampled_from(["", "", "", "a", "b"])),
                )
            case "work":
                driver.lease(data.draw(st.integers(1, 4)), 60_000)
                if driver.receipts and not driver.together:
                    driver.settle(driver.receipts[-1], driver.receipts[-1].seqs)
            case "configure":
                driver.configure(data.draw(LIMITS), log=data.draw(st.booleans()))
            case "bury":
                driver.bury(is_late=data.draw(st.booleans()))
            case "rewind":
                driver.rewind(data.draw(st.sampled_from([-1, 1, 1, 2, 3, 5])))
            case "settle" | "release" | "extend" | "transact" | "discard" | "replace":
                if driver.receipts:
                    self._work(kind, data)
            case "purge":
                forgets = data.draw(SOMETIMES)
                driver.ask(Purge(forgets), lambda: driver.model.purge(forgets_ids=forgets))
            case "tick":
                driver.ask(Tick(), lambda: driver.model.tick(limits.LEASE_REMEMBERED_MS))
            case _:
                self._follow(kind, data)

    def _messages(self, data: st.DataObject) -> list[NewMessage]:
        items = data.draw(MESSAGES)
        if not self.driver.model.keyed and data.draw(st.integers(0, 9)):
            items = [(key, body or b"") for key, body in items]
        return [
            NewMessage(body, key, (("h", b"v"),) if body == b"x" else ()) for key, body in items
        ]

    def _work(self, kind: str, data: st.DataObject) -> None:
        driver = self.driver
        receipt = data.draw(st.sampled_from([*driver.receipts, *driver.receipts[-2:] * 3]))
        seqs = sorted(data.draw(st.sets(st.sampled_from(receipt.seqs), min_size=1)))
        if data.draw(st.integers(0, 9)) == 0:
            seqs = [*seqs, max(seqs) + 1]
        match kind:
            case "settle":
                is_any = data.draw(SOMETIMES)
                driver.settle(receipt, seqs, on_time=data.draw(SOMETIMES), is_any=is_any)
            case "release":
                driver.release(
                    receipt,
                    seqs,
                    failed=data.draw(st.booleans()),
                    delay=data.draw(DELAYS),
                    unseen=data.draw(SOMETIMES),
                    on_time=data.draw(SOMETIMES),
                )
            case "discard":
                driver.discard(receipt, seqs)
            case "replace":
                driver.replace(receipt, seqs[0], NewMessage(b"r", data.draw(KEYS)))
            case "extend":
                for_ms = data.draw(st.sampled_from([1, 90_000]))
                is_any = data.draw(SOMETIMES)
                driver.extend(receipt, seqs, for_ms, on_time=data.draw(SOMETIMES), is_any=is_any)
            case _:
                is_first = data.draw(st.booleans())
                driver.transact(receipt, seqs, self._messages(data), is_first=is_first)

    def _follow(self, kind: str, data: st.DataObject) -> None:
        driver = self.driver
        match kind:
            case "follow":
                match driver.follow()[0]:
                    case SnapshotRef() as ref:
                        driver.read(ref, data.draw(SHARES), commits=data.draw(st.booleans()))
                    case None:
                        pass
                    case _:
                        driver.start_over()
            case "crash_follower":
                driver.follower = driver.stored
            case "open_cursor":
                name = data.draw(CURSORS)
                driver.open_cursor(name, data.draw(st.sampled_from([0, -1])), retain=name == "r")
            case "reset_cursor":
                driver.reset_cursor(data.draw(CURSORS), data.draw(st.sampled_from([0, -1])))
            case "delete_cursor":
                name = data.draw(CURSORS)
                driver.ask(DeleteCursor(name), lambda: driver.model.delete_cursor(name))
            case "next":
                driver.next_snapshot(
                    data.draw(CURSORS), data.draw(st.sampled_from([0, 0, 1, 3, 7]))
                )
            case "commit":
                if driver.refs:
                    name = data.draw(st.sampled_from(sorted(driver.refs)))
                    ref = driver.refs[name]
                    end = st.just(ref.boundary)
                    driver.commit(name, data.draw(end | st.integers(ref.after, ref.boundary)))
            case "pin":
                driver.ask(Pin(PIN_MS), lambda: (driver.model.pin(PIN_MS), 0, 0))
            case "unpin":
                pin = data.draw(st.integers(1, max(1, driver.model.pin_id)))
                view = driver.group.view(QUEUE)
                found = view.pins.get(pin) if view is not None else None
                command = Unpin(pin, driver.group.history, found.index if found else 0)
                driver.ask(command, lambda: driver.model.unpin(pin))
            case _:
                self._steer(kind, data)

    def _steer(self, kind: str, data: st.DataObject) -> None:
        driver = self.driver
        match kind:
            case "wait":
                driver.group.now += data.draw(WAITS)
            case "hold":
                driver.group.hold = True
            case "fold":
                count = data.draw(st.sampled_from([None, 1, 2]))
                driver.group.fold(count)
                driver.group.hold = count is not None
            case "crash":
                driver.crash()
            case "take_over":
                driver.take_over(data.draw(st.integers(0, 5)))

    @invariant()
    def adds_up(self) -> None:
        self.driver.check()


PHASES = [Phase.reuse, Phase.generate, Phase.shrink]

CoreMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("EXAMPLES", "150")),
    stateful_step_count=50,
    phases=PHASES[1:2] if os.environ.get("NOSHRINK") else PHASES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestCoreModel = CoreMachine.TestCase


def test_an_id_in_flight_that_is_over_keeps_no_message_back() -> None:
    driver = Driver(keyed=True, log=False, retain=False, limits=Limits())
    one = [NewMessage(b"x", b"a")]
    for _ in range(2):
        driver.publish(one, is_block=False, number=None, ids=())
    driver.group.fold(1)
    driver.group.hold = True
    for ids in ((), (), (), ("i",)):
        driver.publish(one, is_block=False, number=None, ids=ids)
    driver.group.now += 31_000
    driver.lease(1, 60_000)
    assert driver.receipts[-1].seqs == [6]
