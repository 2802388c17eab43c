"""Rules L1, L6 and L7: records, facts and suffixes of groups that commit late.

Each test names the disaster that its rule prevents.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millrace import errors, limits
from millrace.core.changes import Entry, EntryKind
from millrace.core.format.codec import decode_entries
from millrace.core.model import Epoch, GroupId, Index
from millrace.journal.base import Journal
from millrace.journal.recovery import Recovery
from millrace.journal.uncommitted import EpochStarts
from millrace.wal.record import LogPosition
from millrace.wal.replay import Replay
from tests.journal.harness import HISTORY, KIB, LOCAL, A, B, World, junk, new_world, run
from tests.support.contracts.check_journal import append, body_of, entry_of


def bodies(world: World, group: GroupId) -> list[bytes]:
    """The group's suffix."""
    return [body_of(held.entry) for held in world.writer.suffixes.held(group)]


def epochs(world: World, group: GroupId) -> list[tuple[int, int]]:
    return [(held.entry.index, held.entry.epoch) for held in world.writer.suffixes.held(group)]


def of_epoch(journal: Journal, epoch: int, first: int, texts: Sequence[bytes]) -> list[Entry]:
    """Entries as another leader would send them."""
    entries = [entry_of(journal, text, first + at) for at, text in enumerate(texts)]
    for entry in entries:
        entry.epoch = Epoch(epoch)
    return entries


# --- L1: a record holds entries synced together, not committed together ---------------------------


def test_groups_in_one_record_commit_apart() -> None:
    async def main() -> None:
        world = new_world()
        a, b, local = world.late(A), world.late(B), world.local()
        world.lane.is_held = True
        for number in range(3):
            append(a, b"a%d" % number)
            append(b, b"b%d" % number)
            append(local, b"l%d" % number)
        records = world.log.statistics().records
        await world.settle()
        assert world.log.statistics().records == records + 2
        assert world.ledger.bodies(LOCAL) == [b"l0", b"l1", b"l2"]
        a.commit(2)
        await b.void(1)
        b.commit()
        await world.settle()
        world = world.end(power=True)
        assert world.ledger.bodies(LOCAL) == [b"l0", b"l1", b"l2"]
        assert (world.ledger.bodies(A), bodies(world, A)) == ([b"a0", b"a1"], [b"a2"])
        assert (world.ledger.bodies(B), bodies(world, B)) == ([b"b0"], [])

    run(main())


def test_a_rollback_is_a_record_of_its_own() -> None:
    """Cutting the tail would take the entries of other groups with it."""

    async def main() -> None:
        world = new_world()
        a, b = world.late(A), world.late(B)
        for number in range(4):
            append(a, b"a%d" % number)
            append(b, b"b%d" % number)
        await world.settle()
        end = world.log.mark()
        await a.void(1)
        assert world.log.mark().serial > end.serial
        assert (bodies(world, A), a.next_index()) == ([b"a0"], 2)
        for power in (False, True):
            world = world.end(power=power)
            assert bodies(world, A) == [b"a0"]
            assert bodies(world, B) == [b"b0", b"b1", b"b2", b"b3"]

    run(main())


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_replacement_of_equal_length_does_not_bring_the_old_next_record_back(lost: int) -> None:
    """The disaster: the tail is cut, and a replacement of the same length is written over it.

    The record behind it is then the old next one: right place, right generation, valid checksum.
    After a crash, replay would take it for the successor of the replacement, and a taken-back entry
    would be alive again. Here nothing is cut: the replacement is appended, and voids what it
    replaces and all that followed it, however far it got.
    """

    async def main() -> None:
        world = new_world()
        a, b = world.late(A), world.late(B)
        for text in (b"one", b"two", b"six", b"ten"):
            append(a, text)
            append(b, text)
            await world.settle()
        world.lane.is_held = True
        replacement = of_epoch(a, 2, 2, [b"TWO", b"SIX"])
        synced = [a.replace([entry]) for entry in replacement[:1]]
        while world.lane.waits() and lost < 2:
            world.lane.step()
        if lost < 1:
            await synced[0]
            done = a.replace(replacement[1:])
            world.lane.step()
            await done
        world = world.end(power=True)
        expected = {
            0: [(1, 1), (2, 2), (3, 2)],
            1: [(1, 1), (2, 2)],
            2: [(1, 1), (2, 1), (3, 1), (4, 1)],
        }
        assert epochs(world, A) == expected[lost]
        assert bodies(world, B) == [b"one", b"two", b"six", b"ten"]

    run(main())


def test_replay_voids_by_index_even_where_the_entry_is_applied() -> None:
    """An entry below the applied index is not folded again, but what it voided stays void."""

    async def main() -> None:
        world = new_world()
        a, b = world.late(A), world.late(B)
        append(b, b"holds the mark")
        await world.settle()
        for text in (b"old1", b"old2", b"old3"):
            append(a, text)
        await world.settle()
        await a.replace(of_epoch(a, 2, 1, [b"new1"]))
        a.commit(is_written=False)
        world.checkpoint()
        world = world.end(power=True)
        assert world.ledger.bodies(A) == [b"new1"]
        assert bodies(world, A) == [], "old2 and old3 are of the suffix that was replaced"
        assert world.late(A, 3).next_index() == 2

    run(main())


def void_of(journal: Journal, epoch: int, index: int) -> Entry:
    """A void of a decider, which takes back what follows `index`."""
    return Entry(journal.group, Epoch(epoch), Index(index), HISTORY, [], kind=EntryKind.VOID)


async def written(world: World, *entries: Entry) -> None:
    """Write entries as they reach the log of a node: in any order of epochs."""
    for entry in entries:
        world.writer.submit(
            entry, lambda entry, position: None, lambda error: None, alone=False, reserve=True
        )
    await world.settle()


@pytest.mark.parametrize("power", [False, True])
def test_l10_a_late_void_of_a_former_decider_drops_nothing_of_its_successor(*, power: bool) -> None:
    """The disaster: its successor's entry was acknowledged, and recovery ignored epochs."""

    async def main() -> None:
        world = new_world()
        a = world.late(A)
        await written(world, *of_epoch(a, 1, 1, [b"1", b"2", b"3 of the former"]))
        await written(world, *of_epoch(a, 2, 3, [b"3", b"4"]))
        await written(world, void_of(a, 1, 2))
        expected = [(1, 1), (2, 1), (3, 2), (4, 2)]
        assert epochs(world, A) == expected
        world = world.end(power=power)
        assert epochs(world, A) == expected
        a = world.late(A, 3)
        a.commit(4, is_written=False)
        assert world.ledger.bodies(A) == [b"1", b"2", b"3", b"4"]

    run(main())


@pytest.mark.parametrize("power", [False, True])
def test_l10_a_late_entry_of_a_former_decider_replaces_none_of_its_successor(
    *, power: bool
) -> None:
    async def main() -> None:
        world = new_world()
        a = world.late(A)
        await written(world, *of_epoch(a, 1, 1, [b"1"]), *of_epoch(a, 2, 2, [b"2", b"3"]))
        await written(world, *of_epoch(a, 1, 2, [b"late"]), *of_epoch(a, 1, 4, [b"later"]))
        expected = [(1, 1), (2, 2), (3, 2)]
        assert epochs(world, A) == expected
        assert epochs(world.end(power=power), A) == expected

    run(main())


@pytest.mark.parametrize("power", [False, True])
def test_l10_an_entry_that_is_written_twice_drops_nothing_of_a_later_decider(
    *, power: bool
) -> None:
    """A gap is read from elsewhere while the entry is on its way: it is written a second time."""

    async def main() -> None:
        world = new_world()
        a = world.late(A)
        await written(world, *of_epoch(a, 1, 1, [b"1", b"2"]), *of_epoch(a, 2, 3, [b"3", b"4"]))
        size = world.writer.suffixes.size(A)
        await written(world, *of_epoch(a, 1, 2, [b"2"]))
        expected = [(1, 1), (2, 1), (3, 2), (4, 2)]
        assert epochs(world, A) == expected
        assert world.writer.suffixes.size(A) == size
        world = world.end(power=power)
        assert epochs(world, A) == expected
        assert bodies(world, A) == [b"1", b"2", b"3", b"4"]

    run(main())


def test_l10_a_late_entry_is_known_by_the_epoch_of_the_store() -> None:
    """The successor's entries are committed, and no longer in the part of the log that is read."""
    late = Entry(A, Epoch(1), Index(3), HISTORY, [], kind=EntryKind.DATA)
    recovery = Recovery(
        lambda _: Index(2),
        {},
        lambda entry, position: None,
        commits_when_synced=lambda _: False,
        epoch=lambda _: Epoch(2),
    )
    recovery.read(late, LogPosition(1, 4096, 0))
    assert recovery.suffixes[A] == {}


def test_l10_replay_may_begin_behind_the_first_copy_of_a_suffix() -> None:
    """The suffix of two deciders was written again; replay begins between its two copies."""
    recovery = Recovery(
        lambda _: Index(0), {}, lambda entry, position: None, commits_when_synced=lambda _: False
    )
    for place, (index, epoch) in enumerate([(2, 2), (1, 1), (2, 2), (3, 2)]):
        entry = Entry(A, Epoch(epoch), Index(index), HISTORY, [], kind=EntryKind.DATA)
        recovery.read(entry, LogPosition(1, 4096 * place, 0))
    held = [(index, entry.epoch) for index, (entry, _) in recovery.suffixes[A].items()]
    assert held == [(1, 1), (2, 2), (3, 2)]


def test_l10_a_suffix_of_two_deciders_is_written_again_as_it_was() -> None:
    async def main() -> None:
        world = new_world()
        a = world.late(A)
        await written(world, *of_epoch(a, 1, 1, [b"1", b"2", b"old"]))
        await written(world, *of_epoch(a, 2, 3, [b"3", b"4"]))
        before = world.writer.suffixes.oldest()
        size = world.writer.suffixes.size(A)
        again = world.writer.rewrite_suffix(A)
        await world.settle()
        await again
        assert world.writer.suffixes.oldest() != before
        assert world.writer.suffixes.size(A) == size
        expected = [(1, 1), (2, 1), (3, 2), (4, 2)]
        assert epochs(world, A) == expected
        world = world.end(power=True)
        assert epochs(world, A) == expected
        assert bodies(world, A) == [b"1", b"2", b"3", b"4"]

    run(main())


def test_what_is_committed_cannot_be_taken_back() -> None:
    async def main() -> None:
        world = new_world()
        a = world.late(A)
        for text in (b"1", b"2", b"3"):
            append(a, text)
        await world.settle()
        a.commit(2)
        for after in (0, 1, 4):
            with pytest.raises(errors.Fatal, match="cannot be taken back"):
                a.void(after)
        with pytest.raises(errors.Fatal, match="cannot be taken back"):
            a.replace(of_epoch(a, 2, 2, [b"x"]))
        await a.void(2)
        assert world.dropped == [(A, 3)]

    run(main())


def test_nobody_hears_of_a_rollback_before_it_is_synced() -> None:
    """If reported earlier, a crash would revive the entries after their callers were refused."""

    async def main() -> None:
        world = new_world()
        a = world.late(A)
        append(a, b"1")
        append(a, b"2")
        await world.settle()
        world.lane.is_held = True
        done = a.void(1)
        assert world.dropped == []
        with pytest.raises(errors.Retry):
            append(a, b"3")
        world.lane.step()
        await done
        assert world.dropped == [(A, 2)]
        append(a, b"2 again")
        await world.settle()
        a.commit()
        assert world.ledger.bodies(A) == [b"1", b"2 again"]

    run(main())


# --- L6: facts of the node ------------------------------------------------------------------------


def test_term_vote_and_suffix_outlive_the_segments_they_were_written_to() -> None:
    """A member that forgets its vote votes twice; without its suffix it has lied to its leader."""

    async def main() -> None:
        world = new_world()
        a, b = world.late(A), world.late(B)
        append(a, b"promised")
        await a.remember(7, 2)
        await b.remember(3, 1)
        await b.remember(4, 3)
        await world.settle()
        first = world.log.mark().generation
        for _ in range(3):
            world.turn_over()
            again = world.writer.rewrite_suffix(A)
            await world.settle()
            await again
            world.checkpoint()
        assert world.log.segments()[0].generation > first, "the log was recycled"
        for power in (False, True, True):
            world = world.end(power=power)
            assert bodies(world, A) == [b"promised"]
            assert world.late(A, 8).ballot() == (7, 2)
            assert world.late(B, 5).ballot() == (4, 3)

    run(main())


def test_a_fact_is_in_the_checkpoint_only_when_it_is_synced() -> None:
    async def main() -> None:
        world = new_world()
        a = world.late(A)
        await a.remember(1, 1)
        world.lane.is_held = True
        done = a.remember(2, 2)
        world.checkpoint()
        assert a.ballot() == (1, 1)
        world.lane.step()
        await done
        assert a.ballot() == (2, 2)
        assert world.image is not None
        world = world.end(power=True)
        assert world.late(A, 3).ballot() == (2, 2), "replay reads what the checkpoint lacks"

    run(main())


def test_a_vote_that_could_not_be_written_is_not_given() -> None:
    async def main() -> None:
        world = new_world()
        a = world.late(A)
        await a.remember(1, 1)
        world.disk.fail_sync_in = 1
        with pytest.raises(errors.Fatal):
            await a.remember(2, 2)
        assert a.ballot() == (1, 1)
        assert world.failed == [A]

    run(main())


# --- L7: recycled although nothing commits --------------------------------------------------------


def test_the_log_is_recycled_although_a_group_has_no_quorum_for_hours() -> None:
    async def main() -> None:
        world = new_world()
        a, b, local = world.late(A), world.late(B), world.local()
        for number in range(5):
            append(a, b"a%d" % number * 100)
            append(b, b"b%d" % number * 100)
        await world.settle()
        expected = bodies(world, A), bodies(world, B)
        for turn in range(20):
            append(local, b"%d" % turn)
            await world.settle()
            world.turn_over()
            newest = world.log.mark().generation
            for group in world.writer.suffixes.before(newest):
                future = world.writer.rewrite_suffix(group)
                await world.settle()
                await future
            assert world.writer.suffixes.before(newest) == []
            world.checkpoint()
            assert len(world.log.segments()) <= 2
            assert (bodies(world, A), bodies(world, B)) == expected
        world = world.end(power=True)
        assert (bodies(world, A), bodies(world, B)) == expected
        assert epochs(world, A) == [(index, 1) for index in range(1, 6)]
        a, b = world.late(A, 2), world.late(B, 2)
        a.commit()
        b.commit(3)
        await b.void(3)
        assert world.ledger.bodies(A) == expected[0]
        assert world.ledger.bodies(B) == expected[1][:3]
        assert len(world.ledger.bodies(LOCAL)) == 20

    run(main())


def test_a_suffix_is_written_again_in_one_record() -> None:
    """Entry by entry, the first one would void the others, and a crash would lose them."""

    async def main() -> None:
        world = new_world()
        a = world.late(A)
        for number in range(6):
            append(a, b"%d" % number * 3000)
            await world.settle()
        future = world.writer.rewrite_suffix(A)
        await world.settle()
        await future
        positions = {held.position for held in world.writer.suffixes.held(A)}
        assert len(positions) == 1
        found = world.log.buffer(positions.pop())
        assert found is not None
        assert [entry.index for entry in decode_entries(found)] == [1, 2, 3, 4, 5, 6]

    run(main())


def test_what_waits_to_be_written_comes_after_the_suffix() -> None:
    """Before it, the suffix would void it in replay, though its caller may have been answered."""

    async def main() -> None:
        world = new_world()
        a = world.late(A)
        append(a, b"1")
        append(a, b"2")
        await world.settle()
        world.lane.is_held = True
        append(a, b"3")
        append(a, b"4")
        future = world.writer.rewrite_suffix(A)
        world.lane.step()
        await world.settle()
        await future
        a.commit(3)
        append(a, b"5")
        await world.settle()
        world = world.end(power=True)
        assert world.ledger.bodies(A) == [b"1", b"2", b"3"]
        assert bodies(world, A) == [b"4", b"5"]

    run(main())


def test_an_entry_that_commits_while_it_is_written_again_keeps_its_place() -> None:
    """The copy's blocks lie elsewhere: with the old position they would name other rows."""

    async def main() -> None:
        world = new_world()
        a, b = world.late(A), world.late(B)
        append(b, b"so that the copy lies elsewhere")
        for number in range(3):
            append(a, b"%d" % number)
        await world.settle()
        world.lane.is_held = True
        append(b, b"keeps the writer busy")
        again = [world.writer.rewrite_suffix(B), world.writer.rewrite_suffix(A)]
        world.lane.step()
        await world.turn()
        assert world.lane.waits(), "it is being written"
        a.commit(2)
        assert world.ledger.bodies(A) == [b"0", b"1"], "`fold` has looked at the places"
        await world.settle()
        for future in again:
            await future
        assert bodies(world, A) == [b"2"]
        a.commit()
        assert world.ledger.bodies(A) == [b"0", b"1", b"2"]
        world.checkpoint()
        world = world.end(power=True)
        assert world.ledger.bodies(A) == [b"0", b"1", b"2"]
        assert bodies(world, A) == []
        assert bodies(world, B) == [b"so that the copy lies elsewhere", b"keeps the writer busy"]

    run(main())


def test_a_suffix_that_was_taken_back_is_not_written_again() -> None:
    async def main() -> None:
        world = new_world()
        a = world.late(A)
        append(a, b"1")
        append(a, b"2")
        await world.settle()
        world.lane.is_held = True
        rolled_back = a.void(0)
        future = world.writer.rewrite_suffix(A)
        world.lane.step()
        await world.settle()
        await rolled_back
        await future
        assert bodies(world, A) == []
        world = world.end(power=True)
        assert bodies(world, A) == []

    run(main())


def test_a_crash_while_a_suffix_is_written_again_changes_nothing() -> None:
    async def main() -> None:
        for seed in range(20):
            world = new_world(seed)
            a = world.late(A)
            for number in range(4):
                append(a, b"%d" % number * 5000)
            await world.settle()
            world.lane.is_held = True
            future = world.writer.rewrite_suffix(A)
            world.disk.fail_sync_in = 1
            world.lane.step()
            with pytest.raises(errors.Fatal):
                await future
            world = world.end(power=True)
            assert bodies(world, A) == [b"%d" % number * 5000 for number in range(4)]

    run(main())


def test_a_suffix_that_finds_no_room_stays_where_it_is() -> None:
    """And nobody else suffers: not even those of its group who wait."""

    async def main() -> None:
        world = new_world()
        a = world.late(A)
        append(a, bytes(30 * KIB))
        await world.settle()
        before = world.writer.suffixes.oldest()
        world.fill(spare=0)
        while world.log.room(reserve=True) > 12 * KIB:
            world.log.append(
                junk(min(world.log.room(reserve=True), 64 * KIB) - 12 * KIB), reserve=True
            )
        world.lane.is_held = True
        append(world.late(B), b"keeps the writer busy", reserve=True)
        again = world.writer.rewrite_suffix(A)
        append(a, b"2", reserve=True)
        await world.settle()
        with pytest.raises(errors.Full):
            await again
        assert world.writer.suffixes.oldest() == before
        assert [len(body) for body in bodies(world, A)] == [30 * KIB, 1]
        assert world.dropped == []
        a.commit(is_written=False)
        assert world.ledger.applied(A) == 2, "`fold` has looked at their places"

    run(main())


def test_a_group_is_handed_over_while_its_suffix_is_being_moved() -> None:
    async def main() -> None:
        world = new_world()
        a = world.late(A)
        append(a, b"1")
        append(a, b"2")
        await world.settle()
        a.commit(1)
        world.lane.is_held = True
        again = world.writer.rewrite_suffix(A)
        new = world.late(A, 2)
        assert (new.next_index(), new.waiting()) == (3, 1)
        append(new, b"3")
        with pytest.raises(errors.Fatal, match="still being written"):
            world.late(A, 3)
        await world.settle()
        await again
        new.commit()
        assert world.ledger.bodies(A) == [b"1", b"2", b"3"]

    run(main())


def test_the_mark_waits_for_the_oldest_entry_of_all_groups() -> None:
    async def main() -> None:
        world = new_world()
        a, b = world.late(A), world.late(B)
        append(a, b"1")
        await world.settle()
        begun = world.writer.replay_mark()
        append(b, b"1")
        append(a, b"2")
        await world.settle()
        assert world.writer.replay_mark() == begun
        assert world.writer.mark > begun
        a.commit()
        assert begun < world.writer.replay_mark() < world.writer.mark
        b.commit()
        await world.settle()
        assert world.writer.replay_mark() == world.writer.mark

    run(main())


def test_uncommitted_bytes_of_a_group_are_bounded() -> None:
    """Beyond the bound an entry is refused, nothing is written, and the others go on."""

    async def main() -> None:
        world = new_world()
        a, b = world.late(A), world.late(B)
        world.prepare()
        most = world.writer.suffix_bytes_max
        assert most <= limits.UNCOMMITTED_BYTES_MAX
        taken = most // (20 * KIB)
        for _ in range(taken):
            append(a, bytes(20 * KIB))
        with pytest.raises(errors.Full, match="not committed") as caught:
            append(a, bytes(20 * KIB))
        assert (caught.value.field, caught.value.limit) == ("uncommitted", most)
        assert a.next_index() == taken + 1
        await world.settle()
        assert taken * 20 * KIB <= world.writer.suffixes.size(A) <= most
        with pytest.raises(errors.Full):
            append(a, bytes(20 * KIB))
        append(b, bytes(20 * KIB))
        future = world.writer.rewrite_suffix(A)
        await world.settle()
        await future
        assert len({held.position for held in world.writer.suffixes.held(A)}) == 1
        a.commit(1)
        world.prepare()
        append(a, bytes(20 * KIB))
        await world.settle()
        assert a.commit() == taken + 1
        assert world.writer.suffixes.size(A) == 0

    run(main())


def test_what_a_new_leader_replaces_does_not_count() -> None:
    async def main() -> None:
        world = new_world()
        a = world.late(A)
        for _ in range(6):
            append(a, bytes(20 * KIB))
        await world.settle()
        await a.replace(of_epoch(a, 2, 2, [bytes(20 * KIB)] * 8))
        assert epochs(world, A)[-1] == (9, 2)

    run(main())


def test_a_recycled_suffix_is_a_defect_that_is_noticed() -> None:
    async def main() -> None:
        world = new_world()
        a = world.late(A)
        append(a, b"1")
        await world.settle()
        world.turn_over(2)
        world.log.release_before(world.log.mark().generation)
        with pytest.raises(errors.Fatal, match="recycled"):
            world.writer.replay_mark()

    run(main())


# --- Recovery -------------------------------------------------------------------------------------


def test_a_commit_point_without_its_entry_is_damage() -> None:
    """Passing over it would lose an acknowledged entry without a word."""

    async def main() -> None:
        world = new_world()
        a = world.late(A)
        append(a, b"1")
        append(a, b"2")
        await world.settle()
        mark = world.log.mark()
        a.commit()
        await world.settle()
        world.checkpoint()
        assert world.image is not None
        # A checkpoint that moved the mark although the entries were not in it.
        world.image.mark = mark
        world.image.ledger.folded.clear()
        with pytest.raises(errors.Corrupt, match="entry 2 is committed, but 1 is missing"):
            world.end(power=True)

    run(main())


def test_a_committed_entry_after_a_missing_one_is_not_folded() -> None:
    async def main() -> None:
        a = new_world().late(A)
        folded: list[int] = []

        def fold(entry: Entry, position: LogPosition) -> None:
            folded.append(entry.index)

        recovery = Recovery(
            lambda _: Index(len(folded)), {}, fold, commits_when_synced=lambda _: False
        )
        recovery.read(entry_of(a, b"2", 2), LogPosition(1, 4096, 10))
        commit = Entry(A, Epoch(1), Index(2), HISTORY, [], kind=EntryKind.COMMIT)
        with pytest.raises(errors.Corrupt, match="entry 2 is committed, but 1 is missing"):
            recovery.read(commit, LogPosition(1, 8192, 10))
        assert folded == []

    run(main())


def test_what_was_committed_without_a_note_of_it_is_not_uncommitted_after_a_checkpoint() -> None:
    """C1: the applied index counts, not only the commit points in the log."""

    async def main() -> None:
        world = new_world()
        a, b = world.late(A), world.late(B)
        append(b, b"holds the mark")
        append(a, b"1")
        append(a, b"2")
        await world.settle()
        a.commit(1, is_written=False)
        world.checkpoint()
        world = world.end(power=True)
        assert (world.ledger.bodies(A), bodies(world, A)) == ([b"1"], [b"2"])
        assert bodies(world, B) == [b"holds the mark"]

    run(main())


def test_an_index_is_not_left_out_when_the_log_was_full() -> None:
    """It was: the folder did not open again, since an entry was missing before a committed one."""

    async def main() -> None:
        world = new_world()
        local = world.local()
        append(local, b"1")
        await world.settle()
        world.fill()
        append(local, bytes(world.log.room(reserve=False) + 1))
        await world.settle()
        assert world.dropped == [(LOCAL, 2)]
        append(local, b"2", reserve=True)
        await world.settle()
        world = world.end(power=True)
        assert world.ledger.bodies(LOCAL) == [b"1", b"2"]

    run(main())


def test_a_recovered_suffix_has_memory_of_its_own() -> None:
    async def main() -> None:
        world = new_world()
        a = world.late(A)
        append(a, b"small")
        await world.settle()
        world = world.end(power=False)
        [held] = world.writer.suffixes.held(A)
        payload = next(iter(Replay(world.disk)))[1]
        [original] = decode_entries(payload)
        assert [batch.places for batch in held.entry.batches] == [
            batch.places for batch in original.batches
        ]
        data = held.entry.batches[0].blocks[0].bodies.data
        assert isinstance(data, memoryview)
        assert len(memoryview(data.obj).cast("B")) < KIB

    run(main())


def test_suffixes_have_no_gaps() -> None:
    async def main() -> None:
        world = new_world()
        a = world.late(A)
        entries = {Index(3): (entry_of(a, b"3", 3), LogPosition(1, 4096, 10))}
        with pytest.raises(errors.Fatal, match="entry 3 cannot follow 1"):
            world.writer.suffixes.restore(A, Index(1), entries, EpochStarts(Index(1), Epoch(1)))

    run(main())


def test_an_entry_without_a_group_that_is_looked_after_is_left_alone() -> None:
    async def main() -> None:
        world = new_world()
        local = world.local()
        append(local, b"1")
        await world.settle()
        assert LOCAL not in world.writer.suffixes
        assert world.writer.suffixes.oldest() is None
        void = Entry(LOCAL, Epoch(1), Index(1), HISTORY, [], kind=EntryKind.VOID)
        world.writer.suffixes.synced(void, LogPosition(1, 4096, 10), 10)
        assert world.writer.suffixes.oldest() is None

    run(main())
