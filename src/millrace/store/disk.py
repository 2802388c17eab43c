"""The store on disk: an overlay in memory over the index, rows in the log and in sealed files.

- What is folded goes to the newest layer of the overlay, whose rows stay where the log has them.
- A checkpoint freezes that layer and commits it to the index with the place in the log up to which
  everything is in it: `freeze` (engine's thread), `write` (a lane), `thaw` (engine's thread).
- Before a log segment is recycled, the rows in it that are still wanted are copied to sealed files:
  `plan_seal` (engine's thread), `run_seal` (a lane), `finish_seal` (engine's thread), checkpoint,
  then release. Sparse and dead files go the same way.
- At start nothing is read but the node's own facts and the list of files: a shard is loaded when it
  is asked for, and its rows, keys and marks when they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from pyroaring import BitMap64

from millrace import limits
from millrace.core.changes import Entry
from millrace.core.commands import Held, Outlived, RowFacts, StageFacts
from millrace.core.fold import Reader, ShardMeta
from millrace.core.model import Epoch, GroupId, Index, Kind, Row, ShardId
from millrace.errors import Corrupt, Fatal, Retry
from millrace.store.cells import Cells, Table
from millrace.store.checkpoint import GROUP, MARK, Frozen
from millrace.store.durable_state import Keeping
from millrace.store.export import DiskExport
from millrace.store.folding import Folding
from millrace.store.intake import DiskIntake
from millrace.store.layered import Layered
from millrace.store.overlay import KINDS
from millrace.store.point_reads import Asking
from millrace.store.reading import Reading
from millrace.store.reclaim import Emptying
from millrace.store.reference_check import check_files, check_generations
from millrace.store.scanning import Scan, Scanning
from millrace.store.seal import Sealing
from millrace.store.sealed import FOLDER, SealedFiles, file_name, file_number
from millrace.store.sealed_stats import Book
from millrace.store.sealplan import SealPlan, SealResult
from millrace.store.tables import (
    COPY_PREFIX,
    DROPPED_PREFIX,
    FACT_PREFIX,
    GROUP_PREFIX,
    MARK_KEY,
    NEEDED_KEY,
    NEXT_FILE_KEY,
    joined,
    number_of,
    prefixed,
)
from millrace.store.unreadable import Unreadable, raw_bytes
from millrace.wal.files import Disk
from millrace.wal.record import Mark, Position
from millrace.wal.write_ahead_log import Log


class DiskStore:
    """Committed batches, on disk; see `Store`. Made by `open`, ready after `attach`."""

    def __init__(self, disk: Disk, cells: Cells) -> None:
        self._disk = disk
        self._layered = Layered(cells)
        self._reading = Reading(SealedFiles(disk))
        self._book = Book(self._layered)
        self._folding = Folding(self._layered, self._reading)
        self._asking = Asking(self._layered, self._reading)
        self._scanning = Scanning(self._layered, self._reading)
        self._emptying = Emptying(
            self._layered, self._book, self._folding, self._reading, disk.free_bytes
        )
        self._keeping = Keeping(
            disk, self._layered, self._book, self._emptying, self._reading.files
        )
        self._sealing = Sealing(
            disk, cells, self._layered.marks, self._reading, self._emptying.note_damage
        )
        self._is_broken = False
        """An entry was folded in part: no checkpoint may say that it is in the index."""

    @classmethod
    def open(cls, disk: Disk, cells: Cells) -> DiskStore:
        """The store as of its last checkpoint; nothing is changed before `attach`.

        The caller replays the log from `replay_mark`, keeping the generations from `needed_from`
        on, attaches it, and folds what is committed above `applied`.
        """
        store = cls(disk, cells)
        store._load(cells)
        return store

    def _load(self, cells: Cells) -> None:
        node: list[tuple[bytes, bytes]] = []
        low = b""
        while some := cells.range(Table.NODE, low, b"\xff" * 16, limit=limits.RECLAIM_STEP):
            node += some
            low = some[-1][0] + b"\0"
        known = dict(node)
        mark = Mark(*MARK.unpack(known[MARK_KEY])) if MARK_KEY in known else None
        for key, value in prefixed(node, GROUP_PREFIX):
            self._layered.groups[GroupId(number_of(key))] = GROUP.unpack(value)
        facts = joined(prefixed(node, FACT_PREFIX))
        self._layered.reclaiming |= {number_of(key) for key, _ in prefixed(node, DROPPED_PREFIX)}
        self._layered.copies |= {
            number_of(key): number_of(value) for key, value in prefixed(node, COPY_PREFIX)
        }
        self._keeping.begin(
            mark,
            number_of(known.get(NEEDED_KEY, b"")),
            {GroupId(number_of(key)): fact for key, fact in facts.items()},
        )
        self._book.load(cells)
        for number in self._layered.reclaiming:
            self._book.count_dropped(number)
        self._book.doubt()
        self._book.next_number = max(1, number_of(known.get(NEXT_FILE_KEY, b"")))

    def check_homes(self, generations: Collection[int]) -> None:
        """Make sure that the log has every generation in which the index says that rows lie.

        Raises:
            Corrupt: one is gone. The index is older than the log, and must not be used.
        """
        check_generations(self._layered.cells, generations, self._layered.reclaiming)

    def attach(self, log: Log) -> None:
        """Read rows from this log, which was opened as `open` says; remove files left unfinished.

        Only now, and only if everything is there that the index refers to: then files that it does
        not know hold nothing that is not in the log, or in other files, as well.

        Raises:
            Corrupt: something is gone. No file was removed.
        """
        self.check_homes({segment.generation for segment in log.segments()})
        self._reading.attach(log)
        disk = self._disk
        if not disk.exists(FOLDER):
            disk.make_folder(FOLDER)
            disk.sync_folder("")
        unfinished = [
            number
            for name in disk.names(FOLDER)
            if (number := file_number(name)) is not None and number >= self._book.next_number
        ]
        if unfinished:
            check_files(disk, self._book.numbers())
        for number in unfinished:
            disk.remove(file_name(number))
        if unfinished:
            disk.sync_folder(FOLDER)

    def close(self) -> None:
        """Let go of the files and the index. What was not checkpointed is in the log."""
        self._reading.files.close()
        self._layered.cells.close()

    # --- What was committed ----------------------------------------------------------------------

    def applied(self, group: GroupId) -> Index:
        return Index(self._layered.groups.get(group, (0, 0))[0])

    def epoch(self, group: GroupId) -> Epoch:
        """The epoch of the last entry of `group` that was folded."""
        return Epoch(self._layered.groups.get(group, (0, 0))[1])

    def replay_mark(self) -> Mark | None:
        """Where to replay the log from: everything before it is in the last checkpoint."""
        return self._keeping.mark

    def needed_from(self) -> int:
        """The oldest log generation that the durable index needs; older ones may be released."""
        mark = self._keeping.mark
        return min(self._keeping.needed, mark.generation) if mark is not None else 0

    def facts(self) -> dict[GroupId, bytes]:
        """What the journals wrote down for this node alone, as of the last checkpoint (L6)."""
        return dict(self._keeping.facts)

    # --- Checkpoints -----------------------------------------------------------------------------

    def freeze(self, mark: Mark, facts: dict[GroupId, bytes]) -> Frozen:
        """Begin a checkpoint of everything folded so far; on the engine's thread.

        `mark`: every entry that was not folded, committed or not, lies after it.
        """
        if self._is_broken:
            raise Fatal("the store failed to take in an entry; open the folder again")
        return self._keeping.freeze(mark, facts)

    def write(self, frozen: Frozen) -> None:
        """Commit it; on a lane. Files that nothing refers to any more are removed.

        Raises:
            Full: nothing was committed; call `refreeze`, and try again later.
            Fatal: the outcome is unknown.
        """
        self._keeping.write(frozen)

    def refreeze(self, frozen: Frozen) -> None:
        """It found no room: the next `freeze` gives the same again. On the engine's thread."""
        self._keeping.refreeze(frozen)

    def thaw(self, frozen: Frozen) -> None:
        """End a checkpoint that was written; on the engine's thread.

        From now on `needed_from` says which log segments may be released.
        """
        self._keeping.thaw(frozen)

    # --- Sealing ---------------------------------------------------------------------------------

    def plan_seal(
        self, *, everything: bool = False, unsealed: int | None = 0, is_short: bool = False
    ) -> SealPlan | None:
        """What to copy next, or None; on the engine's thread, one pass at a time.

        The oldest segments, if more than `unsealed` full ones are in use; else files that are
        sparse or dead, and these alone where it is None. `everything`: whatever `unsealed` says,
        until nothing is left to seal. `is_short`: the room that is left is the index's; segments
        are emptied if next to nothing in them is wanted.
        """
        return self._emptying.plan(
            self._keeping.mark,
            unsealed=-1 if everything else unsealed,
            failed=self._sealing.failed,
            is_short=is_short,
        )

    def is_hollow(self, generation: int) -> bool:
        """Whether next to nothing lies in a log generation, as far as the index knows."""
        return self._emptying.is_hollow(generation, self._keeping.mark)

    def run_seal(self, plan: SealPlan, pause: Callable[[], None] = lambda: None) -> SealResult:
        """Copy what is wanted to new files; on a lane. `pause` is called after every sync.

        Raises:
            Full: the disk has no room. What was written is removed; another pass may be planned.
            Corrupt: rows that should be copied are damaged. A file of that kind is among
                `damaged_files` from now on, and is left out of later plans.
        """
        return self._sealing.run(plan, pause)

    def damaged_files(self) -> dict[int, Corrupt]:
        """Sealed files that were found damaged since the store was opened, and what was found."""
        return self._emptying.damaged

    def sealed_bytes(self) -> tuple[int, int]:
        """About how many bytes of sealed files are wanted, and how many are not."""
        return self._book.weights()

    def file_numbers(self) -> list[int]:
        """The sealed files that rows may lie in; on the engine's thread."""
        return self._book.numbers()

    def raw_bytes(self, shard: ShardId, first: int) -> Callable[[], bytes | None]:
        """The call that reads the bytes at the place of a row, damaged or not; on any thread.

        It returns None where the bytes are gone.
        """
        found = self._layered.blocks.at(self._layered.must(shard).id, first)
        if found is None:
            return _no_bytes
        return partial(raw_bytes, self._disk, self._reading.log, found[1])

    def take_unreadable(self) -> list[Unreadable]:
        """Rows that were unreadable already when they were folded; each is given once."""
        found, self._folding.unreadable = self._folding.unreadable, []
        return found

    def look_through(self, number: int) -> Callable[[], list[Unreadable]]:
        """The call that reads all rows in a sealed file, on any thread, and says which it cannot.

        Found for rows that are in the index by now; where others lie is found on the engine's.
        """
        return partial(self._sealing.look_through, self._emptying.shards_in((True, number)), number)

    def note_damage(self, number: int, error: Corrupt) -> None:
        """A file was found damaged: what was read of it before is not believed any more."""
        self._emptying.note_damage(number, error)
        self._reading.forget({(True, number)})
        self._reading.files.forget(number)

    def finish_seal(self, result: SealResult) -> None:
        """Say where the rows lie now; on the engine's thread. Durable with the next checkpoint."""
        self._emptying.finish(result)

    @contextmanager
    def keeping_files(self) -> Iterator[None]:
        """Remove no file until the end; on the engine's thread. Those that are dead go later."""
        self._keeping.readers += 1
        try:
            yield
        finally:
            self._keeping.readers -= 1

    def unwanted_files(self) -> list[int]:
        """Sealed files of which nobody wants a row, by counting all; for checks, it takes long."""
        wanted: set[int] = set()
        layered = self._layered
        for shard in layered.all():
            state = layered.must(shard)
            low, last = 1, state.meta.last_seq
            while low <= last:
                page, low = layered.blocks.page(state.id, low, last, limit=limits.PLACES_STEP)
                for first, place in page:
                    end = first + place.span
                    gone = layered.marks.reclaimable(state, first, end - 1)
                    if place.sealed and gone.range_cardinality(first, end) < place.span:
                        wanted.add(place.home)
            for kind, key, _ in self.cells(ShardId(shard)):
                if kind is Kind.STAGE:
                    staged = layered.blocks.staged(state.id, key.decode())
                    wanted |= {place.home for _, place in staged if place.sealed}
        return sorted({*self._book.numbers()} - wanted)

    # --- Resync ----------------------------------------------------------------------------------

    def export(self, shard: ShardId) -> DiskExport | None:
        """The shard as of now, to be sent; see `resync`."""
        state = self._layered.state(shard)
        return DiskExport(self._layered, self._reading, state) if state is not None else None

    def intake(self, shard: ShardId, meta: ShardMeta, *, gone: int, shared: int) -> DiskIntake:
        """Begin a copy of a shard that is sent; see `resync`.

        Raises:
            Retry: rows are being moved, or another copy is being made.
        """
        if self._emptying.is_busy:
            raise Retry("rows are being sealed; try again when that has ended")
        return DiskIntake(
            self._disk,
            self._layered,
            self._book,
            self._reading,
            self._emptying,
            self._layered.state(shard),
            self._layered.begin_copy(shard),
            meta,
            gone=gone,
            shared=shared,
        )

    def forget(self, shard: ShardId) -> None:
        """End a shard that the source of a resync does not have."""
        state = self._layered.state(shard)
        if state is not None:
            self._layered.drop(state)

    def set_applied(self, group: GroupId, index: Index, epoch: Epoch) -> None:
        """All shards of the group were brought to this entry by a resync."""
        self._layered.groups[group] = (index, epoch)

    # --- Questions -------------------------------------------------------------------------------

    def shards(self) -> list[ShardId]:
        return [ShardId(shard) for shard in self._layered.all()]

    def meta(self, shard: ShardId) -> ShardMeta | None:
        state = self._layered.state(shard)
        return state.meta if state is not None else None

    def cells(
        self, shard: ShardId, kind: Kind | None = None, prefix: bytes = b""
    ) -> Iterable[tuple[Kind, bytes, bytes]]:
        which = KINDS[kind] + prefix if kind is not None else b""
        found = self._layered.cells_of(self._layered.must(shard).id, which)
        return [(Kind(key[0]), key[1:], value) for key, value in found.items()]

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
        return self._asking.find(shard, keys)

    def hidden(self, shard: ShardId, low: int, high: int) -> BitMap64:
        return self._asking.hidden(shard, low, high)

    def ended(self, shard: ShardId, low: int, high: int) -> BitMap64:
        return self._asking.ended(shard, low, high)

    def dead(self, shard: ShardId, low: int, high: int) -> BitMap64:
        return self._asking.dead(shard, low, high)

    def row(self, shard: ShardId, seq: int) -> RowFacts:
        return self._asking.row(shard, seq)

    def stage(self, shard: ShardId, name: str, *, grouped: bool) -> StageFacts:
        return self._asking.stage(shard, name, grouped=grouped)

    def seq_at(self, shard: ShardId, time_ms: int) -> int:
        return self._asking.seq_at(shard, time_ms)

    def outlived(self, shard: ShardId, after: int, before_ms: int, limit: int) -> Outlived:
        return self._asking.outlived(shard, after, before_ms, limit)

    def held(self, shard: ShardId, pin: int) -> list[Held]:
        return self._layered.marks.held(self._layered.must(shard), pin)

    def rows(self, shard: ShardId, seqs: BitMap64, size: int = sys.maxsize) -> list[Row]:
        return self._asking.rows(shard, seqs, size)

    def row_at_hand(self, shard: ShardId, seq: int) -> list[Row] | None:
        """As `rows`, if this process has written the row and it lies in the log still."""
        return self._asking.row_at_hand(shard, seq)

    def hot(self, shard: ShardId, seqs: BitMap64) -> bool:
        return self._asking.hot(shard, seqs)

    def newest(self, shard: ShardId, seqs: BitMap64) -> bool:
        """Whether all of them were written since the last checkpoint; they are hot then."""
        return self._asking.newest(shard, seqs)

    def warm(self, shard: ShardId, seqs: BitMap64) -> Callable[[], None]:
        return self._asking.warm(shard, seqs)

    def ahead(self, shard: ShardId, seqs: BitMap64) -> Callable[[], None] | None:
        """The call that reads what is likely to be asked for after these rows, on any thread.

        None if there is nothing to be read, or it was given before.
        """
        return self._asking.ahead(shard, seqs)

    def warm_stages(self, shard: ShardId, names: Sequence[str]) -> Callable[[], None] | None:
        """The call that reads the cold rows of stages, on any thread; None if there are none."""
        return self._asking.warm_stages(shard, names)

    def warm_time(self, shard: ShardId, time_ms: int) -> Callable[[], None] | None:
        """The call that reads the cold rows that `seq_at` looks at; None if there are none."""
        return self._asking.warm_time(shard, time_ms)

    def scan(self, shard: ShardId, after: int, upto: int, reader: Reader) -> Scan:
        return self._asking.scan(shard, after, upto, reader)

    def fold(self, entry: Entry, position: Position | None) -> None:
        if self._is_broken:
            raise Fatal("the store failed to take in an entry; open the folder again")
        self._is_broken = True
        self._folding.fold(entry, position)
        self._is_broken = False


def _no_bytes() -> None:
    """Nothing lies there."""
