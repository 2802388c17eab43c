"""resync(any state) = fold(all batches), between both stores, in all combinations.

A commit group decides random commands. The source folds everything; the target stops somewhere on
the way, perhaps follows another history, and is then brought to the source's state: by recent
batches, or by state transfer. After that both fold the same batches and must stay the same.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from millrace.core.answers import Leased, SnapshotRef
from millrace.core.cells import CursorCell
from millrace.core.changes import Entry
from millrace.core.commands import (
    Command,
    CommitCursor,
    CreateQueue,
    DropStage,
    LeaseMessages,
    NextSnapshot,
    OpenCursor,
    Pin,
    Publish,
    PublishStaged,
    Purge,
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
    Epoch,
    NewMessage,
    ShardId,
    StartPoint,
)
from millrace.core.spec import QueueSpec
from millrace.journal.entries_since import entries_since
from millrace.store.resync import (
    SendEntries,
    SendState,
    catch_up,
    choose,
    resync,
    send_state,
)
from tests.support.contracts.compare_stores import GROUP, compare
from tests.support.contracts.store_subject import DiskSubject, MemorySubject, simulated
from tests.support.models.commit_group import Group

KEYS = [b"k%d" % at for at in range(12)]
QUEUE = ShardId(1)
Pair = MemorySubject | DiskSubject
Make = Callable[[], Pair]


class Program:
    """Random commands to one queue, decided one after the other."""

    def __init__(self, seed: int, *, keyed: bool) -> None:
        self.chance = random.Random(seed)
        self.keyed = keyed
        self.group = Group()
        self.group.ask((CATALOG, CreateQueue("default", "q", QueueSpec(keyed, "work", 3_000))))
        self.leases: list[Leased] = []
        self.pins: list[SnapshotRef] = []
        self.cursors: dict[str, int] = {}
        self.takeovers = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.group.now += self.chance.choice([0, 10, 1_000, 4_000])
            self.step()
            if self.chance.random() < 0.05:
                self.takeovers += 1
                self.group.take_over(f"H{self.takeovers}{self.chance.random()}"[:12])

    def publish_aside(self) -> Publish:
        messages = self.messages()
        priority, delay_ms = self.chance.choice([(9, None), (4, 1_000), (0, 5_000)])
        aside = RowSchedule(0, self.chance.randint(1, len(messages)), priority, delay_ms)
        return Publish(tuple(messages), None, (aside,))

    def step(self) -> None:
        chance = self.chance
        name = chance.choice(["s", "t"])
        cursor = chance.choice(["c", "d"])
        commands: list[Command] = [
            Publish(tuple(self.messages())),
            Publish(Block.of_messages(self.messages())),
            self.publish_aside(),
            LeaseMessages(chance.randint(1, 20), 1_000),
            Pin(100_000),
            Stage(name, Block.of_messages(self.messages())),
            PublishStaged((name,)),
            DropStage(name),
            OpenCursor(cursor, StartPoint.BEGINNING, retain=True),
            NextSnapshot(cursor, self.cursors.get(cursor, 0), 0, 100_000),
            Tick(),
        ]
        if self.leases:
            leased = chance.choice(self.leases)
            seqs = BitMap64([seq for seq in leased.seqs if chance.random() < 0.7])
            if seqs:
                commands += [Settle(leased.lease, seqs, self.group.history)] * 3
        if self.pins:
            ref = self.pins.pop(chance.randrange(len(self.pins)))
            commands += [Unpin(ref.pin, ref.history, ref.index)]
        if chance.random() < 0.1:
            commands += [Purge()]
        command = chance.choice(commands)
        [answer] = self.group.ask((QUEUE, command))
        match answer:
            case Leased() if answer.seqs:
                self.leases.append(answer)
            case SnapshotRef() if isinstance(command, Pin):
                self.pins.append(answer)
            case SnapshotRef() if chance.random() < 0.7:
                end = answer.boundary
                place = CursorPosition(answer.history, end, min(answer.start, end), end)
                self.group.ask((QUEUE, CommitCursor(cursor, self.cursors[cursor], place)))
            case CursorCell():
                self.cursors[cursor] = answer.id

    def messages(self) -> list[NewMessage]:
        chance = self.chance
        found: list[NewMessage] = []
        for _ in range(chance.randint(1, 25)):
            key = chance.choice([*KEYS, None])
            gone = self.keyed and key is not None and chance.random() < 0.2
            headers = (("h", b"v"),) if chance.random() < 0.2 else ()
            found.append(NewMessage(None if gone else chance.randbytes(20), key, headers))
        return found


def feed(subject: Pair, entries: list[Entry], chance: random.Random) -> None:
    for entry in entries:
        subject.feed(entry)
        if chance.random() < 0.3:
            subject.disturb(chance.randrange(16))


def rest_of(subject: Pair) -> Callable[[], None]:
    return subject.checkpoint if isinstance(subject, DiskSubject) else lambda: None


def bring(source: Pair, target: Pair, chance: random.Random) -> None:
    """Resync every shard, and return up to which entry the target now is."""
    if isinstance(target, DiskSubject):
        target.settle()
    if chance.random() < 0.5 and by_suffix(source, target):
        return
    for shard in sorted({*source.store.shards(), *target.store.shards()}):
        if isinstance(target, DiskSubject) and chance.random() < 0.3:
            break_off(source, target, shard)
        resync(source.store, target.store, shard, rest_of(target))
    target.store.set_applied(GROUP, source.store.applied(GROUP), Epoch(1))
    if isinstance(target, DiskSubject):
        target.checkpoint()


def by_suffix(source: Pair, target: Pair) -> bool:
    """Send what the group did since, if the target is only behind, and the source's log has it."""

    def since() -> Iterable[Entry] | None:
        if not isinstance(source, DiskSubject):
            return None
        return entries_since(
            source.log,
            GROUP,
            target.store.applied(GROUP),
            source.store.applied(GROUP),
            commits_when_synced=lambda _: True,
        )

    shards = sorted({*source.store.shards(), *target.store.shards()})
    before = {shard: target.store.meta(shard) for shard in shards}
    if catch_up(source.store, target.store, shards, since, target.feed):
        assert target.store.applied(GROUP) == source.store.applied(GROUP)
        return True
    assert {shard: target.store.meta(shard) for shard in shards} == before
    return False


def break_off(source: Pair, target: DiskSubject, shard: ShardId) -> None:
    """The process ends in the middle: the target must be as it was before."""
    export = source.store.export(shard)
    if export is None:
        return
    before = target.store.meta(shard)
    cells = list(target.store.cells(shard)) if before is not None else []
    calls = iter(range(1_000))

    def rest() -> None:
        target.checkpoint()
        if next(calls) == 1:
            raise InterruptedError

    try:
        send_state(export, target.store, shard, 0, rest)
    except InterruptedError:
        target.reopen()
        assert target.store.meta(shard) == before
        assert before is None or list(target.store.cells(shard)) == cells


STORES: dict[str, Make] = {"memory": MemorySubject, "disk": simulated}


@pytest.mark.slow
@pytest.mark.parametrize("to", STORES)
@pytest.mark.parametrize("source", STORES)
def test_resync_is_fold(source: str, to: str) -> None:
    @settings(
        max_examples=int(os.environ.get("RESYNCS", "10")),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        seed=st.integers(0, 1 << 32),
        keyed=st.booleans(),
        shared=st.integers(0, 40),
        astray=st.sampled_from([0, 0, 5, 20]),
    )
    def check(seed: int, keyed: bool, shared: int, astray: int) -> None:  # noqa: FBT001
        _check(STORES[source], STORES[to], seed, shared, astray, keyed=keyed)

    check()


def _check(
    make_source: Make, make_target: Make, seed: int, shared: int, astray: int, *, keyed: bool
) -> None:
    chance = random.Random(seed)
    program = Program(seed, keyed=keyed)
    program.run(shared)
    prefix = len(program.group.log)
    target = make_target()
    feed(target, program.group.committed(), chance)
    if astray:
        # The target goes on alone for a while; then another one takes over where it left off.
        other = Program(seed + 1, keyed=keyed)
        other.group.log = list(program.group.log)
        other.group.take_over("astray", prefix)
        other.run(astray)
        feed(target, other.group.committed()[prefix:], chance)
        program.group.take_over("other", prefix)
    program.run(40)
    source = make_source()
    feed(source, program.group.committed(), chance)
    bring(source, target, chance)
    compare(target.store, source.store, KEYS)
    before = len(program.group.log)
    program.run(15)
    for entry in program.group.committed()[before:]:
        source.feed(entry)
        target.feed(entry)
        if chance.random() < 0.3:
            target.disturb(chance.randrange(16))
            compare(target.store, source.store, KEYS)
    compare(target.store, source.store, KEYS)
    target.close()


@pytest.mark.parametrize(
    ("seed", "shared", "keyed"), [(19, 14, False), (19, 30, True), (0, 30, True)]
)
def test_what_begins_before_the_front_is_not_gone(seed: int, shared: int, *, keyed: bool) -> None:
    """Regression: the target keeps a region of its own that begins below the source's front."""
    _check(STORES["memory"], STORES["disk"], seed, shared, 0, keyed=keyed)


def test_a_suffix_is_sent_as_long_as_the_log_has_it() -> None:
    program = Program(3, keyed=True)
    program.run(30)
    source, target, late, astray = simulated(), simulated(), simulated(), simulated()
    entries = program.group.committed()
    for entry in entries:
        source.feed(entry)
    for entry in entries[: len(entries) // 2]:
        target.feed(entry)
        late.feed(entry)
        astray.feed(entry)
    assert by_suffix(source, target)
    compare(target.store, source.store, KEYS)
    other = Program(4, keyed=True)
    other.group.log = list(program.group.log)
    other.group.take_over("astray", len(entries) // 2)
    other.group.ask((QUEUE, Publish((NewMessage(b"nobody else has it"),))))
    for entry in other.group.committed()[len(entries) // 2 :]:
        astray.feed(entry)
    assert not by_suffix(source, astray)
    source.seal_all()
    assert not by_suffix(source, late)
    for subject in (source, target, late, astray):
        subject.close()


def test_a_suffix_is_chosen_where_it_can_be_had() -> None:
    """A target that lags is sent batches; one that diverged, or lags too far, is sent state."""
    program = Program(1, keyed=True)
    program.run(20)
    source, target = MemorySubject(), MemorySubject()
    entries = program.group.committed()
    for entry in entries:
        source.feed(entry)
    for entry in entries[:10]:
        target.feed(entry)
    export = source.store.export(QUEUE)
    assert export is not None
    meta = target.store.meta(QUEUE)
    assert meta is not None
    assert choose(export, meta, lambda _: True) == SendEntries(meta.index)
    assert choose(export, meta, lambda index: index > meta.index) == SendState(meta.last_seq)
    assert choose(export, None, lambda _: True) == SendEntries(0)
    assert choose(export, None, lambda _: False) == SendState(0)
    program.group.take_over("other", 12)
    program.run(5)
    astray = MemorySubject()
    for entry in program.group.committed():
        astray.feed(entry)
    wrong = astray.store.meta(QUEUE)
    assert wrong is not None
    assert choose(export, wrong, lambda _: True) == SendState(0)
