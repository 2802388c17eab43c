"""A read-only store over a folder, for `dump`, `check` and backups; nothing here ever writes.

Rule 1: the index is read in one transaction, so that it is consistent, whatever an engine that owns
the folder commits in the meantime.
Rule 2: a running engine is not blocked. Its log does not know of readers in other processes: they
may find a segment overwritten that was recycled. They read again, or report it.
Rule 3: reads use the engine's own code, over layers that were folded here: the result is what an
engine would serve.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NoReturn

import lmdb
from lmdb import verify as audit

from millrace import errors, limits
from millrace.core.cells import Kind
from millrace.core.changes import Entry
from millrace.core.model import GroupId, Index
from millrace.store.cells import Cells, Table, Writes
from millrace.store.checkpoint import GROUP, MARK
from millrace.store.folding import Folding
from millrace.store.index_codec import (
    COPY_PREFIX,
    DROPPED_PREFIX,
    FACT_PREFIX,
    GROUP_PREFIX,
    MARK_KEY,
    NEEDED_KEY,
    NEXT_FILE_KEY,
    FileFacts,
    decode_file,
    joined,
    number_of,
    prefixed,
)
from millrace.store.layered_index import LayeredIndex
from millrace.store.lmdb_reader import LMDB_VERSION, LmdbReader
from millrace.store.point_reads import PointReads
from millrace.store.row_reader import RowReader
from millrace.store.sealed import SealedFiles
from millrace.wal.disk import Disk
from millrace.wal.record import LogMark, LogPosition
from millrace.wal.record_writer import RecordWriter
from millrace.wal.replay import Replay
from millrace.wal.segment import LogShape
from millrace.wal.segment_pool import SegmentPool
from millrace.wal.write_ahead_log import WriteAheadLog

_KEYS_END = b"\xff" * (limits.CELL_KEY_BYTES_MAX + 1)
"""Above every key."""

_verify: Callable[[str], list[str]] = audit.verify


def check_pages(folder: Path) -> list[str]:
    """Verify the structure of LMDB's pages without LMDB itself; return the findings.

    The file must be at rest: during commits of an engine, the result means nothing.
    """
    try:
        return _verify(os.fspath(folder))
    except (audit.VerifyError, OSError) as error:
        return [str(error)]


class ReadOnlyCells(LmdbReader):
    """A snapshot of the cells of a folder, for as long as it is open.

    While an engine has the folder open (`is_in_use`), a slot in LMDB's reader table is written;
    otherwise nothing at all. LMDB trusts its pages: damaged ones may crash the process.
    """

    def __init__(self, folder: Path, *, is_in_use: bool) -> None:
        super().__init__(folder)
        try:
            self._env = lmdb.open(
                os.fspath(folder),
                readonly=True,
                create=False,
                lock=is_in_use,
                max_dbs=len(Table) + 1,
                lib_version=LMDB_VERSION,
            )
        except (lmdb.Error, OSError) as error:
            self._fail(error)
        try:
            self._snapshot = self._env.begin()
            self.open_tables(self._snapshot, create=False)
        except (lmdb.Error, OSError) as error:
            self._env.close()
            self._fail(error)

    @property
    def short_of_space(self) -> bool:
        return False

    def _transaction(self, table: Table) -> AbstractContextManager[lmdb.Transaction[bytes]]:
        return nullcontext(self._snapshot)

    def commit(self, writes: Writes) -> NoReturn:
        raise errors.Refused("the cells were opened to be looked at, not to be changed")

    def maintain(self) -> None:
        self._must_live()

    def check(self) -> list[str]:
        """Verify the checksums of all values and tables; return the findings.

        `check_pages` verifies the pages themselves, before anything is opened.
        """
        findings: list[str] = []
        try:
            for finding in self._walk(self._snapshot):
                findings.append(finding)
                if len(findings) >= limits.CELLS_FINDINGS_MAX:
                    break
        except (lmdb.Error, errors.Corrupt) as error:
            findings.append(str(error))
        return findings

    def counts(self) -> dict[Table, int]:
        """Return the number of values of each table."""
        self._must_live()
        return {
            table: self._snapshot.stat(database)["entries"]
            for table, database in self._tables.items()
        }

    def _end(self) -> None:
        self._snapshot.abort()


def all_cells(
    cells: Cells, table: Table, low: bytes = b"", high: bytes = _KEYS_END
) -> Iterator[tuple[bytes, bytes]]:
    """Yield every cell with low <= key < high, read in steps."""
    while True:
        page = cells.range(table, low, high, limit=limits.RECLAIM_STEP)
        yield from page
        if len(page) < limits.RECLAIM_STEP:
            return
        low = page[-1][0] + b"\0"


class ReadOnlyStore:
    """The state of a folder at one time: the index, and the entries folded over it.

    Usage: create it, replay the log from `mark`, `attach` the replay when it was read to its end,
    and `fold` the committed entries.
    """

    def __init__(self, disk: Disk, cells: Cells) -> None:
        node = list(all_cells(cells, Table.NODE))
        facts_by_key = dict(node)
        self.cells = cells
        self.disk = disk
        self.mark = (
            LogMark(*MARK.unpack(facts_by_key[MARK_KEY])) if MARK_KEY in facts_by_key else None
        )
        """The mark at which replay begins; None: the first record."""
        needed = number_of(facts_by_key.get(NEEDED_KEY, b""))
        self.needed = min(needed, self.mark.generation) if self.mark is not None else 0
        """The oldest generation of the log that is needed."""
        self.next_file = max(1, number_of(facts_by_key.get(NEXT_FILE_KEY, b"")))
        """Sealed files of this and higher numbers are unfinished, and ignored."""
        self.facts = {
            GroupId(number_of(key)): fact
            for key, fact in joined(prefixed(node, FACT_PREFIX)).items()
        }
        self.layered = LayeredIndex(cells)
        for key, value in prefixed(node, GROUP_PREFIX):
            self.layered.groups[GroupId(number_of(key))] = GROUP.unpack(value)
        self.layered.reclaiming |= {number_of(key) for key, _ in prefixed(node, DROPPED_PREFIX)}
        self.layered.copies |= {
            number_of(key): number_of(value) for key, value in prefixed(node, COPY_PREFIX)
        }
        self.row_reader = RowReader(SealedFiles(disk))
        self.point_reads = PointReads(self.layered, self.row_reader)
        self._folding = Folding(self.layered, self.row_reader)

    def attach(self, replay: Replay) -> None:
        """Read rows from the log of the replay, which must stay open as long as the store."""
        shape = LogShape()
        survey = replay.survey
        pool = SegmentPool(replay.disk, replay.folder, shape, live=survey.used, free=(), number=0)
        # This writer never begins a generation; it only holds the mark at the end of the log.
        writer = RecordWriter(
            pool,
            shape,
            log_id=survey.log_id or b"",
            mark=replay.end,
            generation=survey.generation,
            chance=os.urandom,
            clock=time.perf_counter,
        )
        self.row_reader.attach(WriteAheadLog(writer, pool, shape))

    def applied(self, group: GroupId) -> Index:
        """Return the index of the last folded entry of `group`."""
        return Index(self.layered.groups.get(group, (0, 0))[0])

    def fold(self, entry: Entry, position: LogPosition) -> None:
        """Fold a committed entry, in memory only."""
        self._folding.fold(entry, position)

    def files(self) -> dict[int, FileFacts]:
        """Return every sealed file that the index knows, by number."""
        return {
            number_of(key): decode_file(value) for key, value in all_cells(self.cells, Table.FILES)
        }

    def cells_of(self, shard: int, kind: Kind | None = None) -> dict[bytes, bytes]:
        """Return the cells of a shard by kind and key, in order; empty for a missing shard."""
        state = self.layered.state(shard)
        if state is None:
            return {}
        return self.layered.cells_of(state.id, b"" if kind is None else bytes([kind]))

    def close(self) -> None:
        self.row_reader.files.close()
        self.cells.close()
