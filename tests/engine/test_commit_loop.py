"""A commit loop over journals that refuse, roll back, commit late, fail, and are handed over.

Decisions ahead of the commit are in the views alone. Whatever happens to them, callers get correct
answers in order, and the loop goes on from the committed state, or ends.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import TypeVar

import pytest
from pyroaring import BitMap64

from millrace import errors, limits
from millrace.core.answers import (
    Explanation,
    Leased,
    Outcome,
    PublishResult,
    QueueRef,
)
from millrace.core.cells import CursorCell
from millrace.core.changes import Entry
from millrace.core.commands import (
    Command,
    Configure,
    CreateQueue,
    DeleteQueue,
    Explain,
    InitCatalog,
    LeaseMessages,
    NextSnapshot,
    OpenCursor,
    Pin,
    Publish,
    PublishStaged,
    Settle,
    Stage,
)
from millrace.core.format.block import Block
from millrace.core.model import (
    CATALOG,
    Epoch,
    LeaseId,
    NewMessage,
    Seq,
    ShardId,
    StartPoint,
)
from millrace.core.spec import QueueSpec, SpecPart
from millrace.core.state.view import View
from millrace.engine.command_request import CommandRequest
from millrace.engine.commit_loop import CommitLoop
from millrace.journal.local import LocalJournal
from millrace.store.memory_store import MemoryStore
from millrace.wal.segment import LogShape
from tests.journal.harness import HISTORY, KIB, LOCAL, A, B, World, new_world, run
from tests.support.contracts.check_journal import append
from tests.support.contracts.late_journal import LateJournal
from tests.support.models.commit_group import through_bytes
from tests.support.simulator.event_loop import SimLoop

T = TypeVar("T")

QUEUE = ShardId(1)


class Node:
    """A simulated world with a real store, and a commit loop for one of its groups."""

    def __init__(self, world: World, *, is_late: bool = False, epoch: int = 1) -> None:
        self.world = world
        assert world.store is not None
        self.store = world.store
        self.is_late = is_late
        self.told: list[str] = []
        self.begin(epoch)

    def begin(self, epoch: int) -> None:
        group = A if self.is_late else LOCAL
        applied = self.store.applied(group)
        writer = self.world.writer
        self.local = (
            None if self.is_late else LocalJournal(LOCAL, Epoch(epoch), HISTORY, applied, writer)
        )
        self.late = LateJournal(A, Epoch(epoch), HISTORY, applied, writer) if self.is_late else None
        self.journal = self.local or self.late
        assert self.journal is not None
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.clock = loop.clock
        self.host = CommitLoop(self.journal, self.store, self.clock.now_ms)

    async def found(self, *, keyed: bool = False) -> None:
        """Create a catalog and a queue."""
        assert self.journal is not None
        self.host.adopt(View(CATALOG, self.journal.epoch, HISTORY))
        for command in (
            InitCatalog(bytes(32)),
            CreateQueue("default", "q", QueueSpec(keyed=keyed)),
        ):
            future = self.ask(command, shard=CATALOG)
            await self.commit()
            await future

    def ask(
        self, command: Command, *, shard: ShardId = QUEUE, wait_ms: int = 0, name: str = ""
    ) -> asyncio.Future[object]:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        until = asyncio.get_running_loop().time() + wait_ms / 1000 if wait_ms else 0
        future.add_done_callback(lambda _: self.hear(name, future))
        self.host.submit(CommandRequest(shard, command, future, wait_until=until))
        return future

    def hear(self, name: str, future: asyncio.Future[object]) -> None:
        if not future.cancelled():
            future.exception()
        if name:
            self.told.append(name)

    async def done(self, command: Command, kind: type[T], *, shard: ShardId = QUEUE) -> T:
        """Submit a command, commit it, and return the answer."""
        future = self.ask(command, shard=shard)
        await self.commit()
        answer = await future
        assert isinstance(answer, kind)
        return answer

    async def commit(self) -> None:
        """Commit everything that can be committed."""
        for _ in range(4):
            await self.world.turn()
            await self.world.settle()
            if self.late is not None and self.world.writer.error is None:
                self.late.commit()
            await self.world.turn()

    async def turn(self) -> None:
        await self.world.turn()

    def hold(self) -> None:
        self.world.lane.is_held = True

    def seqs(self) -> list[int]:
        meta = self.store.meta(QUEUE)
        assert meta is not None
        rows = self.store.rows(QUEUE, BitMap64(range(1, meta.last_seq + 1)))
        return [row.seq for row in rows]

    def bodies(self) -> list[bytes | None]:
        meta = self.store.meta(QUEUE)
        assert meta is not None
        return [row.body for row in self.store.rows(QUEUE, BitMap64(range(1, meta.last_seq + 1)))]


def publish(*bodies: bytes, key: bytes | None = None) -> Publish:
    return Publish(tuple(NewMessage(body, key) for body in bodies))


def make_node(
    *, is_late: bool = False, shape: LogShape | None = None, is_quick: bool = False
) -> Node:
    world = new_world(shape=shape) if shape else new_world()
    world = World(world.disk, None, world.shape, store=MemoryStore(), is_quick=is_quick)
    return Node(world, is_late=is_late)


@pytest.mark.parametrize("is_quick", [True, False])
def test_what_is_decided_together_is_written_at_once_while_syncs_are_short(
    *, is_quick: bool
) -> None:
    """A round trip to a thread takes longer than the sync of a small record."""

    async def main() -> None:
        node = make_node(is_quick=is_quick)
        await node.found()
        node.hold()
        syncs = node.world.log.statistics().syncs
        futures = [node.ask(publish(b"%d" % number)) for number in range(5)]
        await node.turn()
        assert [future.done() for future in futures] == [is_quick] * 5
        assert node.world.log.statistics().syncs == syncs + is_quick
        await node.commit()
        assert node.bodies() == [b"0", b"1", b"2", b"3", b"4"]

    run(main())


def error_of(future: asyncio.Future[object]) -> BaseException | None:
    assert future.done()
    return future.exception()


# --- Answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_late", [False, True])
def test_r2_nothing_is_answered_before_what_it_depends_on_is_committed(*, is_late: bool) -> None:
    """Not even a query: its result depends on entries that may be rolled back."""

    async def main() -> None:
        node = make_node(is_late=is_late)
        await node.found()
        node.hold()
        node.ask(publish(b"a"), name="publish")
        await node.turn()
        node.ask(Explain(Seq(1)), name="explain")
        node.ask(Settle(LeaseId(9), BitMap64([1]), HISTORY), name="settle")
        await node.turn()
        if is_late:
            await node.world.settle()
        node.ask(publish(b"b"), name="publish b")
        await node.turn()
        node.ask(Explain(Seq(2)), name="explain b")
        node.ask(publish(b"x"), shard=ShardId(77), name="refused")
        await node.turn()
        assert node.told == []
        await node.commit()
        assert node.told == [
            "publish",
            "explain",
            "settle",
            "publish b",
            "explain b",
            "refused",
        ]

    run(main())


def test_the_decider_is_two_entries_ahead_at_most() -> None:
    async def main() -> None:
        node = make_node(is_late=True)
        await node.found()
        assert node.late is not None
        futures = []
        for number in range(10):
            futures.append(node.ask(publish(b"%d" % number)))
            await node.turn()
            await node.world.settle()
        assert node.late.waiting() == limits.ENTRIES_AHEAD_MAX
        node.late.commit(node.late.commit_point + 1)
        await node.turn()
        assert futures[0].done()
        assert not futures[1].done()
        await node.world.settle()
        assert node.late.waiting() == limits.ENTRIES_AHEAD_MAX
        before = node.late.next_index()
        await node.commit()
        assert node.late.next_index() == before, "the rest went into one entry"
        assert [await future for future in futures] == [
            PublishResult(Seq(number + 1), 1) for number in range(10)
        ]

    run(main())


def test_questions_do_not_pile_up_behind_an_entry_that_does_not_commit() -> None:
    """I11: they take no entry, so that the bound on entries does not bound them."""

    async def main() -> None:
        node = make_node(is_late=True)
        await node.found()
        node.ask(publish(b"a"))
        await node.turn()
        await node.world.settle()
        futures: list[asyncio.Future[object]] = []
        with pytest.raises(errors.Full):  # noqa: PT012
            for _ in range(10):
                for _ in range(limits.INBOX_COMMANDS_MAX):
                    futures.append(node.ask(Explain(Seq(1))))
                for _ in range(100):
                    await node.turn()
        assert len(futures) >= limits.INBOX_COMMANDS_MAX
        assert not any(future.done() for future in futures)
        for _ in range(100):
            await node.commit()
        assert all(isinstance(future.result(), Explanation) for future in futures)

    run(main())


def test_what_does_not_fit_into_one_round_is_decided_in_the_next() -> None:
    """Queries change nothing, so that no commit wakes the loop for the rest."""

    async def main() -> None:
        node = make_node()
        await node.found()
        futures = [node.ask(Explain(Seq(1))) for _ in range(5_000)]
        await node.turn()
        for future in futures:
            assert isinstance(await future, Explanation)

    run(main())


def test_who_has_left_is_given_nothing() -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        await node.done(publish(b"a", b"b"), PublishResult)
        early = node.ask(LeaseMessages(1, 60_000))
        early.cancel()
        await node.commit()
        node.hold()
        late = node.ask(LeaseMessages(1, 60_000))
        await node.turn()
        late.cancel()
        await node.commit()
        leased = await node.done(LeaseMessages(10, 60_000), Leased)
        assert list(leased.seqs) == [1, 2], "what was handed to nobody came back at once"
        assert leased.lease == 2, "the first one had left before anything was decided"
        assert leased.counts == {1: (1, 0)}, "nobody has seen what was leased to the second one"

    run(main())


# --- Refused appends ------------------------------------------------------------------------------


def test_a_refused_append_leaves_what_is_in_flight_alone() -> None:
    """L7: the second entry is refused while the first one waits, perhaps for hours.

    Earlier entries are folded before views are loaded again; otherwise a seq would be assigned
    twice.
    """

    async def main() -> None:
        node = make_node(is_late=True)
        await node.found()
        assert node.late is not None
        first = node.ask(publish(b"a"), name="a")
        await node.turn()
        await node.world.settle()
        node.hold()
        # Another group keeps the writer busy, so that the next entry is queued.
        append(node.world.late(B), b"busy", reserve=True)
        refused = node.ask(publish(b"refused"), name="refused")
        await node.turn()
        assert node.late.waiting() == 2
        again = node.ask(LeaseMessages(5, 60_000), name="lease")
        refuse_what_grows(node)
        await node.world.settle()
        await node.turn()
        assert node.told == ["refused"]
        assert isinstance(error_of(refused), errors.Full)
        view = node.host.view(QUEUE)
        assert view is not None
        assert view.last_seq == 0, "somebody looks, and sees what is folded"
        assert (node.late.waiting(), first.done(), again.done()) == (1, False, False)
        await node.commit()
        assert await first == PublishResult(Seq(1), 1)
        leased = await again
        assert isinstance(leased, Leased)
        assert list(leased.seqs) == [1]
        node.world.prepare()
        assert (await node.done(publish(b"b"), PublishResult)).first == 2
        assert node.bodies() == [b"a", b"b"]

    run(main())


def refuse_what_grows(node: Node) -> None:
    """Make the log accept only entries that may use the reserve."""
    node.world.fill(spare=0)


def test_what_is_refused_is_told_so_and_the_host_goes_on() -> None:
    async def main() -> None:
        node = make_node()
        await node.found(keyed=True)
        await node.done(publish(b"old", key=b"k"), PublishResult)
        node.hold()
        leased = node.ask(LeaseMessages(1, 60_000), name="lease")
        await node.turn()
        refused = node.ask(publish(b"new", key=b"k"), name="publish")
        asked = node.ask(Explain(Seq(2)), name="explain")
        await node.turn()
        assert node.local is not None
        assert node.local.waiting() == 2
        after = node.ask(Settle(LeaseId(1), BitMap64([1]), HISTORY), name="settle")
        refuse_what_grows(node)
        node.world.lane.release()
        outcome = await after
        assert isinstance(outcome, Outcome)
        assert list(outcome.done) == [1], "the view knew of a newer revision; it is gone"
        assert isinstance(await leased, Leased)
        assert isinstance(error_of(refused), errors.Full)
        explained = await asked
        assert isinstance(explained, Explanation)
        assert explained.state == "unknown", "it asked for no room, and was decided again"
        assert node.told == ["lease", "publish", "explain", "settle"]
        node.world.prepare()
        published = await node.done(publish(b"newer", key=b"k"), PublishResult)
        assert published.first == 2
        world = node.world.end(power=True)
        assert world.store is not None
        assert [row.body for row in world.store.rows(QUEUE, BitMap64([1, 2, 3]))] == [b"newer"]

    run(main())


def test_who_comes_after_the_last_refused_entry_is_not_forgotten() -> None:
    """No commit follows that would wake the loop."""

    async def main() -> None:
        node = make_node()
        await node.found()
        node.hold()
        append(node.world.late(A), b"busy", reserve=True)
        refused = node.ask(publish(b"a"))
        await node.turn()
        assert node.local is not None
        assert node.local.waiting() == 1
        ahead = node.ask(publish(b"b"))
        await node.turn()
        assert node.local.waiting() == 2
        after = node.ask(Explain(Seq(1)))
        refuse_what_grows(node)
        node.world.lane.release()
        answer = await after
        assert isinstance(answer, Explanation)
        assert answer.state == "unknown"
        assert isinstance(error_of(refused), errors.Full)
        assert not ahead.done(), "it waits for room, as if it had come now"
        node.world.prepare()
        node.host.tick()
        await node.commit()
        assert await ahead == PublishResult(Seq(1), 1)

    run(main())


def test_what_is_decided_again_comes_before_what_waits_for_room() -> None:
    """I3: otherwise a producer's later message would overtake its earlier one."""

    async def main() -> None:
        node = make_node()
        await node.found()
        node.hold()
        append(node.world.late(A), b"busy", reserve=True)
        refused = node.ask(publish(b"refused"))
        await node.turn()
        earlier = node.ask(publish(b"earlier"))
        large = b"later".ljust(120 * KIB)
        later = node.ask(publish(large))
        await node.turn()
        assert node.local is not None
        assert node.local.waiting() == 2
        refuse_what_grows(node)
        await node.commit()
        assert isinstance(error_of(refused), errors.Full)
        assert not earlier.done()
        last = node.ask(publish(b"last"))
        await node.commit()
        for _ in range(3):
            node.world.prepare()
            node.world.turn_over()
            node.world.prepare()
            node.host.tick()
            await node.commit()
        for future in (earlier, later, last):
            assert isinstance(await future, PublishResult)
        assert node.bodies() == [b"earlier", large, b"last"]

    run(main())


def test_what_must_wait_for_a_commit_keeps_its_place_before_what_waits_for_room() -> None:
    async def main() -> None:
        node = make_node(is_late=True)
        await node.found(keyed=True)
        node.world.prepare()
        block = Block.of_messages([NewMessage(b"staged", b"k")])
        node.ask(Stage("s", block))
        await node.turn()
        await node.world.settle()
        room = node.world.writer.suffix_bytes_max - limits.RECORD_SLACK_BYTES
        first = node.ask(PublishStaged(("s",)), name="first")
        second = node.ask(publish(bytes(room - 2 * KIB), key=b"l"), name="second")
        await node.turn()
        await node.commit()
        node.host.tick()
        await node.commit()
        assert node.told == ["first", "second"]
        assert await first == PublishResult(Seq(1), 1)
        assert await second == PublishResult(Seq(2), 1)

    run(main())


class TreacherousJournal(LateJournal):
    """Does not report that another leader has replaced an entry."""

    def _roll_back(self) -> None:
        self._accepted = self._suffixes.last(self.group)


def test_an_entry_of_another_leader_is_never_taken_for_our_own() -> None:
    """An answer by the index alone would acknowledge a discarded entry."""

    async def main() -> None:
        node = make_node(is_late=True)
        await node.found()
        assert node.late is not None
        await node.host.stop()
        journal = TreacherousJournal(A, Epoch(2), HISTORY, node.store.applied(A), node.world.writer)
        node.host = CommitLoop(journal, node.store, node.clock.now_ms)
        node.late = journal
        ours = node.ask(publish(b"ours"))
        await node.turn()
        await node.world.settle()
        [held] = node.world.writer.suffixes.held(A)
        theirs = through_bytes(held.entry)
        theirs.epoch = Epoch(3)
        journal.replace([theirs])
        await node.commit()
        assert isinstance(error_of(ours), errors.Fatal)

    run(main())


def test_a_rollback_takes_back_what_was_decided() -> None:
    """The log is repaired and the caches are not: keys, leases and seqs would be wrong."""

    async def main() -> None:
        node = make_node(is_late=True)
        await node.found(keyed=True)
        assert node.late is not None
        await node.done(publish(b"one", key=b"k"), PublishResult)
        lost = [
            node.ask(publish(b"two", key=b"k"), name="publish"),
            node.ask(LeaseMessages(1, 60_000), name="lease"),
            node.ask(OpenCursor("c", StartPoint.BEGINNING, retain=True), name="cursor"),
            node.ask(CreateQueue("default", "other", QueueSpec()), shard=CATALOG, name="create"),
        ]
        await node.turn()
        await node.world.settle()
        assert node.late.waiting() == 1
        node.hold()
        node.late.void(node.late.commit_point)
        # It depends on the entry that is rolled back, so that its answer is dropped, too.
        lost.append(node.ask(Explain(Seq(2)), name="explain"))
        await node.turn()
        assert node.told == []
        await node.commit()
        assert node.told == ["publish", "lease", "cursor", "create", "explain"]
        for future in lost:
            assert isinstance(error_of(future), errors.Retry)
        assert (await node.done(Explain(Seq(2)), Explanation)).state == "unknown"
        leased = await node.done(LeaseMessages(5, 60_000), Leased)
        assert (leased.lease, list(leased.seqs)) == (1, [1])
        published = await node.done(publish(b"three", key=b"k"), PublishResult)
        assert published.first == 2
        cursor = await node.done(OpenCursor("c", StartPoint.END, retain=False), CursorCell)
        assert cursor.id == 1
        made = await node.done(
            CreateQueue("default", "other", QueueSpec()), QueueRef, shard=CATALOG
        )
        assert made.made
        world = node.world.end(power=True)
        assert world.store is not None
        assert world.store.meta(QUEUE) == node.store.meta(QUEUE)
        assert list(world.store.cells(QUEUE)) == list(node.store.cells(QUEUE))

    run(main())


def test_entries_of_another_leader_are_folded_and_answer_nobody() -> None:
    async def main() -> None:
        node = make_node(is_late=True)
        other = make_node(is_late=True)
        await node.found()
        await other.found()
        assert node.late is not None
        assert other.late is not None
        ours = node.ask(publish(b"ours"), name="ours")
        answered = other.ask(publish(b"theirs", b"as well"))
        await node.turn()
        await node.world.settle()
        await other.world.settle()
        theirs = [through_bytes(held.entry) for held in other.world.writer.suffixes.held(A)]
        for entry in theirs:
            entry.epoch = Epoch(2)
        node.late.replace(theirs)
        await node.turn()
        await node.world.settle()
        await node.turn()
        assert isinstance(error_of(ours), errors.Retry)
        waits = node.ask(publish(b"after"))
        await node.turn()
        assert not waits.done()
        await node.commit()
        published = await waits
        assert isinstance(published, PublishResult)
        assert published.first == 3
        assert node.bodies() == [b"theirs", b"as well", b"after"]
        await other.commit()
        await answered

    run(main())


def test_small_segments_cut_what_waits_into_entries_that_fit() -> None:
    """Together the commands exceeded a record, and all of them were refused."""

    async def main() -> None:
        shape = LogShape(
            segment_bytes=256 * KIB, segments_max=16, segments_free=6, segments_reserve=2
        )
        node = make_node(shape=shape)
        node.world.prepare()
        await node.found()
        for _ in range(3):
            futures = [node.ask(publish(bytes(20 * KIB))) for _ in range(20)]
            for _ in range(3):
                node.world.prepare()
                node.host.tick()
                await node.commit()
            for future in futures:
                assert isinstance(await future, PublishResult)
            node.world.turn_over()

    run(main())


class WatchedJournal(LocalJournal):
    """Records which entries may use the reserve."""

    reserves: list[bool]

    def append(self, entry: Entry, *, alone: bool, reserve: bool) -> None:
        self.reserves.append(reserve)
        super().append(entry, alone=alone, reserve=reserve)


def test_settles_use_the_reserve_although_publishes_wait_beside_them() -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        await node.done(publish(*[b"x"] * 50), PublishResult)
        leased = await node.done(LeaseMessages(50, 60_000), Leased)
        await node.host.stop()
        journal = WatchedJournal(
            LOCAL, Epoch(2), HISTORY, node.store.applied(LOCAL), node.world.writer
        )
        journal.reserves = []
        node.host = CommitLoop(journal, node.store, node.clock.now_ms)
        node.world.fill(spare=limits.RECORD_SLACK_BYTES + 8 * KIB)
        left = node.world.log.room(reserve=False) - limits.RECORD_SLACK_BYTES
        assert 7 * KIB < left < 50 * 256, "room for a publish, not for the settles beside it"
        published = node.ask(publish(bytes(6 * KIB)), name="publish")
        settled = [node.ask(Settle(leased.lease, BitMap64([seq]), HISTORY)) for seq in leased.seqs]
        too_much = node.ask(publish(bytes(6 * KIB)), name="waits for room")
        await node.commit()
        for future in settled:
            outcome = await future
            assert isinstance(outcome, Outcome)
            assert len(outcome.done) == 1
        assert isinstance(await published, PublishResult)
        assert journal.reserves == [False, True]
        assert not too_much.done()
        node.host.short_of_space = True
        node.host.tick()
        assert isinstance(error_of(too_much), errors.Full)

    run(main())


# --- Waiting --------------------------------------------------------------------------------------


async def empty(node: Node) -> None:
    """A queue whose only message is leased, as the view in memory has it."""
    await node.found()
    await node.done(publish(b"a"), PublishResult)
    await node.done(LeaseMessages(1, 3_600_000), Leased)


def test_r2_who_waited_in_vain_hears_of_it_after_what_they_were_judged_by() -> None:
    async def main() -> None:
        node = make_node(is_late=True)
        await empty(node)
        waits = node.ask(LeaseMessages(1, 60_000), wait_ms=1_000)
        node.ask(CreateQueue("default", "r", QueueSpec()), shard=CATALOG)
        await node.turn()
        await node.world.settle()
        await asyncio.sleep(2)
        assert not waits.done()
        await node.commit()
        answer = await waits
        assert isinstance(answer, Leased)
        assert not answer.seqs

    run(main())


def test_who_waits_is_given_what_came_before_them() -> None:
    async def main() -> None:
        node = make_node()
        await empty(node)
        node.ask(publish(b"b"))
        waits = node.ask(LeaseMessages(1, 60_000), wait_ms=60_000)
        later = node.ask(LeaseMessages(1, 60_000), wait_ms=60_000)
        await node.commit()
        answer = await waits
        assert isinstance(answer, Leased)
        assert list(answer.seqs) == [2]
        assert not later.done()
        node.ask(publish(b"c"))
        await node.commit()
        answer = await later
        assert isinstance(answer, Leased)
        assert list(answer.seqs) == [3]

    run(main())


def test_who_comes_first_is_served_first_although_the_other_may_wait_at_once() -> None:
    async def main() -> None:
        node = make_node()
        await empty(node)
        first = node.ask(LeaseMessages(1, 60_000, attempt="again"), wait_ms=60_000)
        second = node.ask(LeaseMessages(1, 60_000), wait_ms=60_000)
        await node.commit()
        node.ask(publish(b"b"))
        await node.commit()
        assert isinstance(await first, Leased)
        assert not second.done()

    run(main())


def test_nobody_waits_at_a_queue_that_is_about_to_end() -> None:
    async def main() -> None:
        node = make_node(is_late=True)
        await empty(node)
        deleted = node.ask(DeleteQueue("default", "q"), shard=CATALOG)
        await node.turn()
        await node.world.settle()
        waits = node.ask(LeaseMessages(1, 60_000), wait_ms=3_600_000)
        await node.commit()
        assert await deleted is True
        assert isinstance(error_of(waits), errors.NotFound)

    run(main())


def test_too_many_who_wait_are_told() -> None:
    async def main() -> None:
        node = make_node()
        await empty(node)
        waits = [
            node.ask(LeaseMessages(1, 60_000), wait_ms=3_600_000)
            for _ in range(limits.WAITERS_MAX + 1)
        ]
        await node.turn()
        assert isinstance(error_of(waits[-1]), errors.Full)
        assert not any(future.done() for future in waits[:-1])

    run(main())


# --- Ageing ---------------------------------------------------------------------------------------


def test_what_rests_is_passed_over_by_ticks_until_something_is_decided() -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        node.host.tick()
        node.host.tick()
        assert QUEUE not in node.host._ticking
        await node.done(publish(b"a"), PublishResult)
        leased = await node.done(LeaseMessages(1, 60_000), Leased)
        await node.done(Settle(leased.lease, leased.seqs, HISTORY), Outcome)
        view = node.host.view(QUEUE)
        assert view is not None
        assert view.ended, "the lease is remembered for a while"
        node.host.tick()
        assert QUEUE in node.host._ticking
        await asyncio.sleep(limits.LEASE_REMEMBERED_MS / 1000 + 1)
        node.host.tick()
        await node.commit()
        assert not view.ended
        node.host.tick()
        assert QUEUE not in node.host._ticking

    run(main())


def test_a_queue_that_lets_messages_live_for_a_time_does_not_rest_before_they_are_gone() -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        await node.done(Configure(SpecPart(ttl_ms=600_000)), QueueSpec)
        await node.done(publish(b"a"), PublishResult)
        for _ in range(20):
            await asyncio.sleep(60)
            node.host.tick()
            await node.commit()
        assert node.seqs() == []
        assert QUEUE not in node.host._ticking

    run(main())


# --- Queues that end ------------------------------------------------------------------------------


def test_a_queue_that_is_about_to_end_is_not_loaded_again() -> None:
    """Its view was dropped with the first commit after the decision, instead of its own.

    The reloaded view of the folded state assigned an index that was in flight already.
    """

    async def main() -> None:
        node = make_node(is_late=True)
        await node.found()
        assert node.late is not None
        first = node.ask(publish(b"a"))
        await node.turn()
        await node.world.settle()
        deleted = node.ask(DeleteQueue("default", "q"), shard=CATALOG)
        await node.turn()
        await node.world.settle()
        assert node.late.waiting() == 2
        node.late.commit(node.late.commit_point + 1)
        assert isinstance(await first, PublishResult)
        refused = node.ask(publish(b"b"))
        await node.turn()
        await node.commit()
        assert await deleted is True
        assert isinstance(error_of(refused), errors.NotFound)
        assert node.store.meta(QUEUE) is None

    run(main())


# --- Ends -----------------------------------------------------------------------------------------


def test_a_failed_sync_is_told_to_everyone_once() -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        waits = node.ask(LeaseMessages(1, 60_000), wait_ms=60_000, name="waits")
        await node.turn()
        node.hold()
        node.world.disk.fail_sync_in = 1
        flight = node.ask(publish(b"a"), name="in flight")
        await node.turn()
        ahead = node.ask(publish(b"b"), name="ahead")
        await node.turn()
        inbox = node.ask(publish(b"c"), name="in the inbox")
        await node.turn()
        await node.commit()
        for future in (waits, flight, ahead, inbox):
            assert isinstance(error_of(future), errors.Fatal)
        assert sorted(node.told) == sorted(set(node.told))
        depths = set()
        for _ in range(3):
            with pytest.raises(errors.Fatal) as caught:
                node.ask(publish(b"d"))
            depths.add(len(traceback.extract_tb(caught.value.__traceback__)))
        assert len(depths) == 1, "the error does not remember everyone who was refused"
        await node.host.stop()

    run(main())


def test_whoever_waits_for_messages_hears_that_the_log_has_ended() -> None:
    """Nothing was being written: it was the end mark that failed."""

    async def main() -> None:
        node = make_node()
        await node.found()
        waits = node.ask(LeaseMessages(1, 60_000), wait_ms=3_600_000)
        await node.turn()
        node.world.disk.fail_sync_in = 1
        with pytest.raises(errors.Fatal):
            await waits

    run(main())


def test_a_defect_in_the_rules_is_told_to_everyone() -> None:
    """A request that was being served at the time was neither waiting nor answered."""

    async def main() -> None:
        node = make_node()
        await node.found()
        cursor = await node.done(OpenCursor("c", StartPoint.BEGINNING, retain=False), CursorCell)
        broken = NextSnapshot("c", cursor.id, 0, pin_ms=None)  # type: ignore[arg-type]
        served = node.ask(broken, wait_ms=60_000, name="served")
        waits = node.ask(LeaseMessages(3, 60_000), shard=ShardId(1), wait_ms=60_000, name="waits")
        await node.turn()
        node.hold()
        flight = node.ask(Pin(60_000), name="in flight")
        await node.turn()
        decided = node.ask(publish(b"a"), name="decided")
        await node.turn()
        await node.commit()
        for future in (served, waits, flight, decided):
            assert isinstance(error_of(future), errors.Fatal), node.told
        view = node.host.view(QUEUE)
        assert view is not None
        assert list(view.pins) == [1], "what was in flight is committed, and so it is folded"

    run(main(), unhandled=["TypeError"])


def test_a_waiter_of_a_deleted_queue_is_told_of_a_defect_in_the_same_batch() -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        made = await node.done(CreateQueue("default", "r", QueueSpec()), QueueRef, shard=CATALOG)
        [other] = made.shards
        cursor = await node.done(
            OpenCursor("c", StartPoint.BEGINNING, retain=False), CursorCell, shard=other
        )
        broken = NextSnapshot("c", cursor.id, 0, pin_ms=None)  # type: ignore[arg-type]
        node.ask(broken, shard=other, wait_ms=60_000)
        waits = node.ask(LeaseMessages(1, 60_000), wait_ms=60_000)
        await node.turn()
        node.ask(DeleteQueue("default", "q"), shard=CATALOG)
        node.ask(publish(b"a"), shard=other)
        await node.turn()
        assert isinstance(error_of(waits), errors.Fatal)

    run(main(), unhandled=["TypeError"])


def test_ticks_do_not_pile_up_while_nothing_commits() -> None:
    async def main() -> None:
        node = make_node(is_late=True)
        await node.found()
        assert node.late is not None
        pinned = node.ask(Pin(1_000))
        await node.commit()
        await pinned
        for number in range(limits.ENTRIES_AHEAD_MAX):
            node.ask(publish(b"%d" % number))
            await node.turn()
            await node.world.settle()
        node.clock.jump(10_000)
        for _ in range(limits.INBOX_COMMANDS_MAX + 1):
            node.host.tick()
        node.ask(publish(b"there is room"))
        await node.commit()
        view = node.host.view(QUEUE)
        assert view is not None
        assert view.pins == {}

    run(main())


def test_a_tick_that_nobody_awaits_fails_in_silence() -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        await node.done(publish(b"a"), PublishResult)
        pinned = node.ask(Pin(1_000))
        await node.commit()
        await pinned
        node.clock.jump(10_000)
        node.world.disk.fail_sync_in = 1
        node.hold()
        node.host.tick()
        failed = node.ask(publish(b"b"))
        await node.commit()
        assert isinstance(error_of(failed), errors.Fatal)

    run(main())


# --- Stopping and handing over --------------------------------------------------------------------


def test_stop_finishes_what_was_decided_and_refuses_the_rest() -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        waits = node.ask(LeaseMessages(1, 60_000), wait_ms=60_000)
        await node.turn()
        node.hold()
        flight = [node.ask(publish(b"a"))]
        await node.turn()
        flight.append(node.ask(publish(b"b")))
        await node.turn()
        inbox = node.ask(publish(b"c"))
        stops = [asyncio.create_task(node.host.stop()) for _ in range(3)]
        await node.turn()
        stops[1].cancel()
        await node.turn()
        assert not stops[0].done()
        assert not stops[2].done(), "that one gave up is nothing to the others"
        with pytest.raises(errors.Closed):
            node.ask(publish(b"d"))
        await node.commit()
        await stops[0]
        await stops[2]
        for future in flight:
            assert isinstance(future.result(), PublishResult | Leased)
        for future in (inbox,):
            assert isinstance(error_of(future), errors.Closed)
        assert waits.done()

    run(main())


def test_a_host_that_cannot_finish_can_be_ended() -> None:
    async def main() -> None:
        node = make_node(is_late=True)
        await node.found()
        flight = node.ask(publish(b"a"))
        await node.turn()
        await node.world.settle()
        stopping = asyncio.create_task(node.host.stop())
        await node.turn()
        assert not stopping.done()
        assert node.late is not None
        node.late.resign()
        await stopping
        assert isinstance(error_of(flight), errors.Fatal)
        # Its outcome is unknown; the next commit loop finds it, and it is committed.
        node.begin(2)
        assert node.late is not None
        assert node.late.waiting() == 1
        published = await node.done(publish(b"b"), PublishResult)
        assert published.first == 2
        assert node.bodies() == [b"a", b"b"]

    run(main())


@pytest.mark.parametrize("is_late", [False, True])
def test_another_host_goes_on_where_the_first_one_stopped(*, is_late: bool) -> None:
    """Epoch + 1; receipts and leases survive, and the first one writes nothing any more."""

    async def main() -> None:
        node = make_node(is_late=is_late)
        await node.found(keyed=True)
        for number in range(4):
            await node.done(publish(b"%d" % number, key=b"k%d" % number), PublishResult)
        leased = await node.done(LeaseMessages(3, 60_000), Leased)
        done = await node.done(Settle(leased.lease, BitMap64([1]), HISTORY), Outcome)
        await node.host.stop()
        old, old_journal = node.host, node.journal
        assert old_journal is not None
        node.begin(2)
        assert node.journal is not None
        assert (node.journal.epoch, node.journal.waiting()) == (2, 0)
        # The same receipts: one is settled again, one for the first time, and one is not leased.
        again = await node.done(Settle(leased.lease, BitMap64([1, 2]), HISTORY), Outcome)
        assert list(again.done) == [1, 2]
        assert done.refused == again.refused == {}
        other = await node.done(LeaseMessages(10, 60_000), Leased)
        assert list(other.seqs) == [4], "3 is still leased"
        stale = await node.done(Settle(other.lease, BitMap64([3]), HISTORY), Outcome)
        assert list(stale.refused) == [3]
        published = await node.done(publish(b"new", key=b"k2"), PublishResult)
        assert published.first == 5
        superseded = await node.done(Settle(leased.lease, BitMap64([3]), HISTORY), Outcome)
        assert isinstance(superseded.refused[3], errors.Superseded)
        with pytest.raises(errors.Closed):
            old.submit(
                CommandRequest(QUEUE, publish(b"x"), asyncio.get_running_loop().create_future())
            )
        entry = Entry(old_journal.group, Epoch(1), old_journal.next_index(), HISTORY, [])
        with pytest.raises((errors.Closed, errors.Fatal)):
            old_journal.append(entry, alone=True, reserve=False)
        await node.commit()
        world = node.world.end(power=True)
        assert world.store is not None
        assert world.store.meta(QUEUE) == node.store.meta(QUEUE)
        assert list(world.store.cells(QUEUE)) == list(node.store.cells(QUEUE))

    run(main())


def test_a_host_that_was_overtaken_answers_nobody() -> None:
    """It was not stopped and does not know: its journal refuses, and nothing is written."""

    async def main() -> None:
        node = make_node()
        await node.found()
        await node.done(publish(b"a"), PublishResult)
        old = node.host
        node.begin(2)
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        old.submit(CommandRequest(QUEUE, publish(b"from the past"), future))
        await node.commit()
        assert isinstance(error_of(future), errors.Closed)
        published = await node.done(publish(b"b"), PublishResult)
        assert published.first == 2
        assert node.bodies() == [b"a", b"b"]

    run(main())


def test_the_next_host_waits_for_what_the_last_one_left() -> None:
    """Decisions before that commit would use a state that is not the group's."""

    async def main() -> None:
        node = make_node(is_late=True)
        await node.found(keyed=True)
        await node.done(publish(b"old", key=b"k"), PublishResult)
        node.ask(publish(b"left behind", key=b"k"))
        await node.turn()
        await node.world.settle()
        world = node.world.end(power=True)
        node = Node(world, is_late=True, epoch=2)
        assert node.late is not None
        left = node.late.waiting()
        assert left >= 1
        asked = node.ask(publish(b"new", key=b"k"), name="new")
        explained = node.ask(Explain(Seq(2)), name="explain")
        for _ in range(3):
            await node.turn()
            await node.world.settle()
        assert node.late.waiting() == left, "nothing was decided"
        assert node.told == []
        await node.commit()
        published = await asked
        assert isinstance(published, PublishResult)
        assert published.first == 3
        answer = await explained
        assert isinstance(answer, Explanation)
        assert answer.state == "dead"
        meta = node.store.meta(QUEUE)
        assert meta is not None
        assert (meta.published, meta.live) == (3, 1)

    run(main())


def test_stages_that_are_in_flight_are_waited_for() -> None:
    async def main() -> None:
        node = make_node(is_late=True)
        await node.found(keyed=True)
        block = Block.of_messages([NewMessage(b"1", b"k"), NewMessage(b"2", b"k")])
        staged = node.ask(Stage("s", block), name="stage")
        await node.turn()
        shown = node.ask(PublishStaged(("s",)), name="publish")
        after = node.ask(Explain(Seq(2)), name="explain")
        await node.turn()
        await node.commit()
        assert node.told == ["stage", "publish", "explain"]
        assert await staged == 2
        assert await shown == PublishResult(Seq(1), 2)
        assert (await after) is not None
        meta = node.store.meta(QUEUE)
        assert meta is not None
        assert (meta.published, meta.live) == (2, 1)

    run(main())
