"""The store on disk, log-structured: an overlay over the index, rows in the WAL and sealed files.

- Folded batches go to the newest layer of the overlay (the memtable); their rows stay in the log.
- A checkpoint freezes that layer and commits it to the index together with the log mark up to which
  the index is complete: `freeze` (engine's thread), `write` (I/O thread), `thaw` (engine's thread).
- Sealing is the compaction: before a log segment is recycled, its live rows are copied to sealed
  files: `plan_seal` (engine's thread), `run_seal` (I/O thread), `finish_seal` (engine's thread),
  checkpoint, then release. Sparse and dead files are compacted the same way.
- Opening reads only the facts of the node and the list of files: a shard is loaded on first access,
  and so are its rows, keys and marks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import Kind
from millrace.core.changes import Entry
from millrace.core.model import Epoch, GroupId, Index, Row, ShardId
from millrace.core.needs import ExpiredRows, PinnedRows, RowFacts, StageFacts
from millrace.core.state.fold import Reader, ShardMeta
from millrace.errors import Corrupt, Fatal, Retry
from millrace.store.cells import Cells, Table
from millrace.store.checkpoint import GROUP, MARK, Checkpoints, FrozenState
from millrace.store.disk_resync import DiskExport, DiskIntake
from millrace.store.folding import Folding
from millrace.store.index_codec import (
    COPY_PREFIX,
    DROPPED_PREFIX,
    FACT_PREFIX,
    GROUP_PREFIX,
    MARK_KEY,
    NEEDED_KEY,
    NEXT_FILE_KEY,
    extent_low,
    extents_range,
    joined,
    number_of,
    prefixed,
    shard_of,
)
from millrace.store.layered_index import LayeredIndex
from millrace.store.overlay import KINDS
from millrace.store.point_reads import PointReads
from millrace.store.reclaim import Reclaimer
from millrace.store.row_location import decode_location
from millrace.store.row_reader import RowReader
from millrace.store.scan import Scan, Scanner
from millrace.store.seal import Sealer, SealPlan, SealResult
from millrace.store.sealed import FOLDER, SealedFiles, file_name, file_number
from millrace.store.sealed_stats import SealedFileStats
from millrace.store.unreadable import Unreadable, raw_bytes
from millrace.wal.disk import Disk
from millrace.wal.record import LogMark, LogPosition
from millrace.wal.write_ahead_log import WriteAheadLog


class DiskStore:
    """Committed batches, on disk; see `Store`. Created by `open`, ready after `attach`."""

    def __init__(self, disk: Disk, cells: Cells) -> None:
        self._disk = disk
        self._layered = LayeredIndex(cells)
        self._row_reader = RowReader(SealedFiles(disk))
        self._file_stats = SealedFileStats(self._layered)
        self._folding = Folding(self._layered, self._row_reader)
        self._point_reads = PointReads(self._layered, self._row_reader)
        self._scanner = Scanner(self._layered, self._row_reader)
        self._reclaimer = Reclaimer(
            self._layered, self._file_stats, self._folding, self._row_reader, disk.free_bytes
        )
        self._checkpoints = Checkpoints(
            disk, self._layered, self._file_stats, self._reclaimer, self._row_reader.files
        )
        self._sealer = Sealer(
            disk, cells, self._layered.marks, self._row_reader, self._reclaimer.note_damage
        )
        self._is_broken = False
        """True while an entry is folded, and if that failed: then no checkpoint may be written."""

    @classmethod
    def open(cls, disk: Disk, cells: Cells) -> DiskStore:
        """Open the store as of its last checkpoint; nothing is changed before `attach`.

        The caller replays the log from `replay_mark`, keeping the generations from `needed_from`
        on, attaches it, and folds what is committed above `applied`.
        """
        store = cls(disk, cells)
        store._load(cells)
        return store

    def _load(self, cells: Cells) -> None:
        node: list[tuple[bytes, bytes]] = []
        low = b""
        while page := cells.range(Table.NODE, low, b"\xff" * 16, limit=limits.RECLAIM_STEP):
            node += page
            low = page[-1][0] + b"\0"
        facts_by_key = dict(node)
        mark = LogMark(*MARK.unpack(facts_by_key[MARK_KEY])) if MARK_KEY in facts_by_key else None
        for key, value in prefixed(node, GROUP_PREFIX):
            self._layered.groups[GroupId(number_of(key))] = GROUP.unpack(value)
        facts = joined(prefixed(node, FACT_PREFIX))
        self._layered.reclaiming |= {number_of(key) for key, _ in prefixed(node, DROPPED_PREFIX)}
        self._layered.copies |= {
            number_of(key): number_of(value) for key, value in prefixed(node, COPY_PREFIX)
        }
        self._checkpoints.begin(
            mark,
            number_of(facts_by_key.get(NEEDED_KEY, b"")),
            {GroupId(number_of(key)): fact for key, fact in facts.items()},
        )
        self._file_stats.load(cells)
        for number in self._layered.reclaiming:
            self._file_stats.count_dropped(number)
        self._file_stats.doubt()
        self._file_stats.next_number = max(1, number_of(facts_by_key.get(NEXT_FILE_KEY, b"")))

    def check_references(self, generations: Collection[int]) -> None:
        """Check that the log has every generation that the index refers to.

        Raises:
            Corrupt: one is gone. The index is older than the log, and must not be used.
        """
        check_generations(self._layered.cells, generations, self._layered.reclaiming)

    def attach(self, log: WriteAheadLog) -> None:
        """Attach the log, opened as `open` says, and remove unfinished sealed files.

        They are removed only now, and only if every reference of the index resolves: then
        all rows in unknown files are in the log, or in other files, as well.

        Raises:
            Corrupt: something is gone. No file was removed.
        """
        self.check_references({segment.generation for segment in log.segments()})
        self._row_reader.attach(log)
        disk = self._disk
        if not disk.exists(FOLDER):
            disk.make_folder(FOLDER)
            disk.sync_folder("")
        unfinished = [
            number
            for name in disk.names(FOLDER)
            if (number := file_number(name)) is not None and number >= self._file_stats.next_number
        ]
        if unfinished:
            check_files(disk, self._file_stats.numbers())
        for number in unfinished:
            disk.remove(file_name(number))
        if unfinished:
            disk.sync_folder(FOLDER)

    def close(self) -> None:
        """Close the files and the index. Changes since the last checkpoint are in the log."""
        self._row_reader.files.close()
        self._layered.cells.close()

    # --- Recovery state --------------------------------------------------------------------------

    def applied(self, group: GroupId) -> Index:
        return Index(self._layered.groups.get(group, (0, 0))[0])

    def epoch(self, group: GroupId) -> Epoch:
        """Return the epoch of the last folded entry of `group`."""
        return Epoch(self._layered.groups.get(group, (0, 0))[1])

    def replay_mark(self) -> LogMark | None:
        """Return the mark at which replay begins: the last checkpoint has all older records."""
        return self._checkpoints.mark

    def needed_from(self) -> int:
        """Return the oldest log generation that the durable index needs; release older ones."""
        mark = self._checkpoints.mark
        return min(self._checkpoints.needed, mark.generation) if mark is not None else 0

    def facts(self) -> dict[GroupId, bytes]:
        """Return the facts of the journals for this node, as of the last checkpoint (L6)."""
        return dict(self._checkpoints.facts)

    # --- Checkpoints -----------------------------------------------------------------------------

    def freeze(self, mark: LogMark, facts: dict[GroupId, bytes]) -> FrozenState:
        """Begin a checkpoint of all folded entries; on the engine's thread.

        `mark`: every entry that was not folded, committed or not, lies after it.
        """
        if self._is_broken:
            raise Fatal("the store failed to take in an entry; open the folder again")
        return self._checkpoints.freeze(mark, facts)

    def write(self, frozen: FrozenState) -> None:
        """Commit the checkpoint, and remove sealed files without references; on an I/O thread.

        Raises:
            Full: nothing was committed; call `refreeze`, and try again later.
            Fatal: the outcome is unknown.
        """
        self._checkpoints.write(frozen)

    def refreeze(self, frozen: FrozenState) -> None:
        """Have the next `freeze` return the same again, after `Full`; on the engine's thread."""
        self._checkpoints.refreeze(frozen)

    def thaw(self, frozen: FrozenState) -> None:
        """End a checkpoint that was written; on the engine's thread.

        From now on `needed_from` says which log segments may be released.
        """
        self._checkpoints.thaw(frozen)

    # --- Sealing ---------------------------------------------------------------------------------

    def plan_seal(
        self, *, everything: bool = False, unsealed: int | None = 0, is_short: bool = False
    ) -> SealPlan | None:
        """Plan the next sealing pass, or return None; on the engine's thread, one pass at a time.

        It seals the oldest segments if more than `unsealed` full ones are in use; else sparse or
        dead files, and only these if `unsealed` is None. `everything`: ignore `unsealed`, until
        nothing is left to seal. `is_short`: the remaining space is reserved for the index; seal a
        segment only if almost no row in it is live.
        """
        return self._reclaimer.plan(
            self._checkpoints.mark,
            unsealed=-1 if everything else unsealed,
            failed=self._sealer.failed,
            is_short=is_short,
        )

    def is_hollow(self, generation: int) -> bool:
        """Return True if almost no row lies in a log generation, according to the index."""
        return self._reclaimer.is_hollow(generation, self._checkpoints.mark)

    def run_seal(self, plan: SealPlan, pause: Callable[[], None] = lambda: None) -> SealResult:
        """Copy live rows to new files; on an I/O thread. `pause` is called after every sync.

        Raises:
            Full: the disk has no room. The new files are removed; another pass may be planned.
            Corrupt: rows to be copied are damaged. A damaged file is among `damaged_files` from now
                on, and is left out of later plans.
        """
        return self._sealer.run(plan, pause)

    def damaged_files(self) -> dict[int, Corrupt]:
        """Return sealed files that were found damaged since the store was opened, with errors."""
        return self._reclaimer.damaged

    def sealed_bytes(self) -> tuple[int, int]:
        """Return estimates of the live and the dead bytes of all sealed files."""
        return self._file_stats.weights()

    def file_numbers(self) -> list[int]:
        """Return the numbers of the sealed files in use; on the engine's thread."""
        return self._file_stats.numbers()

    def raw_bytes(self, shard: ShardId, first: int) -> Callable[[], bytes | None]:
        """Return a function that reads the raw bytes at the location of a row, on any thread.

        They may be damaged; it returns None if they are gone.
        """
        located = self._layered.row_index.at(self._layered.must(shard).id, first)
        if located is None:
            return _no_bytes
        return partial(raw_bytes, self._disk, self._row_reader.log, located[1])

    def take_unreadable(self) -> list[Unreadable]:
        """Return the rows that were unreadable when they were folded; each is returned once."""
        unreadable, self._folding.unreadable = self._folding.unreadable, []
        return unreadable

    def find_unreadable(self, number: int) -> Callable[[], list[Unreadable]]:
        """Return a function that reads all rows of a sealed file, on any thread.

        It returns the rows that cannot be read, for rows that are in the index by now.
        """
        return partial(
            self._sealer.find_unreadable, self._reclaimer.shards_in((True, number)), number
        )

    def note_damage(self, number: int, error: Corrupt) -> None:
        """Record that a file is damaged, and evict it from all caches."""
        self._reclaimer.note_damage(number, error)
        self._row_reader.forget({(True, number)})
        self._row_reader.files.forget(number)

    def finish_seal(self, result: SealResult) -> None:
        """Apply the new row locations; on the engine's thread. Durable with the next checkpoint."""
        self._reclaimer.finish(result)

    @contextmanager
    def keeping_files(self) -> Iterator[None]:
        """Defer the removal of dead files until the end of the block; on the engine's thread."""
        self._checkpoints.readers += 1
        try:
            yield
        finally:
            self._checkpoints.readers -= 1

    def unwanted_files(self) -> list[int]:
        """Return the sealed files without live rows, by counting all rows; slow, for checks."""
        wanted: set[int] = set()
        layered = self._layered
        for shard in layered.all():
            state = layered.must(shard)
            low, last = 1, state.meta.last_seq
            while low <= last:
                page, low = layered.row_index.page(state.id, low, last, limit=limits.PLACES_STEP)
                for first, location in page:
                    end = first + location.span
                    gone = layered.marks.reclaimable(state, first, end - 1)
                    if location.sealed and gone.range_cardinality(first, end) < location.span:
                        wanted.add(location.home)
            for kind, key, _ in self.cells(ShardId(shard)):
                if kind is Kind.STAGE:
                    staged = layered.row_index.staged(state.id, key.decode())
                    wanted |= {location.home for _, location in staged if location.sealed}
        return sorted({*self._file_stats.numbers()} - wanted)

    # --- Resync ----------------------------------------------------------------------------------

    def export(self, shard: ShardId) -> DiskExport | None:
        """Return the present state of the shard for a resync, or None if it does not exist."""
        state = self._layered.state(shard)
        return DiskExport(self._layered, self._row_reader, state) if state is not None else None

    def intake(self, shard: ShardId, meta: ShardMeta, *, gone: int, shared: int) -> DiskIntake:
        """Begin to receive a copy of a shard; see `resync`.

        Raises:
            Retry: a sealing pass or another copy is in progress.
        """
        if self._reclaimer.is_busy:
            raise Retry("rows are being sealed; try again when that has ended")
        return DiskIntake(
            self._disk,
            self._layered,
            self._file_stats,
            self._row_reader,
            self._reclaimer,
            self._layered.state(shard),
            self._layered.begin_copy(shard),
            meta,
            gone=gone,
            shared=shared,
        )

    def forget(self, shard: ShardId) -> None:
        """Drop a shard that the source of a resync does not have."""
        state = self._layered.state(shard)
        if state is not None:
            self._layered.drop(state)

    def set_applied(self, group: GroupId, index: Index, epoch: Epoch) -> None:
        """Set the applied entry after a resync of all shards of the group."""
        self._layered.groups[group] = (index, epoch)

    # --- Reads -----------------------------------------------------------------------------------

    def shards(self) -> list[ShardId]:
        return [ShardId(shard) for shard in self._layered.all()]

    def meta(self, shard: ShardId) -> ShardMeta | None:
        state = self._layered.state(shard)
        return state.meta if state is not None else None

    def cells(
        self, shard: ShardId, kind: Kind | None = None, prefix: bytes = b""
    ) -> Iterable[tuple[Kind, bytes, bytes]]:
        which = KINDS[kind] + prefix if kind is not None else b""
        cells = self._layered.cells_of(self._layered.must(shard).id, which)
        return [(Kind(key[0]), key[1:], value) for key, value in cells.items()]

    def cell(self, shard: ShardId, kind: Kind, key: bytes) -> bytes | None:
        return self._layered.cell_of(self._layered.must(shard).id, KINDS[kind] + key)

    def points(self, shard: ShardId, names: Sequence[tuple[Kind, bytes]]) -> list[bytes | None]:
        keys = [KINDS[kind] + key for kind, key in names]
        return self._layered.cells_at(self._layered.must(shard).id, keys)

    def cells_from(
        self, shard: ShardId, kind: Kind, low: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        number = self._layered.must(shard).id
        return list(self._layered.cells_from(number, KINDS[kind], low, limit).items())

    def find(self, shard: ShardId, keys: Sequence[bytes]) -> list[int]:
        return self._point_reads.find(shard, keys)

    def hidden(self, shard: ShardId, low: int, high: int) -> BitMap64:
        return self._point_reads.hidden(shard, low, high)

    def ended(self, shard: ShardId, low: int, high: int) -> BitMap64:
        return self._point_reads.ended(shard, low, high)

    def dead(self, shard: ShardId, low: int, high: int) -> BitMap64:
        return self._point_reads.dead(shard, low, high)

    def row(self, shard: ShardId, seq: int) -> RowFacts:
        return self._point_reads.row(shard, seq)

    def stage(self, shard: ShardId, name: str, *, grouped: bool) -> StageFacts:
        return self._point_reads.stage(shard, name, grouped=grouped)

    def seq_at(self, shard: ShardId, time_ms: int) -> int:
        return self._point_reads.seq_at(shard, time_ms)

    def outlived(self, shard: ShardId, after: int, before_ms: int, limit: int) -> ExpiredRows:
        return self._point_reads.outlived(shard, after, before_ms, limit)

    def held(self, shard: ShardId, pin: int) -> list[PinnedRows]:
        return self._layered.marks.held(self._layered.must(shard), pin)

    def rows(self, shard: ShardId, seqs: BitMap64, size: int = sys.maxsize) -> list[Row]:
        return self._point_reads.rows(shard, seqs, size)

    def recent_row(self, shard: ShardId, seq: int) -> list[Row] | None:
        """Return the row if this process has written it and the log still has it, else None."""
        return self._point_reads.recent_row(shard, seq)

    def hot(self, shard: ShardId, seqs: BitMap64) -> bool:
        return self._point_reads.hot(shard, seqs)

    def newest(self, shard: ShardId, seqs: BitMap64) -> bool:
        """Return True if all rows were written since the last checkpoint; they are hot then."""
        return self._point_reads.newest(shard, seqs)

    def warm(self, shard: ShardId, seqs: BitMap64) -> Callable[[], None]:
        return self._point_reads.warm(shard, seqs)

    def ahead(self, shard: ShardId, seqs: BitMap64) -> Callable[[], None] | None:
        """Return a function that reads ahead of these rows, on any thread.

        None if there is nothing to read, or it was returned before.
        """
        return self._point_reads.ahead(shard, seqs)

    def warm_stages(self, shard: ShardId, names: Sequence[str]) -> Callable[[], None] | None:
        """Return a function that reads the cold rows of stages, on any thread, or None."""
        return self._point_reads.warm_stages(shard, names)

    def warm_time(self, shard: ShardId, time_ms: int) -> Callable[[], None] | None:
        """Return a function that reads the cold rows that `seq_at` needs, or None."""
        return self._point_reads.warm_time(shard, time_ms)

    def scan(self, shard: ShardId, after: int, upto: int, reader: Reader) -> Scan:
        return self._point_reads.scan(shard, after, upto, reader)

    def fold(self, entry: Entry, position: LogPosition | None) -> None:
        if self._is_broken:
            raise Fatal("the store failed to take in an entry; open the folder again")
        self._is_broken = True
        self._folding.fold(entry, position)
        self._is_broken = False


def _no_bytes() -> None:
    """Return None: there are no bytes."""


# --- Checks that every log generation and sealed file that the index refers to exists ------------
#
# An index may be older than the log and the sealed files: it was restored alone, or copied while
# an engine ran, or LMDB fell back to the previous commit. As long as the log still has its mark,
# that is harmless, unless rows that it refers to were moved since, and their old home reclaimed:
# then an apparently unfinished file may be the only copy.

_HOMES_END = 1 << 63
"""An upper bound of all generations."""


def check_generations(cells: Cells, there: Collection[int], unwanted: Collection[int]) -> None:
    """Check that the log has every generation with rows according to the index.

    `unwanted`: numbers of shards whose rows are garbage.

    Raises:
        Corrupt: one is gone.
    """
    for home in _generations(cells):
        if home not in there and _has_rows(cells, home, unwanted):
            raise Corrupt(
                f"log generation {home} is gone, but the index says that rows lie in it: the index "
                "is older than the log. Nothing was changed. Restore the whole folder from a "
                "backup or from a replica, not a part of it",
                field="index",
            )


def check_files(disk: Disk, numbers: Iterable[int]) -> None:
    """Check that these sealed files exist, before any other is removed.

    Raises:
        Corrupt: one is gone.
    """
    for number in numbers:
        if not disk.exists(file_name(number)):
            raise Corrupt(
                f"{file_name(number)} is gone, but the index says that rows lie in it, and there "
                "are files that it does not know: it is older than they are. Nothing was removed. "
                "Restore the whole folder from a backup or from a replica, not a part of it",
                field=file_name(number),
            )


def _generations(cells: Cells) -> Iterator[int]:
    """Yield every generation with extents in the index, with one lookup each."""
    low = 0
    end, _ = extents_range(_HOMES_END, sealed=False)
    while True:
        begin, _ = extents_range(low, sealed=False)
        page = cells.range(Table.BLOCKS, begin, end, limit=1)
        if not page:
            return
        home = number_of(page[0][0][9:17])
        yield home
        low = home + 1


def _has_rows(cells: Cells, home: int, unwanted: Collection[int]) -> bool:
    """Return True if rows lie in a generation; its extents may cover moved rows only."""
    low, high = extents_range(home, sealed=False)
    for extent, last in _all(cells, low, high):
        for block, value in _all(cells, extent_low(extent), last + b"\0"):
            location = decode_location(value)
            if not location.sealed and location.home == home and shard_of(block) not in unwanted:
                return True
    return False


def _all(cells: Cells, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
    while True:
        page = cells.range(Table.BLOCKS, low, high, limit=limits.PLACES_STEP)
        yield from page
        if len(page) < limits.PLACES_STEP:
            return
        low = page[-1][0] + b"\0"
