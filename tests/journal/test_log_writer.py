"""The log writer: order, end marks, refusals, and callbacks that raise."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable

import pytest

from millrace import errors, limits
from millrace.core.changes import Entry
from millrace.core.format.block import Block
from millrace.core.model import (
    Epoch,
    GroupId,
    Index,
    NewMessage,
)
from millrace.journal.local import LocalJournal
from millrace.wal.record import LogPosition
from millrace.wal.segment import LogShape
from tests.journal.harness import HISTORY, KIB, LOCAL, A, B, World, new_world, run
from tests.support.contracts.check_journal import append, entry_of
from tests.support.simulator.disk import Effect

SECTOR = limits.SECTOR_BYTES


C = GroupId(3)
"""Commits late."""


class Told:
    """Two groups that commit on sync, and their callbacks, in order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.heard: list[str] = []
        self.raises: dict[str, Callable[[], Exception]] = {}
        self.a = self.journal(A, "a")
        self.b = self.journal(B, "b")

    def journal(self, group: GroupId, name: str) -> LocalJournal:
        journal = LocalJournal(group, Epoch(1), HISTORY, Index(0), self.world.writer)
        journal.listen(
            lambda entry, _: self.hear(f"{name}{entry.index}"),
            lambda first, error: self.hear(f"{name}{first} dropped {error.code}"),
            lambda error: self.hear(f"{name} failed {error.code}"),
        )
        return journal

    def hear(self, what: str) -> None:
        self.heard.append(what)
        if what in self.raises:
            raise self.raises[what]()


def hold(world: World) -> None:
    world.lane.is_held = True


# --- Order ----------------------------------------------------------------------------------------


def test_all_that_waits_goes_into_one_record() -> None:
    async def main() -> None:
        world = new_world()
        told = Told(world)
        hold(world)
        for number in range(5):
            append(told.a, b"%d" % number)
            append(told.b, b"%d" % number)
        syncs = world.log.statistics().syncs
        await world.settle()
        assert told.heard == ["a1", "b1", "a2", "b2", "a3", "b3", "a4", "b4", "a5", "b5"]
        assert world.log.statistics().syncs == syncs + 2

    run(main())


def test_the_mark_passes_a_record_when_all_were_told_of_it() -> None:
    """A checkpoint between two callbacks must not pass entries that are not folded."""

    async def main() -> None:
        world = new_world()
        told = Told(world)
        marks = []

        def listen(entry: Entry, position: LogPosition) -> None:
            marks.append(world.writer.replay_mark())

        before = world.writer.mark
        told.a.listen(listen, lambda *_: None, lambda _: None)
        append(told.a, b"1")
        append(told.b, b"1")
        await world.settle()
        assert marks == [before]
        assert world.writer.mark > before

    run(main())


def test_what_is_written_at_once_is_told_at_once() -> None:
    async def main() -> None:
        world = new_world()
        told = Told(world)
        hold(world)
        append(told.a, b"1", alone=True)
        assert told.heard == ["a1"]
        append(told.a, bytes(limits.INLINE_RECORD_BYTES_MAX), alone=True)
        assert told.heard == ["a1"], "a large one is not worth holding up the loop"
        append(told.b, b"1", alone=True)
        assert told.heard == ["a1"], "one record at a time"
        await world.settle()
        assert told.heard == ["a1", "a2", "b1"]

    run(main())


def test_whoever_appends_when_told_comes_after_all_that_were_told_with_it() -> None:
    """Written inline, its entry would overtake the record whose callbacks are running."""

    async def main() -> None:
        world = new_world()
        told = Told(world)

        def go_on(entry: Entry, position: LogPosition) -> None:
            told.hear(f"a{entry.index}")
            if entry.index < 3:
                append(told.a, b"next", alone=True)

        told.a.listen(go_on, lambda *_: None, lambda _: None)
        hold(world)
        append(told.b, b"1")
        append(told.a, b"1")
        append(told.b, b"2")
        await world.settle()
        assert told.heard == ["b1", "a1", "b2", "a2", "a3"]
        assert world.writer.mark == world.log.mark()

    run(main())


def test_a_record_takes_no_more_than_a_segment_holds() -> None:
    """With small segments, entries that fit one by one were refused together."""

    async def main() -> None:
        world = new_world(shape=LogShape(segment_bytes=8 * SECTOR, segments_max=8))
        world.prepare()
        told = Told(world)
        hold(world)
        for _ in range(3):
            append(told.a, bytes(3 * SECTOR))
            append(told.b, bytes(3 * SECTOR))
        await world.settle()
        assert told.heard == ["a1", "b1", "a2", "b2", "a3", "b3"]

    run(main())


# --- Refusals -------------------------------------------------------------------------------------


def test_only_the_groups_of_a_refused_record_lose_what_they_had() -> None:
    async def main() -> None:
        world = new_world()
        told = Told(world)
        world.fill()
        hold(world)
        append(told.b, b"1", reserve=True)
        append(told.a, bytes(16 * KIB))
        append(told.b, b"2", reserve=True)
        append(told.a, b"2", reserve=True)
        await world.settle()
        assert told.heard == ["b1", "a1 dropped full", "b2"]
        assert (told.a.next_index(), told.b.next_index()) == (1, 3)

    run(main())


def test_what_frees_space_is_not_refused_with_what_takes_it() -> None:
    """L8: settling works on a full log, whatever is published at the same time."""

    async def main() -> None:
        world = new_world()
        told = Told(world)
        world.fill()
        hold(world)
        append(told.b, b"busy", reserve=True)
        append(told.b, b"settles", reserve=True)
        append(told.a, bytes(16 * KIB))
        await world.settle()
        assert told.heard == ["b1", "b2", "a1 dropped full"]

    run(main())


def test_what_cannot_be_encoded_hurts_nobody_else() -> None:
    async def main() -> None:
        world = new_world()
        told = Told(world)
        hold(world)
        append(told.b, b"1")
        entry = entry_of(told.a, b"1")
        entry.batches[0].changes.died = {1: object()}  # type: ignore[dict-item]
        with pytest.raises(TypeError):
            told.a.append(entry, alone=False, reserve=False)
        append(told.b, b"2")
        await world.settle()
        assert told.heard == ["b1", "b2"]

    run(main())


def test_refusals_do_not_pile_up_in_the_error() -> None:
    """An error that is raised again and again must not remember each time."""

    async def main() -> None:
        world = new_world()
        told = Told(world)
        world.writer.close()
        depths = set()
        for _ in range(5):
            with pytest.raises(errors.Closed) as caught:
                append(told.a, b"1")
            depths.add(len(traceback.extract_tb(caught.value.__traceback__)))
        assert len(depths) == 1

    run(main())


# --- Ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["write", "sync"])
def test_a_failed_write_tells_every_group_once(verb: str) -> None:
    """Also groups that were not writing: a worker may wait there for messages, for ever."""

    async def main() -> None:
        world = new_world()
        told = Told(world)
        append(told.a, b"1")
        append(world.late(C), b"1")
        await world.settle()
        if verb == "write":
            world.disk.fail_write_in = 1
        else:
            world.disk.fail_sync_in = 1
        hold(world)
        append(told.a, b"2")
        append(told.a, b"3")
        again = world.writer.rewrite_suffix(C)
        await world.settle()
        assert world.failed == [C]
        assert told.heard == ["a1", "a failed disk_failed", "b failed disk_failed"]
        with pytest.raises(errors.Fatal):
            await again
        for journal in (told.a, told.b):
            with pytest.raises(errors.Fatal):
                append(journal, b"4")
        with pytest.raises(errors.Fatal):
            world.writer.rewrite_suffix(C)
        assert len(told.heard) == 3

    run(main())


def test_whoever_raises_when_told_ends_the_writer() -> None:
    """Entries not folded are for recovery; nothing may be written or marked after them."""

    async def main() -> None:
        world = new_world()
        told = Told(world)
        append(told.a, b"0")
        await world.settle()
        told.raises["a2"] = lambda: errors.Corrupt("the store is damaged")
        mark = world.writer.mark
        hold(world)
        append(told.b, b"1")
        append(told.a, b"1")
        append(told.b, b"2")
        await world.settle()
        assert told.heard == ["a1", "b1", "a2", "a failed corrupt", "b failed corrupt"]
        assert world.writer.mark > mark, "the first record was told of"
        assert world.writer.mark < world.log.mark(), "the second was not"
        with pytest.raises(errors.Corrupt):
            append(told.b, b"3")

    run(main(), unhandled=["Corrupt"])


def test_whoever_raises_at_once_ends_the_writer_too() -> None:
    async def main() -> None:
        world = new_world()
        told = Told(world)
        told.raises["a1"] = lambda: ValueError("a defect")
        with pytest.raises(ValueError, match="a defect"):
            append(told.a, b"1", alone=True)
        assert told.heard == ["a1", "a failed disk_failed", "b failed disk_failed"]

    run(main())


def test_whoever_raises_when_told_of_the_end_does_not_hide_it_from_others() -> None:
    async def main() -> None:
        world = new_world()
        told = Told(world)
        told.raises["a failed disk_failed"] = lambda: ValueError("a defect")
        world.disk.fail_sync_in = 1
        append(told.a, b"1")
        await world.settle()
        assert told.heard == ["a failed disk_failed", "b failed disk_failed"]

    run(main(), unhandled=["a defect"])


def test_an_error_that_nobody_foresaw_ends_the_writer() -> None:
    async def main() -> None:
        world = new_world()
        told = Told(world)

        def burst(effect: Effect) -> None:
            raise MemoryError

        world.disk.hook = burst
        with pytest.raises(MemoryError):
            append(told.a, b"1", alone=True)
        assert told.heard == ["a failed disk_failed", "b failed disk_failed"]
        assert not world.writer.busy

    run(main())


def test_what_waits_at_the_end_is_refused() -> None:
    async def main() -> None:
        world = new_world()
        told = Told(world)
        append(world.late(C), b"1")
        await world.settle()
        hold(world)
        append(told.a, b"1")
        append(told.b, b"1")
        again = world.writer.rewrite_suffix(C)
        world.writer.close()
        world.lane.release()
        await world.settle()
        assert told.heard == ["b1 dropped closed", "a1"]
        with pytest.raises(errors.Closed):
            await again
        with pytest.raises(errors.Closed):
            append(told.a, b"2")

    run(main())


# --- End marks ------------------------------------------------------------------------------------


def test_the_end_is_marked_once_it_is_quiet() -> None:
    async def main() -> None:
        world = new_world()
        told = Told(world)
        append(told.a, b"1")
        await world.settle()
        records = world.log.statistics().records
        await asyncio.sleep(limits.END_MARK_SECONDS * 0.9)
        append(told.a, b"2", alone=True)
        await asyncio.sleep(limits.END_MARK_SECONDS * 0.9)
        assert world.log.statistics().records == records + 1, "it was not quiet for long enough"
        await asyncio.sleep(limits.END_MARK_SECONDS * 0.2)
        assert world.log.statistics().records == records + 2
        await asyncio.sleep(limits.END_MARK_SECONDS * 10)
        assert world.log.statistics().records == records + 2, "one end needs one mark"

    run(main())


def test_nothing_is_written_beside_an_end_mark() -> None:
    """Two writes at once would end the log."""

    async def main() -> None:
        world = new_world()
        told = Told(world)
        append(told.a, b"1", alone=True)
        hold(world)
        await asyncio.sleep(limits.END_MARK_SECONDS * 1.1)
        assert world.lane.waits()
        append(told.a, b"2", alone=True)
        append(told.b, b"1", alone=True)
        assert told.heard == ["a1"]
        world.lane.step()
        await world.turn()
        assert told.heard == ["a1"]
        await world.settle()
        assert told.heard == ["a1", "a2", "b1"]
        await asyncio.sleep(limits.END_MARK_SECONDS * 1.1)
        await world.settle()
        world = world.end(power=True)
        assert world.log.statistics().records == 0

    run(main())


def test_an_end_mark_that_fails_is_told_to_everyone() -> None:
    """No entry is in flight then: workers that wait for messages would never be notified."""

    async def main() -> None:
        world = new_world()
        told = Told(world)
        append(told.a, b"1", alone=True)
        world.disk.fail_sync_in = 1
        await asyncio.sleep(limits.END_MARK_SECONDS * 1.1)
        assert told.heard == ["a1", "a failed disk_failed", "b failed disk_failed"]

    run(main())


def test_a_generation_begins_between_records() -> None:
    async def main() -> None:
        world = new_world()
        world.prepare()
        told = Told(world)
        hold(world)
        append(told.a, b"1")
        rolled = world.writer.roll()
        assert world.writer.roll() is rolled
        append(told.b, b"1", alone=True)
        begun = world.log.mark().generation
        world.lane.step()
        await world.turn()
        assert told.heard == ["a1"]
        append(told.a, b"2", alone=True)
        world.lane.step()
        await rolled
        assert told.heard == ["a1"], "what waits comes after the beginning"
        assert world.writer.mark == world.log.mark()
        assert world.log.mark().generation == begun + 1
        await world.settle()
        assert told.heard == ["a1", "b1", "a2"]

    run(main())


def test_who_waits_for_a_generation_is_told_of_the_end() -> None:
    async def main() -> None:
        world = new_world()
        told = Told(world)
        hold(world)
        append(told.a, b"1")
        rolled = world.writer.roll()
        world.writer.close()
        with pytest.raises(errors.Closed):
            await rolled
        with pytest.raises(errors.Closed):
            world.writer.roll()
        world = new_world()
        world.prepare()
        told = Told(world)
        append(told.a, b"1", alone=True)
        world.disk.fail_sync_in = 1
        with pytest.raises(errors.Fatal):
            await world.writer.roll()
        assert told.heard == ["a1", "a failed disk_failed", "b failed disk_failed"]

    run(main())


def test_a_generation_that_finds_no_room_changes_nothing() -> None:
    async def main() -> None:
        world = new_world()
        told = Told(world)
        append(told.a, b"1", alone=True)
        mark = world.writer.mark
        await world.writer.roll()
        assert world.writer.mark == mark
        append(told.a, b"2")
        await world.settle()
        assert told.heard == ["a1", "a2"]

    run(main())


# --- Owners ---------------------------------------------------------------------------------------


def test_an_epoch_is_not_used_twice() -> None:
    async def main() -> None:
        world = new_world()
        world.local(3)
        for epoch in (2, 3):
            with pytest.raises(errors.Fatal, match="too late"):
                world.local(epoch)
        world.local(4)

    run(main())


def test_a_group_is_not_handed_over_while_it_is_being_written() -> None:
    """The next decider would take an index that is on its way to the log."""

    async def main() -> None:
        world = new_world()
        journal = world.local(1)
        hold(world)
        append(journal, b"1")
        with pytest.raises(errors.Fatal, match="still being written"):
            world.local(2)
        await world.settle()
        assert world.local(2).next_index() == 2

    run(main())


def test_blocks_know_their_places_in_a_shared_record() -> None:
    async def main() -> None:
        world = new_world()
        local, late = world.local(), world.late(A)
        hold(world)
        for number in range(4):
            append(late, b"late %d" % number)
            entry = entry_of(local, b"local %d" % number)
            entry.batches[0].blocks.append(Block.of_messages([NewMessage(b"more")]))
            local.append(entry, alone=False, reserve=False)
        await world.settle()
        late.commit()
        assert world.ledger.applied(LOCAL) == world.ledger.applied(A) == 4

    run(main())


def test_a_group_that_has_no_suffix_needs_none_written_again() -> None:
    async def main() -> None:
        world = new_world()
        told = Told(world)
        world.late(C)
        append(told.a, b"1")
        await world.settle()
        records = world.log.statistics().records
        await world.writer.rewrite_suffix(A)
        await world.writer.rewrite_suffix(C)
        assert world.log.statistics().records == records

    run(main())
