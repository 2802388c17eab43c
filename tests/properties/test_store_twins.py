"""The disk store against its naive twin: the place of data on disk is never visible.

Random commands are decided by the shipped core and folded into both stores. The disk store is
checkpointed, sealed, rewritten, reopened and killed in between, and after each step both are
compared by all queries.
"""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyroaring import BitMap64

from millrace.core.answers import Leased, QueueRef, SnapshotRef
from millrace.core.cells import CursorCell
from millrace.core.commands import (
    Command,
    CommitCursor,
    CreateQueue,
    DeleteCursor,
    DeleteQueue,
    DropStage,
    LeaseMessages,
    NextSnapshot,
    OpenCursor,
    Pin,
    Publish,
    PublishStaged,
    Purge,
    Release,
    RowSchedule,
    Settle,
    Stage,
    Tick,
    Unpin,
)
from millrace.core.format.block import Block
from millrace.core.model import (
    CATALOG,
    CursorPosition,
    NewMessage,
    ShardId,
    StartPoint,
)
from millrace.core.spec import QueueSpec
from tests.support.contracts.compare_stores import compare
from tests.support.contracts.store_subject import simulated
from tests.support.contracts.story import DISTURBANCES
from tests.support.models.commit_group import Group, Result

KEYS = [b"k%d" % at for at in range(12)]
STAGES = ["s0", "s1", "s2"]
CURSORS = ["c0", "c1"]
PIN_MS = 100_000

bodies = st.one_of(st.just(b""), st.binary(max_size=20), st.integers(1, 3000).map(bytes))
headers = st.sampled_from([(), (), (("h", b"1"), ("h", b"")), (("x", b"y" * 50),)])
queues = st.integers(0, 1)
seeds = st.integers(0, 1 << 16)


class Twins(RuleBasedStateMachine):
    """A keyed queue and one that is not, in one commit group."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group()
        self.subject = simulated()
        self.fed = 0
        self.shards: list[ShardId] = []
        self.leases: list[tuple[ShardId, Leased]] = []
        self.pins: list[tuple[ShardId, SnapshotRef]] = []
        self.cursors: dict[tuple[ShardId, str], int] = {}
        self.takeovers = 0

    @initialize(retention=st.sampled_from(["work", "log"]))
    def begin(self, retention: str) -> None:
        for keyed in (True, False):
            self.make(keyed=keyed, log=retention == "log")

    def make(self, *, keyed: bool, log: bool) -> None:
        spec = QueueSpec(keyed, "log" if log else "work", 5_000)
        if log:
            # Rows go by retention, too, whatever the ticks find.
            kept = {"keep_ms": 30_000} if keyed else {"keep_messages": 40}
            spec = msgspec.structs.replace(spec, **kept)
        name = f"q{len(self.shards)}"
        [ref] = self.group.ask((CATALOG, CreateQueue("default", name, spec)))
        assert isinstance(ref, QueueRef)
        self.shards.append(ref.shards[0])
        self.feed()

    def ask(self, queue: int, *commands: Command) -> list[Result]:
        shard = self.shards[queue]
        answers = self.group.ask(*((shard, command) for command in commands))
        self.feed()
        return answers

    def feed(self) -> None:
        for entry in self.group.committed()[self.fed :]:
            self.subject.feed(entry)
            self.fed += 1

    def messages(
        self, queue: int, parts: list[tuple[bytes, int, object, bool]]
    ) -> list[NewMessage]:
        found: list[NewMessage] = []
        for body, key, pairs, delete in parts:
            named = KEYS[key] if key < len(KEYS) else None
            gone = delete and queue == 0 and named is not None
            found.append(NewMessage(None if gone else body, named, pairs))  # type: ignore[arg-type]
        return found

    rows = st.lists(
        st.tuples(bodies, st.integers(0, len(KEYS) + 3), headers, st.booleans()),
        min_size=1,
        max_size=30,
    )

    # --- Commands ------------------------------------------------------------------------------

    @rule(queue=queues, parts=rows, more=rows, as_block=st.booleans())
    def publish(
        self,
        queue: int,
        parts: list[tuple[bytes, int, object, bool]],
        more: list[tuple[bytes, int, object, bool]],
        *,
        as_block: bool,
    ) -> None:
        first, second = self.messages(queue, parts), self.messages(queue, more)
        rows = Block.of_messages(first) if as_block else tuple(first)
        self.ask(queue, Publish(rows), Publish(tuple(second)))

    @rule(
        queue=queues,
        parts=rows,
        turn=st.sampled_from([(9, None), (4, 2_000), (0, 9_000)]),
    )
    def publish_aside(
        self,
        queue: int,
        parts: list[tuple[bytes, int, object, bool]],
        turn: tuple[int, int | None],
    ) -> None:
        aside = RowSchedule(len(parts) // 2, len(parts) - len(parts) // 2, *turn)
        self.ask(queue, Publish(tuple(self.messages(queue, parts)), None, (aside,)))

    @rule(queue=queues, count=st.integers(1, 40))
    def lease(self, queue: int, count: int) -> None:
        [answer] = self.ask(queue, LeaseMessages(count, 1_000))
        if isinstance(answer, Leased) and answer.seqs:
            self.leases.append((self.shards[queue], answer))

    @rule(seed=seeds, release=st.booleans())
    def end_lease(self, seed: int, *, release: bool) -> None:
        if self.leases:
            shard, leased = self.leases[seed % len(self.leases)]
            seqs = BitMap64([seq for at, seq in enumerate(leased.seqs) if (seed >> at % 16) & 1])
            if seqs and shard in self.shards:
                kind = Release if release else Settle
                self.ask(self.shards.index(shard), kind(leased.lease, seqs, self.group.history))

    @rule(queue=queues)
    def pin(self, queue: int) -> None:
        [answer] = self.ask(queue, Pin(PIN_MS))
        if isinstance(answer, SnapshotRef):
            self.pins.append((self.shards[queue], answer))

    @rule(seed=seeds)
    def unpin(self, seed: int) -> None:
        if self.pins:
            shard, ref = self.pins.pop(seed % len(self.pins))
            if shard in self.shards:
                self.ask(self.shards.index(shard), Unpin(ref.pin, ref.history, ref.index))

    @rule(queue=queues, stage=st.sampled_from(STAGES), parts=rows)
    def stage(self, queue: int, stage: str, parts: list[tuple[bytes, int, object, bool]]) -> None:
        self.ask(queue, Stage(stage, Block.of_messages(self.messages(queue, parts))))

    @rule(queue=queues, stages=st.permutations(STAGES), count=st.integers(1, 3), parts=rows)
    def publish_staged(
        self,
        queue: int,
        stages: list[str],
        count: int,
        parts: list[tuple[bytes, int, object, bool]],
    ) -> None:
        after = Publish(tuple(self.messages(queue, parts)))
        self.ask(queue, PublishStaged(tuple(stages[:count])), after)

    @rule(queue=queues, stage=st.sampled_from(STAGES))
    def drop_stage(self, queue: int, stage: str) -> None:
        self.ask(queue, DropStage(stage))

    @rule(queue=queues, name=st.sampled_from(CURSORS), retain=st.booleans())
    def open_cursor(self, queue: int, name: str, *, retain: bool) -> None:
        [answer] = self.ask(queue, OpenCursor(name, StartPoint.BEGINNING, retain))
        if isinstance(answer, CursorCell):
            self.cursors[self.shards[queue], name] = answer.id

    @rule(queue=queues, name=st.sampled_from(CURSORS), commit=st.booleans())
    def follow(self, queue: int, name: str, *, commit: bool) -> None:
        shard = self.shards[queue]
        cursor = self.cursors.get((shard, name), 0)
        [ref] = self.ask(queue, NextSnapshot(name, cursor, 0, PIN_MS))
        if isinstance(ref, SnapshotRef) and commit:
            end = ref.boundary
            self.ask(
                queue,
                CommitCursor(
                    name, cursor, CursorPosition(ref.history, end, min(ref.start, end), end)
                ),
            )

    @rule(queue=queues, name=st.sampled_from(CURSORS))
    def delete_cursor(self, queue: int, name: str) -> None:
        self.ask(queue, DeleteCursor(name))

    @rule(queue=queues, parts=rows)
    def purge(self, queue: int, parts: list[tuple[bytes, int, object, bool]]) -> None:
        self.ask(queue, Purge(), Publish(tuple(self.messages(queue, parts))))

    @rule(queue=queues, passed=st.sampled_from([1, 1_000, 10_000]))
    def tick(self, queue: int, passed: int) -> None:
        self.group.now += passed
        self.ask(queue, Tick())

    @rule()
    def take_over(self) -> None:
        self.takeovers += 1
        self.group.take_over(f"T{self.takeovers}")

    @rule(queue=queues)
    def delete_and_make_anew(self, queue: int) -> None:
        self.group.ask((CATALOG, DeleteQueue("default", f"q{queue}")))
        spec = QueueSpec(queue == 0)
        [ref] = self.group.ask((CATALOG, CreateQueue("default", f"q{queue}", spec)))
        assert isinstance(ref, QueueRef)
        self.shards[queue] = ref.shards[0]
        self.feed()

    # --- What must go unnoticed ------------------------------------------------------------------

    @rule(how=st.integers(0, DISTURBANCES - 1))
    def disturb(self, how: int) -> None:
        self.subject.disturb(how)

    @rule()
    def step_checkpoint(self) -> None:
        self.subject.step_checkpoint()

    @rule()
    def step_seal(self) -> None:
        self.subject.step_seal()

    @rule()
    def seal_everything(self) -> None:
        self.subject.seal_all()

    def teardown(self) -> None:
        self.subject.close()

    @invariant()
    def twins_agree(self) -> None:
        if len(self.shards) == 2:
            compare(self.subject.store, self.group.store, KEYS)


TestTwins = pytest.mark.slow(Twins.TestCase)
TestTwins.settings = settings(
    max_examples=int(os.environ.get("TWINS", "60")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
