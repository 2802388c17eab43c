"""The rules of storage.md that the disk store keeps, each with the disaster that it prevents.

L9 and N1 are also among the stories of `check_store`, N2 among the properties of a resync.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import Kind
from millrace.core.changes import Batch, Changes, Entry
from millrace.core.format.block import Block
from millrace.core.format.seq_sets import pack_seqs
from millrace.core.model import (
    Death,
    Epoch,
    GroupId,
    History,
    Index,
    Millis,
    NewMessage,
    ShardId,
)
from millrace.core.state.fold import Reader
from millrace.errors import Corrupt, Full
from millrace.store.cells import Table, Writes
from millrace.store.memory_cells import MemoryCells, Room
from millrace.store.resync import resync
from millrace.store.sealed import (
    FOLDER,
    SEALED_SCHEMA,
    file_name,
    read_footer,
)
from millrace.wal.record import LogMark
from tests.support.contracts.compare_stores import compare, rows_of
from tests.support.contracts.store_subject import DiskSubject, MemorySubject, simulated
from tests.support.contracts.story import SHARD, Story
from tests.support.simulator.disk import Effect, SimDisk

HISTORY = History(b"h" * 16)


class Watched(MemoryCells):
    """Cells that record their calls."""

    def __init__(self, cells: MemoryCells | None, events: list[str]) -> None:
        super().__init__(cells.image() if cells is not None else None)
        self.events = events
        self.asked: list[tuple[Table, int]] = []
        self.written: list[int] = []

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        self.asked.append((table, len(keys)))
        return super().get(table, keys)

    def range(
        self, table: Table, low: bytes, high: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        found = super().range(table, low, high, limit=limit, reverse=reverse)
        self.asked.append((table, len(found)))
        return found

    def commit(self, writes: Writes) -> None:
        self.events.append("commit")
        self.written.append(sum(map(len, writes.values())))
        super().commit(writes)


class Scene:
    """A disk store whose disk and cells are watched."""

    def __init__(self, *, keyed: bool = False, budget_bytes: int | None = None) -> None:
        self.events: list[str] = []
        self.disk = SimDisk(random.Random(1), hook=self.note, budget_bytes=budget_bytes)
        self.cells: Watched | None = None
        self.story = Story(self.make, keyed=keyed)

    def make(self) -> DiskSubject:
        self.subject = DiskSubject(self.disk, self.open_cells)
        return self.subject

    def open_cells(self) -> Watched:
        self.cells = Watched(self.cells, self.events)
        return self.cells

    def note(self, effect: Effect) -> None:
        self.events.append(f"{effect.verb} {effect.name}")

    def values(self, table: Table) -> dict[bytes, bytes]:
        assert self.cells is not None
        return dict(self.cells.image()[table])

    def files(self) -> list[str]:
        return self.disk.names(FOLDER)

    def scan(self, reader: Reader | None = None) -> list[int]:
        found = self.subject.store.scan(SHARD, 0, self.story.last, reader or Reader())
        return [row.seq for row in rows_of(found)]


# --- Sealed files --------------------------------------------------------------------------------


def test_f1_files_are_durable_before_the_index_names_them() -> None:
    """Named first and synced later, a file is empty after a power failure, and the log recycled."""
    scene = Scene()
    scene.story.bodies(50, 1_000)
    scene.subject.turn_over()
    scene.subject.checkpoint()
    scene.events.clear()
    assert scene.subject.seal()
    events = [event for event in scene.events if "seg" not in event]
    name = file_name(1)
    last = {event: at for at, event in enumerate(events)}
    assert last[f"write {name}"] < last[f"sync_all {name}"] < last[f"sync_folder {FOLDER}"]
    assert last[f"sync_folder {FOLDER}"] < events.index("commit")
    assert scene.subject.log.segments()[0].generation == scene.subject.store.needed_from()


def test_f1_dead_files_go_after_the_commit() -> None:
    """Unlinked before, a crash in between leaves an index that refers to nothing."""
    scene = Scene()
    scene.story.bodies(50, 1_000)
    scene.subject.seal_all()
    scene.story.die(Death.SETTLED, *range(1, 51))
    scene.subject.checkpoint()
    scene.events.clear()
    while scene.subject.seal():
        pass
    events = [event for event in scene.events if "seg" not in event]
    assert events.index("commit") < events.index(f"remove {file_name(1)}")
    assert scene.files() == []
    scene.subject.checkpoint()
    assert scene.values(Table.FILES) == {}


def test_f1_only_unfinished_files_are_removed_at_start() -> None:
    """Clean-up by inference has deleted data elsewhere: a file is removed if it is listed, only."""
    scene = Scene()
    scene.story.bodies(50, 1_000)
    scene.subject.seal_all()
    for name in ("000000000000.arrow", "notes.txt", "000000000777.arrow", "12.arrow"):
        scene.disk.create(f"{FOLDER}/{name}").close()
    scene.subject.reopen()
    # 777 is a number that no file was given yet: it can only have been left unfinished.
    assert scene.files() == ["000000000000.arrow", "000000000001.arrow", "12.arrow", "notes.txt"]
    scene.story.compare()


def test_f2_rows_die_while_they_are_copied() -> None:
    """Counted at the start of the copy, a file whose rows died since would never be reclaimed."""
    scene = Scene()
    scene.story.bodies(50, 1_000)
    scene.subject.turn_over()
    scene.subject.checkpoint()
    store = scene.subject.store
    plan = store.plan_seal(everything=True)
    assert plan is not None
    result = store.run_seal(plan)
    scene.story.die(Death.SETTLED, *range(1, 46))
    store.finish_seal(result)
    scene.subject.checkpoint()
    scene.story.compare()
    assert scene.scan() == [46, 47, 48, 49, 50]
    assert scene.files() == ["000000000001.arrow"]
    while scene.subject.seal():
        pass
    assert scene.files() == ["000000000002.arrow"]
    assert [line.rows for line in read_footer(scene.disk, 2)] == [5]
    scene.story.compare()


def test_f2_a_record_batch_holds_rows_of_one_shard() -> None:
    """With rows of two shards in one batch, damage of one would refuse the other as well."""
    scene = Scene()
    scene.story.bodies(5)
    other = Block.of_bodies([b"other"] * 3)
    batch = Batch(ShardId(2), Index(1), Millis(1), Changes(made=1, firsts=[1]), [other])
    scene.story.feed(scene.story.entry(batch))
    scene.story.bodies(5)
    scene.subject.seal_all()
    lines = read_footer(scene.disk, 1)
    assert [(line.shard, line.first, line.last, line.rows) for line in lines] == [
        (1, 1, 10, 10),
        (2, 1, 3, 3),
    ]
    data = scene.disk.open(file_name(1)).map()
    with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        assert stream.schema.equals(SEALED_SCHEMA)
        assert [part.num_rows for part in stream] == [10, 3]


def test_f3_sealing_writes_and_syncs_in_steps() -> None:
    """One large write keeps the log's own sync waiting until it has reached the device."""
    scene = Scene()
    body = bytes(200_000)
    for _ in range(60):
        scene.story.publish(NewMessage(body), NewMessage(body))
    scene.subject.turn_over()
    scene.subject.checkpoint()
    store = scene.subject.store
    plan = store.plan_seal(everything=True)
    assert plan is not None
    scene.events.clear()
    pauses: list[int] = []
    store.finish_seal(store.run_seal(plan, lambda: pauses.append(len(scene.events))))
    name = file_name(1)
    size = scene.disk.open(name).size
    steps = [event for event in scene.events if event in (f"write {name}", f"sync {name}")]
    writes = limits.SEAL_SYNC_BYTES // limits.SEAL_WRITE_BYTES
    whole = size // limits.SEAL_SYNC_BYTES
    assert len(pauses) == whole > 2
    one = [f"write {name}"] * writes + [f"sync {name}"]
    assert steps[: len(one) * whole] == one * whole
    rest = size - whole * limits.SEAL_SYNC_BYTES
    assert steps[len(one) * whole :] == [f"write {name}"] * -(-rest // limits.SEAL_WRITE_BYTES)
    scene.subject.checkpoint()
    scene.story.compare()


def test_damage_in_a_sealed_file_is_never_skipped() -> None:
    """A row that reads as another one is worse than a shard that refuses to be read."""
    scene = Scene()
    scene.story.bodies(20, 1_000)
    other = Batch(
        ShardId(2), Index(1), Millis(1), Changes(made=1, firsts=[1]), [Block.of_bodies([b"x"])]
    )
    scene.story.feed(scene.story.entry(other))
    scene.subject.seal_all()
    line = read_footer(scene.disk, 1)[0]
    scene.disk.flip(file_name(1), line.offset + line.length - 100)
    scene.subject.reopen()
    with pytest.raises(Corrupt, match=file_name(1)):
        scene.scan()
    with pytest.raises(Corrupt, match="shard 1"):
        scene.subject.store.rows(SHARD, BitMap64([1]))
    assert rows_of(scene.subject.store.scan(ShardId(2), 0, 1, Reader()))[0].body == b"x"
    scene.disk.flip(file_name(1), scene.disk.open(file_name(1)).size - 40)
    with pytest.raises(Corrupt, match="trailer"):
        read_footer(scene.disk, 1)


def test_a_missing_sealed_file_is_damage() -> None:
    """A file that somebody has removed must not look like rows that are gone."""
    scene = Scene()
    scene.story.bodies(20)
    scene.subject.seal_all()
    scene.disk.remove(file_name(1))
    scene.subject.reopen()
    with pytest.raises(Corrupt, match="missing"):
        scene.scan()
    with pytest.raises(Corrupt, match="missing"):
        scene.subject.store.rows(SHARD, BitMap64([1]))


# --- Checkpoints ---------------------------------------------------------------------------------


def test_c1_replay_skips_what_is_applied() -> None:
    """One position for many commit points folds one group's batch twice, or loses another's."""
    subject = simulated()
    marks: list[LogMark] = []
    for at in range(1, 4):
        for group in (1, 2):
            block = Block.of_bodies([b"%d-%d" % (group, at)] * 10)
            changes = Changes(made=int(at == 1), firsts=[10 * at - 9])
            batch = Batch(ShardId(group), Index(at), Millis(at), changes, [block])
            marks.append(subject.log.mark())
            subject.feed(Entry(GroupId(group), Epoch(7), Index(at), HISTORY, [batch]))
    # A third group has an uncommitted entry early in the log: replay begins before it.
    frozen = subject.store.freeze(marks[1], {GroupId(3): b"term and vote"})
    subject.store.write(frozen)
    subject.store.thaw(frozen)
    subject.reopen()
    store = subject.store
    assert store.replay_mark() == marks[1]
    assert store.facts() == {GroupId(3): b"term and vote"}
    for group in (1, 2):
        meta = store.meta(ShardId(group))
        assert meta is not None
        assert (meta.published, meta.index, meta.last_seq) == (30, 3, 30)
        assert store.applied(GroupId(group)) == 3
        assert store.epoch(GroupId(group)) == 7
        assert len(rows_of(store.scan(ShardId(group), 0, 30, Reader()))) == 30


def test_c2_values_are_small_and_read_in_bulk() -> None:
    """LMDB keeps larger values in runs of pages; single gets next to a busy thread took 11 ms."""
    scene = Scene(keyed=True)
    story = scene.story
    for _ in range(3):
        story.publish(*(NewMessage(b"v", b"k%d" % at) for at in range(1_000)))
        story.batch(cells=[(int(Kind.LEASE), b"x", bytes(50_000))])
        story.batch(died={int(Death.SETTLED): pack_seqs(BitMap64(range(1, story.last, 3)))})
    story.pin(1)
    scene.subject.checkpoint()
    assert scene.cells is not None
    for table in Table:
        assert all(len(value) <= limits.CELL_BYTES_MAX for value in scene.values(table).values())
    scene.cells.asked.clear()
    scene.subject.store.find(SHARD, [b"k%d" % at for at in range(1_000)])
    tables = [table for table, _ in scene.cells.asked]
    assert tables.count(Table.KEYS) == 1
    assert len(tables) <= 3


def test_c3_large_deaths_are_one_number() -> None:
    """A purge of a hundred million rows that is written row by row stops everything else."""
    scene = Scene(keyed=True)
    for _ in range(20):
        scene.story.publish(
            *(NewMessage(b"x", b"k%d" % (scene.story.last + at)) for at in range(500))
        )
    scene.subject.checkpoint()
    assert scene.cells is not None
    scene.story.batch(purged=scene.story.last)
    scene.cells.written.clear()
    scene.subject.checkpoint()
    assert scene.cells.written[0] < 20
    scene.story.compare()


def test_c3_merged_intervals_are_moved_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, one unpin would rewrite the marks of the whole shard in one commit."""
    monkeypatch.setattr(limits, "RECLAIM_STEP", 3)
    scene = Scene()
    story = scene.story
    rows = 12 * limits.CHUNK_ROWS
    story.last = rows
    story.batch([Block.of_bodies([b""] * rows)], firsts=[1])
    story.pin(1)
    died = BitMap64(range(1, rows, 1_000))
    story.die(Death.SETTLED, *died)
    story.pin(2)
    scene.subject.checkpoint()
    story.unpin(1)
    steps = 0
    for _ in range(20):
        scene.subject.checkpoint()
        pins = {key[8:16] for key in scene.values(Table.DEATHS)}
        steps += (1).to_bytes(8, "big") in pins
        store = scene.subject.store
        assert store.hidden(SHARD, 1, rows) == died
        seen = store.scan(SHARD, 0, rows, Reader(2))
        assert sum(batch.num_rows for batch in seen) == rows - len(died)
    assert steps > 2
    assert {key[8:16] for key in scene.values(Table.DEATHS)} == {bytes(8)}
    scene.subject.reopen()
    assert scene.subject.store.hidden(SHARD, 1, rows) == died


def test_c3_a_keys_entry_goes_with_its_row() -> None:
    """Entries of keys that nobody uses any more would fill the index for ever."""
    scene = Scene(keyed=True)
    story = scene.story
    story.publish(*(NewMessage(b"x", b"k%d" % at) for at in range(100)))
    scene.subject.seal_all()
    assert len(scene.values(Table.KEYS)) == 100
    story.die(Death.SETTLED, *range(1, 91))
    died = {int(Death.SUPERSEDED): pack_seqs(BitMap64([91]))}
    story.publish(NewMessage(b"y", b"k90"), died=died)
    scene.subject.seal_all()
    story.compare()
    assert len(scene.values(Table.KEYS)) == 10
    story.batch(purged=story.last)
    scene.subject.seal_all()
    assert scene.values(Table.KEYS) == {}
    assert scene.files() == []


def test_c3_dropped_shards_are_reclaimed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of a hundred million rows must not take as long to delete as it took to fill."""
    monkeypatch.setattr(limits, "RECLAIM_STEP", 7)
    scene = Scene(keyed=True)
    scene.story.publish(*(NewMessage(b"x", b"k%d" % at) for at in range(30)))
    scene.subject.checkpoint()
    scene.story.batch(dropped=True)
    for _ in range(20):
        scene.subject.checkpoint()
        assert scene.subject.store.shards() == []
        assert scene.subject.store.meta(SHARD) is None
    assert scene.values(Table.KEYS) == scene.values(Table.CELLS) == scene.values(Table.META) == {}
    scene.subject.reopen()
    assert scene.subject.store.shards() == []


def test_open_reads_nothing_but_facts() -> None:
    """A backlog of a hundred million must cost no start-up time."""
    scene = Scene(keyed=True)
    for _ in range(5):
        scene.story.publish(*(NewMessage(b"x", b"k%d" % at) for at in range(50)))
        scene.subject.seal_all()
    scene.subject.reopen()
    assert scene.cells is not None
    asked = scene.cells.asked
    assert {table for table, _ in asked} <= {Table.NODE, Table.FILES, Table.BLOCKS}
    # One look for each generation of the log, to see that it is there, and one behind the last.
    looks = [found for table, found in asked if table is Table.BLOCKS]
    assert len(looks) <= len(scene.subject.log.segments()) + 1
    assert max(looks) <= 1


# --- A full disk ---------------------------------------------------------------------------------


def test_l8_sealing_on_a_full_disk_leaves_nothing_behind() -> None:
    """Half a file that stays takes the room that settling needs."""
    scene = Scene(budget_bytes=6_000_000)
    scene.story.bodies(100, 4_000)
    scene.subject.turn_over()
    scene.subject.checkpoint()
    store = scene.subject.store
    plan = store.plan_seal(everything=True)
    assert plan is not None
    scene.disk.budget_bytes = sum(
        scene.disk.open(f"log/{name}").size for name in scene.disk.names("log")
    )
    with pytest.raises(Full):
        store.run_seal(plan)
    assert scene.files() == []
    scene.story.compare()
    scene.disk.budget_bytes = None
    assert scene.subject.seal(), "the next pass finds what the failed one was to do"
    scene.story.compare()


def test_l8_a_checkpoint_that_finds_no_room_is_written_later() -> None:
    """Dropped, its batches would be in no layer and in no index."""
    scene = Scene()
    scene.story.bodies(10)
    store = scene.subject.store
    frozen = store.freeze(scene.subject.log.mark(), {})
    assert scene.cells is not None
    scene.cells.room = Room.NONE
    with pytest.raises(Full):
        store.write(frozen)
    store.refreeze(frozen)
    scene.story.bodies(10)
    scene.story.compare()
    scene.cells.room = Room.AMPLE
    again = store.freeze(scene.subject.log.mark(), {})
    assert again is frozen
    store.write(again)
    store.thaw(again)
    scene.story.compare()
    scene.subject.reopen()
    scene.story.compare()


# --- Readers -------------------------------------------------------------------------------------


def test_l9_a_scan_goes_on_while_its_segments_are_recycled() -> None:
    """Located once and read later, a position in the log would show newer bytes."""
    scene = Scene()
    for _ in range(10):
        scene.story.bodies(50, 1_000)
    expected = scene.scan()
    scan = scene.subject.store.scan(SHARD, 0, scene.story.last, Reader())
    kept = [next(scan)]
    scene.subject.seal_all()
    for _ in range(20):
        scene.story.bodies(100, 4_000)
        scene.subject.turn_over()
        scene.subject.checkpoint()
    kept += list(scan)
    assert [row.seq for row in rows_of(kept)] == expected
    assert [row.body for row in rows_of(kept)][:50] == [b"%05d" % at * 200 for at in range(50)]


def test_l9_batches_outlive_the_store() -> None:
    """A batch that is a view of a map must keep the map, even after the files are closed."""
    scene = Scene()
    scene.story.bodies(50, 1_000)
    in_log = list(scene.subject.store.scan(SHARD, 0, 50, Reader()))
    scene.subject.seal_all()
    in_file = list(scene.subject.store.scan(SHARD, 0, 50, Reader()))
    scene.subject.close()
    assert rows_of(in_log) == rows_of(in_file)


# --- Snapshots and resync ------------------------------------------------------------------------


def both() -> Iterator[Story]:
    yield Story(MemorySubject)
    yield Story(simulated)


def test_n1_a_snapshot_is_the_shard_as_of_an_index() -> None:
    """By seq alone, a pin would show rows that were settled before it."""
    for story in both():
        story.bodies(5)
        story.die(Death.SETTLED, 2)
        story.pin(1)
        story.die(Death.SETTLED, 3)
        seen = story.subject.store.scan(SHARD, 0, 5, Reader(1))
        assert [row.seq for row in rows_of(seen)] == [1, 3, 4, 5]
        story.check()


def test_n2_what_the_source_lacks_is_deleted() -> None:
    """A lease or a pin that was deleted at the source would live on at the target."""
    source, target = Story(simulated), Story(simulated)
    lease = int(Kind.LEASE)
    for story in (source, target):
        story.bodies(10)
        story.batch(cells=[(lease, b"a", b"1"), (lease, b"b", b"2")])
        story.pin(1)
        story.stage("s", NewMessage(b"staged"))
    source.unpin(1)
    source.batch(cells=[(lease, b"a", None)])
    source.batch(unstaged=["s"], cells=[(int(Kind.STAGE), b"s", None)])
    source.die(Death.SETTLED, 1, 2, 3)
    assert isinstance(target.subject, DiskSubject)
    resync(source.subject.store, target.subject.store, SHARD)  # type: ignore[arg-type]
    target.subject.store.set_applied(GroupId(1), Index(source.entries), Epoch(1))
    for how in range(16):
        compare(target.subject.store, source.model)
        target.subject.disturb(how)


def test_n2_a_resync_that_breaks_off_changes_nothing() -> None:
    """Half of another's state is nobody's state."""
    source, target = Story(simulated), Story(simulated)
    for story in (source, target):
        story.bodies(10)
    source.bodies(1_000)
    subject = target.subject
    assert isinstance(subject, DiskSubject)
    calls: list[None] = []

    def rest() -> None:
        subject.checkpoint()
        calls.append(None)
        if len(calls) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        resync(source.subject.store, subject.store, SHARD, rest)  # type: ignore[arg-type]
    target.compare()
    subject.reopen()
    target.compare()
    for _ in range(3):
        subject.checkpoint()
    target.check()
