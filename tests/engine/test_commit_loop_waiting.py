"""Long polls of a commit loop: served in order, by kind, and not beyond their timeout."""

from __future__ import annotations

import asyncio

import pytest
from pyroaring import BitMap64

from millrace import errors, limits
from millrace.core import bounds
from millrace.core.answers import (
    Leased,
    Outcome,
    PublishResult,
    QueueRef,
    SnapshotRef,
)
from millrace.core.cells import CursorCell, Kind
from millrace.core.commands import (
    Command,
    CommitCursor,
    CreateQueue,
    DeleteQueue,
    Extend,
    LeaseMessages,
    NextSnapshot,
    OpenCursor,
    Pin,
    Publish,
    Release,
    Settle,
)
from millrace.core.decide import decide
from millrace.core.model import (
    CATALOG,
    CursorPosition,
    NewMessage,
    Seq,
    ShardId,
    StartPoint,
)
from millrace.core.needs import Need
from millrace.core.spec import QueueSpec
from millrace.core.state.draft import BatchContext
from millrace.engine import view_cache
from tests.engine.test_commit_loop import (
    QUEUE,
    Node,
    error_of,
    make_node,
    publish,
)
from tests.journal.harness import HISTORY, run
from tests.support.timeouts import scaled


async def follower(node: Node, name: str) -> NextSnapshot:
    cell = await node.done(OpenCursor(name, StartPoint.BEGINNING, retain=False), CursorCell)
    return NextSnapshot(name, cell.id, 0, 60_000)


async def seqs_of(future: asyncio.Future[object]) -> list[int]:
    leased = await asyncio.wait_for(future, scaled(5))
    assert isinstance(leased, Leased)
    return list(leased.seqs)


# --- The row --------------------------------------------------------------------------------------


def test_a_lease_call_that_finds_nothing_does_not_keep_followers_from_theirs() -> None:
    """A delete is a row for followers, and nothing for workers."""

    async def main() -> None:
        node = make_node()
        await node.found(keyed=True)
        command = await follower(node, "c")
        worker = node.ask(LeaseMessages(1, 60_000), wait_ms=60_000)
        follows = node.ask(command, wait_ms=60_000)
        await node.turn()
        await node.done(Publish((NewMessage(None, b"k"),)), PublishResult)
        assert isinstance(await asyncio.wait_for(follows, scaled(5)), SnapshotRef)
        assert not worker.done()
        await node.done(publish(b"x", key=b"k"), PublishResult)
        assert await seqs_of(worker) == [2]

    run(main())


def test_a_follower_that_finds_nothing_does_not_keep_workers_from_theirs() -> None:
    """Its cursor was moved by another follower, which has read the rows that are new to it."""

    async def main() -> None:
        node = make_node()
        await node.found()
        command = await follower(node, "c")
        await node.done(publish(b"a"), PublishResult)
        ref = await node.done(command, SnapshotRef)
        lease = await node.done(LeaseMessages(1, 60_000), Leased)
        await node.done(
            CommitCursor("c", command.cursor, CursorPosition(HISTORY, 1, 0, 1)), CursorCell
        )
        assert ref.boundary == 1
        stale = node.ask(command, wait_ms=60_000)
        worker = node.ask(LeaseMessages(1, 60_000), wait_ms=60_000)
        await node.turn()
        assert not stale.done()
        future = node.ask(Release(lease.lease, lease.seqs, HISTORY))
        await node.commit()
        assert future.done()
        assert await seqs_of(worker) == [1]
        assert not stale.done()
        await node.done(publish(b"b"), PublishResult)
        assert isinstance(await asyncio.wait_for(stale, scaled(5)), SnapshotRef)

    run(main())


def test_who_was_woken_for_nothing_keeps_its_place() -> None:
    """The lease whose end it waited for was extended."""

    async def main() -> None:
        node = make_node()
        await node.found()
        await node.done(publish(b"a"), PublishResult)
        lease = await node.done(LeaseMessages(1, 1_000), Leased)
        first = node.ask(LeaseMessages(1, 60_000), wait_ms=60_000)
        second = node.ask(LeaseMessages(1, 60_000), wait_ms=60_000)
        await node.done(Extend(lease.lease, lease.seqs, HISTORY, 600_000), object)
        await asyncio.sleep(2)
        await node.commit()
        assert not first.done()
        await node.done(publish(b"b"), PublishResult)
        assert await seqs_of(first) == [2]
        assert not second.done()

    run(main())


def test_a_lease_that_ends_is_given_to_the_first_who_waits() -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        await node.done(publish(b"a"), PublishResult)
        await node.done(LeaseMessages(1, 1_000), Leased)
        first = node.ask(LeaseMessages(1, 1_000), wait_ms=60_000)
        second = node.ask(LeaseMessages(1, 60_000), wait_ms=60_000)
        before = node.clock.now_ms()
        assert await seqs_of(first) == [1]
        assert await seqs_of(second) == [1]
        assert 2_000 <= node.clock.now_ms() - before <= 2_100

    run(main())


def test_nobody_is_judged_again_without_something_new(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        await node.done(publish(b"a", b"b"), PublishResult)
        lease = await node.done(LeaseMessages(2, 60_000), Leased)
        for number in range(20):
            command = await follower(node, f"c{number}")
            node.ask(replace_after(command, 2), wait_ms=60_000)
            node.ask(LeaseMessages(1, 60_000), wait_ms=60_000)
        await node.turn()
        judged: list[object] = []

        def noted(context: BatchContext, shard: ShardId, command: Command) -> object:
            judged.append(command)
            return decide(context, shard, command)

        monkeypatch.setattr(view_cache, "decide", noted)
        await node.done(Settle(lease.lease, BitMap64([1]), HISTORY), object)
        assert [type(command) for command in judged] == [Settle]

    run(main())


def replace_after(command: NextSnapshot, after: int) -> NextSnapshot:
    return NextSnapshot(command.name, command.cursor, after, command.pin_ms)


def test_a_follower_hears_of_the_message_that_took_the_seq_of_one_taken_back() -> None:
    async def main() -> None:
        node = make_node(is_late=True)
        await node.found()
        assert node.late is not None
        command = await follower(node, "c")
        lost = [
            node.ask(publish(b"a")),
            node.ask(CommitCursor("c", command.cursor, CursorPosition(HISTORY, 1, 0, 1))),
        ]
        follows = node.ask(command, wait_ms=60_000)
        await node.turn()
        await node.world.settle()
        node.late.void(node.late.commit_point)
        await node.commit()
        assert all(isinstance(error_of(future), errors.Retry) for future in lost)
        assert not follows.done()
        await node.done(publish(b"b"), PublishResult)
        assert isinstance(await asyncio.wait_for(follows, scaled(5)), SnapshotRef)

    run(main())


def test_a_lease_that_ends_after_a_rollback_is_given_to_who_waits() -> None:
    async def main() -> None:
        node = make_node(is_late=True)
        await node.found()
        assert node.late is not None
        await node.done(publish(b"a"), PublishResult)
        await node.done(LeaseMessages(1, 5_000), Leased)
        waits = node.ask(LeaseMessages(1, 60_000), wait_ms=60_000)
        await node.turn()
        lost = node.ask(Pin(60_000))
        await node.turn()
        await node.world.settle()
        node.late.void(node.late.commit_point)
        await node.commit()
        assert isinstance(error_of(lost), errors.Retry)
        await asyncio.sleep(6)
        await node.commit()
        assert await seqs_of(waits) == [1]

    run(main())


# --- Bounds ---------------------------------------------------------------------------------------


def test_beyond_the_bound_a_waiting_call_is_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With an empty answer it would repeat the call at once, and for ever."""
    monkeypatch.setattr(limits, "WAITERS_MAX", 2)

    async def main() -> None:
        node = make_node()
        await node.found()
        command = await follower(node, "c")
        waits = [
            node.ask(LeaseMessages(1, 60_000), wait_ms=60_000),
            node.ask(command, wait_ms=60_000),
        ]
        for other in (LeaseMessages(1, 60_000), command):
            future = node.ask(other, wait_ms=60_000)
            await node.commit()
            error = error_of(future)
            assert isinstance(error, errors.Full)
            assert (error.field, error.limit) == ("wait", 2)
        assert not any(future.done() for future in waits)
        # A call without a wait is answered at once.
        assert not (await node.done(LeaseMessages(1, 60_000), Leased)).seqs
        # Abandoned calls take no place.
        waits[0].cancel()
        waits.append(node.ask(LeaseMessages(1, 60_000), wait_ms=60_000))
        await node.commit()
        assert not waits[-1].done()

    run(main())


def test_a_wait_ends_when_it_was_to_end() -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        before = node.clock.now_ms()
        waits = [node.ask(LeaseMessages(1, 60_000), wait_ms=ms) for ms in (500, 30, 40, 5_000)]
        ends: list[int] = []
        for future in waits:
            future.add_done_callback(lambda _: ends.append(node.clock.now_ms() - before))
        await asyncio.wait(waits)
        late = [end - ms for end, ms in zip(ends, (30, 40, 500, 5_000), strict=True)]
        assert all(0 <= ms <= 2 * limits.WAIT_ENDS_STEP_MS for ms in late), ends

    run(main())


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_a_wait_ends_in_time_although_the_clock_was_set(jump_ms: int) -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        loop = asyncio.get_running_loop()
        before = loop.time()
        waits = [node.ask(LeaseMessages(1, 60_000), wait_ms=ms) for ms in (500, 1_500)]
        await node.turn()
        node.clock.jump(jump_ms)
        waits.append(node.ask(LeaseMessages(1, 60_000), wait_ms=1_000))
        for future, seconds in zip(waits, (0.5, 1.5, 1.0), strict=True):
            assert await seqs_of(future) == []
            assert seconds <= loop.time() - before <= 1.6

    run(main())


def test_a_wait_ends_in_time_although_a_lease_ended_before() -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        await node.done(publish(b"a"), PublishResult)
        await node.done(LeaseMessages(1, 1_000), Leased)
        first = node.ask(LeaseMessages(1, 60_000), wait_ms=60_000)
        second = node.ask(LeaseMessages(1, 60_000), wait_ms=1_500)
        before = node.clock.now_ms()
        assert await seqs_of(first) == [1]
        assert await seqs_of(second) == []
        assert 1_500 <= node.clock.now_ms() - before <= 1_600

    run(main())


def test_views_that_nobody_uses_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VIEWS_MAX", 3)

    async def main() -> None:
        node = make_node()
        await node.found()
        shards = [QUEUE]
        for number in range(6):
            create = CreateQueue("default", f"q{number}", QueueSpec())
            shards += (await node.done(create, QueueRef, shard=CATALOG)).shards
        for shard in shards:
            node.clock.jump(10)
            await node.done(publish(b"x"), PublishResult, shard=shard)
            await node.done(LeaseMessages(1, 60_000), Leased, shard=shard)
        await node.done(Pin(60_000), SnapshotRef, shard=shards[0])
        waits = node.ask(LeaseMessages(1, 60_000), shard=shards[1], wait_ms=600_000)
        await node.turn()
        node.host.tick()
        assert sorted(node.host._views) == [CATALOG, shards[0], shards[1]]
        # These messages are still leased, and return after their timeout.
        assert not (await node.done(LeaseMessages(1, 60_000), Leased, shard=shards[2])).seqs
        assert await asyncio.wait_for(waits, scaled(60))
        await asyncio.sleep(1)
        assert (await node.done(LeaseMessages(1, 60_000), Leased, shard=shards[2])).seqs

    run(main())


def test_views_of_queues_with_a_time_to_live_are_let_go_when_they_are_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their messages need not have expired: SQS keeps them for four days."""
    monkeypatch.setattr(limits, "VIEWS_MAX", 0)

    async def main() -> None:
        node = make_node()
        await node.found()
        shards: list[ShardId] = []
        for number in range(3):
            create = CreateQueue("default", f"q{number}", QueueSpec(ttl_ms=4 * 24 * 3_600_000))
            shards += (await node.done(create, QueueRef, shard=CATALOG)).shards
        for shard in shards:
            await node.done(publish(b"x"), PublishResult, shard=shard)
        for shard in shards[:2]:
            lease = await node.done(LeaseMessages(1, 60_000), Leased, shard=shard)
            await node.done(Settle(lease.lease, lease.seqs, HISTORY), Outcome, shard=shard)
        node.host.tick()
        assert set(node.host._views).issuperset(shards)
        node.clock.jump(bounds.EMPTY_CHECK_MS)
        node.host.tick()
        await node.turn()
        node.host.tick()
        assert sorted(node.host._views) == [CATALOG, shards[2]], "one has a message"

    run(main())


def test_a_need_for_the_same_thing_twice_ends_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        monkeypatch.setattr(view_cache, "decide", lambda *_: Need(QUEUE, rows=(1,)))
        future = node.ask(LeaseMessages(1, 60_000))
        await node.turn()
        assert isinstance(error_of(future), errors.Fatal)

    run(main())


def test_what_one_tick_cannot_end_is_ended_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TICK_ENDS_MAX", 2)

    async def main() -> None:
        node = make_node()
        await node.found()
        for _ in range(7):
            await node.done(Pin(1_000), SnapshotRef)
        node.clock.jump(2_000)
        node.host.tick()
        view = node.host.view(QUEUE)
        assert view is not None
        for _ in range(4):
            await node.commit()
        assert not view.pins

    run(main())


def test_what_is_too_old_goes_although_nobody_uses_the_queue_after_a_start() -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        create = CreateQueue("default", "pinned", QueueSpec())
        [shard] = (await node.done(create, QueueRef, shard=CATALOG)).shards
        await node.done(publish(b"x"), PublishResult)
        await node.done(Pin(1_000), SnapshotRef, shard=shard)
        await node.host.stop()
        node.begin(2)
        node.clock.jump(2_000)
        node.host.tick()
        assert sorted(node.host._views) == [CATALOG, shard]
        await node.commit()
        assert not list(node.store.cells(shard, Kind.PIN))

    run(main())


# --- Who has left, and who is told ----------------------------------------------------------------


def test_a_plain_publish_whose_caller_has_left_is_not_published() -> None:
    async def main() -> None:
        node = make_node()
        await node.found()
        futures = [node.ask(publish(b"%d" % number)) for number in range(10)]
        for future in futures[::2]:
            future.cancel()
        await node.commit()
        assert node.bodies() == [b"1", b"3", b"5", b"7", b"9"]
        assert [(await future) for future in futures[1::2]] == [
            PublishResult(Seq(number), 1) for number in range(1, 6)
        ]

    run(main())


def test_everyone_is_told_by_an_error_of_its_own() -> None:
    """A raised error references frames: a shared one would reference those of all callers."""

    async def main() -> None:
        node = make_node()
        await node.found()
        waits = [node.ask(LeaseMessages(1, 60_000), wait_ms=60_000) for _ in range(2)]
        await node.turn()
        await node.done(DeleteQueue("default", "q"), bool, shard=CATALOG)
        late = [node.ask(publish(b"x")) for _ in range(3)]
        await node.commit()
        deleted = [error_of(future) for future in (*waits, *late)]
        assert all(isinstance(error, errors.NotFound) for error in deleted)
        assert len({id(error) for error in deleted}) == len(deleted)
        create = CreateQueue("default", "r", QueueSpec())
        [shard] = (await node.done(create, QueueRef, shard=CATALOG)).shards
        waits = [node.ask(LeaseMessages(1, 60_000), shard=shard, wait_ms=60_000) for _ in range(3)]
        await node.turn()
        await node.host.stop()
        closed = [error_of(future) for future in waits]
        assert all(isinstance(error, errors.Closed) for error in closed)
        assert len({id(error) for error in closed}) == len(closed)

    run(main())
