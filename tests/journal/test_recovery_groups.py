"""Rule C1: one replay position for many commit points; nothing is folded twice, nothing is lost.

Three groups share a log: one commits when synced, two commit late. Whatever is appended, committed,
taken back, replaced, appended again, checkpointed and recycled, in whichever order, and wherever
the power goes: the next open finds what the naive model says. The model is a list of operations in
the order of their submission, and a restart finds a beginning of it.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from millrace import errors, limits
from millrace.core.changes import Entry, EntryKind
from millrace.core.format.codec import decode_entries
from millrace.core.model import Epoch, GroupId, Index
from millrace.journal.local import LocalJournal
from millrace.wal.segment import LogShape
from tests.journal.harness import HISTORY, LOCAL, A, B, World
from tests.support.contracts.check_journal import append, body_of, entry_of
from tests.support.contracts.late_journal import LateJournal
from tests.support.simulator.clock import SimClock
from tests.support.simulator.disk import SimDisk
from tests.support.simulator.event_loop import SimLoop

SHAPE = LogShape(
    segment_bytes=8 * limits.SECTOR_BYTES,
    segments_max=8,
    segments_free=3,
    segments_reserve=1,
    held_bytes_max=0,
)
"""Small enough that the log is recycled every few steps."""

Told = tuple[int, int, bytes]
"""Index, epoch, body."""


@dataclass(frozen=True)
class Operation:
    """An operation on the log."""

    kind: str
    group: GroupId
    index: int
    epoch: int = 0
    body: bytes = b""


@dataclass
class Group:
    """The model of a group, in the plainest form."""

    entries: list[Told] = field(default_factory=list)
    committed: int = 0
    fact: bytes = b""

    def apply(self, operation: Operation) -> None:
        match operation.kind:
            case "data":
                del self.entries[operation.index - 1 :]
                self.entries.append((operation.index, operation.epoch, operation.body))
                if operation.group == LOCAL:
                    self.committed = operation.index
            case "void":
                del self.entries[operation.index :]
            case "commit":
                self.committed = max(self.committed, operation.index)
            case "fact":
                self.fact = operation.body


State = dict[GroupId, Group]


def state_after(operations: list[Operation], applied: dict[GroupId, int]) -> State:
    """Return the state after a restart from a checkpoint that has folded up to `applied`."""
    state = {group: Group() for group in (LOCAL, A, B)}
    for operation in operations:
        state[operation.group].apply(operation)
    for group, found in state.items():
        found.committed = max(found.committed, applied.get(group, 0))
    return state


def observed(world: World) -> State:
    """Return the state of the node: folded entries, suffixes and facts."""
    state: State = {}
    for group in (LOCAL, A, B):
        folded = list(world.ledger.folded.get(group, []))
        held = world.writer.suffixes.held(group) if group in world.writer.suffixes else []
        suffix = [(one.entry.index, one.entry.epoch, body_of(one.entry)) for one in held]
        fact = world.writer.suffixes.facts.get(group, b"")
        state[group] = Group([*folded, *suffix], len(folded), fact)
    return state


Act = tuple[GroupId, str, float, int]
"""Group, verb, a share of what there is, a size."""

acts = st.lists(
    st.tuples(
        st.sampled_from([LOCAL, A, B]),
        st.sampled_from(
            ["append"] * 4
            + ["commit", "commit", "void", "void late", "replace", "remember", "again"]
        ),
        st.floats(0, 1),
        st.integers(8, 2_000),
    ),
    min_size=1,
    max_size=8,
)


class Groups(RuleBasedStateMachine):
    """Three groups on one log, compared with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = SimLoop(SimClock())

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.operations: list[Operation] = []
        self.made = 0
        self.epoch = 0

        async def main() -> None:
            await self.open(World(SimDisk(self.chance), None, SHAPE))

        self.loop.run(main())

    async def open(self, world: World) -> None:
        self.world = world
        self.epoch += 1
        self.local: LocalJournal = world.local(self.epoch)
        self.late = {group: world.late(group, self.epoch) for group in (A, B)}

    # --- Single steps, whatever is in flight ------------------------------------------------------

    def append(self, group: GroupId, size: int) -> None:
        journal: LocalJournal | LateJournal = self.local if group == LOCAL else self.late[group]
        self.made += 1
        body = (b"%d:" % self.made).ljust(size, b"x")
        try:
            entry = append(journal, body)
        except errors.Full:
            assert group != LOCAL, "only uncommitted bytes are bounded here"
            return
        self.note("data", group, entry.index, entry.epoch, body)

    def commit(self, group: GroupId, *, share: float, is_written: bool) -> None:
        journal = self.late[group]
        before = journal.commit_point
        upto = before + round(share * journal.waiting())
        after = journal.commit(upto, is_written=is_written)
        assert before <= after <= max(upto, before)
        if is_written and after > before:
            self.note("commit", group, after)

    def void(self, group: GroupId, *, share: float) -> None:
        journal = self.late[group]
        after = journal.commit_point + round(share * (journal.last - journal.commit_point))
        journal.void(after)
        self.note("void", group, after)

    def replace(self, group: GroupId, *, share: float, count: int) -> None:
        """Another node leads, with the next epoch."""
        journal = self.late[group]
        first = journal.commit_point + round(share * (journal.last - journal.commit_point)) + 1
        self.epoch += 1
        for index in range(first, first + count):
            self.made += 1
            entry = entry_of(journal, b"%d: of another leader" % self.made, index)
            entry.epoch = Epoch(self.epoch)
            with suppress(errors.Full):
                journal.replace([entry])
                self.epoch = max(self.epoch, journal.epoch)
                self.note("data", group, entry.index, entry.epoch, body_of(entry))
                continue
            return

    def void_late(self, group: GroupId) -> None:
        """A void of a former decider arrives after entries of its successor: it changes nothing."""
        held = self.world.writer.suffixes.held(group)
        if not held or held[-1].entry.epoch == 1:
            return
        after, epoch = held[0].entry.index - 1, held[-1].entry.epoch - 1
        entry = Entry(group, Epoch(epoch), Index(after), HISTORY, [], kind=EntryKind.VOID)
        self.world.writer.submit(
            entry, lambda entry, position: None, lambda error: None, alone=False, reserve=True
        )

    def remember(self, group: GroupId) -> None:
        self.made += 1
        self.late[group].remember(self.made, 1)
        self.note("fact", group, 0, 0, self.made.to_bytes(8, "little") + (1).to_bytes(8, "little"))

    def note(
        self, kind: str, group: GroupId, index: int, epoch: int = 0, body: bytes = b""
    ) -> None:
        self.operations.append(Operation(kind, group, index, epoch, body))

    def act(self, group: GroupId, verb: str, share: float, size: int) -> None:
        """One step of any kind."""
        if group == LOCAL or verb == "append":
            self.append(group, size)
        elif verb == "commit":
            self.commit(group, share=share, is_written=size % 2 == 0)
        elif verb == "void":
            self.void(group, share=share)
        elif verb == "void late":
            self.void_late(group)
        elif verb == "replace":
            self.replace(group, share=share, count=1 + size % 3)
        elif verb == "remember":
            self.remember(group)
        elif verb == "again":
            self.world.writer.rewrite_suffix(group).add_done_callback(asyncio.Future.exception)

    # --- Rules ------------------------------------------------------------------------------------

    @rule(acts=acts)
    def together(self, acts: list[Act]) -> None:
        """Several steps that are synced in as few records as they take."""

        async def main() -> None:
            self.world.lane.is_held = True
            for act in acts:
                self.act(*act)
            await self.settle()

        self.loop.run(main())

    @rule(acts=acts)
    def apart(self, acts: list[Act]) -> None:
        """Steps that are each synced before the next one."""

        async def main() -> None:
            for act in acts:
                self.act(*act)
                await self.settle()

        self.loop.run(main())

    @rule()
    def checkpoint(self) -> None:
        self.world.checkpoint()

    @rule(acts=acts)
    def checkpoint_in_flight(self, acts: list[Act]) -> None:
        """A checkpoint while records are being written knows nothing of them."""

        async def main() -> None:
            self.world.lane.is_held = True
            for act in acts:
                self.act(*act)
            self.checkpoint()
            await self.settle()

        self.loop.run(main())

    @rule(group=st.sampled_from([A, B]))
    def hand_over(self, group: GroupId) -> None:
        """The next decider finds what the last one left."""

        async def main() -> None:
            old = self.late[group]
            self.epoch += 1
            new = self.late[group] = self.world.late(group, self.epoch)
            assert (new.next_index(), new.waiting()) == (old.next_index(), old.waiting())
            assert new.ballot() == old.ballot()

        self.loop.run(main())

    @rule(acts=acts, steps=st.integers(0, 3), power=st.booleans())
    def crash(self, acts: list[Act], steps: int, *, power: bool) -> None:
        """The process ends with steps in flight: the next one finds a beginning of them."""

        async def main() -> None:
            self.world.lane.is_held = True
            known = len(self.operations)
            for act in acts:
                self.act(*act)
            for _ in range(steps):
                if self.world.lane.waits():
                    self.world.lane.step()
                    await self.world.turn()
            told = self.world.ledger.applied(LOCAL)
            self.world = self.world.end(power=power)
            self.judge(known, told)
            await self.open(self.world)
            await self.settle()

        self.loop.run(main())

    def judge(self, known: int, told: int) -> None:
        image, found = self.world.image, observed(self.world)
        folded = image.ledger.folded if image is not None else {}
        applied = {group: len(entries) for group, entries in folded.items()}
        assert found[LOCAL].committed >= told, "what was told of is there"
        for count in range(known, len(self.operations) + 1):
            if state_after(self.operations[:count], applied) == found:
                del self.operations[count:]
                return
        raise AssertionError(f"no beginning of {self.operations[known:]} gives {found}")

    async def settle(self) -> None:
        """All is synced; the log has room again, as its checkpointer sees to."""
        await self.world.settle()
        self.compare()
        self.world.prepare()
        if self.world.log.room(reserve=False) < 3 * SHAPE.segment_bytes:
            newest = self.world.log.mark().generation
            for group in self.world.writer.suffixes.before(newest):
                self.world.writer.rewrite_suffix(group)
            await self.world.settle()
            self.checkpoint()
            self.world.prepare()
            self.compare()
            assert self.world.log.room(reserve=False) >= 2 * SHAPE.segment_bytes

    def compare(self) -> None:
        expected, found = state_after(self.operations, {}), observed(self.world)
        for group in (LOCAL, A, B):
            assert found[group].entries == expected[group].entries
            assert found[group].fact == expected[group].fact
            assert found[group].committed >= expected[group].committed
        for group in (A, B):
            assert found[group].committed == self.late[group].commit_point
            assert len(found[group].entries) == self.late[group].next_index() - 1
            for held in self.world.writer.suffixes.held(group):
                payload = self.world.log.buffer(held.position)
                assert payload is not None
                told = [
                    (entry.index, entry.epoch, body_of(entry))
                    for entry in decode_entries(payload)
                    if entry.group == group and entry.batches
                ]
                assert (held.entry.index, held.entry.epoch, body_of(held.entry)) in told

    def teardown(self) -> None:
        failures = self.loop.failures
        self.loop.close()
        assert not failures, failures


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
