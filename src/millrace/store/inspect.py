"""The store of a folder for those who only look: nothing here ever writes.

Rule 1: the index is read in one transaction, so that everything in it belongs together, whatever an
engine that owns the folder commits meanwhile.
Rule 2: an engine is not held up. Its log does not know of readers in other processes: what it
recycles while they look, they find overwritten. They look again, or say so.
Rule 3: the answers come from the engine's own code, over layers that were folded here: what is
shown is what an engine would serve.
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
from millrace.core.changes import Entry
from millrace.core.model import GroupId, Index, Kind
from millrace.store.cells import Cells, Table, Writes
from millrace.store.checkpoint import GROUP, MARK
from millrace.store.folding import Folding
from millrace.store.layered import Layered
from millrace.store.lmdb_reading import LMDB_VERSION, LmdbReading
from millrace.store.point_reads import Asking
from millrace.store.reading import Reading
from millrace.store.sealed import SealedFiles
from millrace.store.tables import (
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
from millrace.wal.files import Disk
from millrace.wal.record import Mark, Position
from millrace.wal.replay import Replay
from millrace.wal.segment import LogShape
from millrace.wal.segment_pool import Pool
from millrace.wal.write_ahead_log import Log
from millrace.wal.writer import Writer

_KEYS_END = b"\xff" * (limits.CELL_KEY_BYTES_MAX + 1)
"""Above every key."""

_verify: Callable[[str], list[str]] = audit.verify


def check_pages(folder: Path) -> list[str]:
    """Find what is wrong with LMDB's own pages, without handing them to LMDB.

    It is a statement about a file at rest: beside an engine that commits, it means nothing.
    """
    try:
        return _verify(os.fspath(folder))
    except (audit.VerifyError, OSError) as error:
        return [str(error)]


class ReadOnlyCells(LmdbReading):
    """The cells of a folder as of now, and for as long as they are open.

    Beside an engine (`is_in_use`) a slot among LMDB's readers is taken, which is the only thing
    that is ever written; without one, not even that. LMDB trusts its pages: on damaged ones it may
    end the process.
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

    def care(self) -> None:
        self._must_live()

    def check(self) -> list[str]:
        """Compare every value with its stamp, and every table with its sum.

        The pages themselves are judged by `check_pages`, before anything is opened.
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
        """How many values each table has."""
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
    """Every cell with low <= key < high, read in steps."""
    while True:
        found = cells.range(table, low, high, limit=limits.RECLAIM_STEP)
        yield from found
        if len(found) < limits.RECLAIM_STEP:
            return
        low = found[-1][0] + b"\0"


class Inspection:
    """The state of a folder: the index, and what was folded over it; made for one look.

    Order: make it, replay the log from `mark`, `attach` the replay when it was read to its end,
    and `fold` what is committed.
    """

    def __init__(self, disk: Disk, cells: Cells) -> None:
        node = list(all_cells(cells, Table.NODE))
        known = dict(node)
        self.cells = cells
        self.disk = disk
        self.mark = Mark(*MARK.unpack(known[MARK_KEY])) if MARK_KEY in known else None
        """Where replay begins; None: at the first record."""
        needed = number_of(known.get(NEEDED_KEY, b""))
        self.needed = min(needed, self.mark.generation) if self.mark is not None else 0
        """The oldest generation of the log in which something is needed."""
        self.next_file = max(1, number_of(known.get(NEXT_FILE_KEY, b"")))
        """Sealed files of this and higher numbers were being made, and count for nothing."""
        self.facts = {
            GroupId(number_of(key)): fact
            for key, fact in joined(prefixed(node, FACT_PREFIX)).items()
        }
        self.layered = Layered(cells)
        for key, value in prefixed(node, GROUP_PREFIX):
            self.layered.groups[GroupId(number_of(key))] = GROUP.unpack(value)
        self.layered.reclaiming |= {number_of(key) for key, _ in prefixed(node, DROPPED_PREFIX)}
        self.layered.copies |= {
            number_of(key): number_of(value) for key, value in prefixed(node, COPY_PREFIX)
        }
        self.reading = Reading(SealedFiles(disk))
        self.asking = Asking(self.layered, self.reading)
        self._folding = Folding(self.layered, self.reading)

    def attach(self, replay: Replay) -> None:
        """Read rows from the log that was replayed; its files stay open as long as it does."""
        shape = LogShape()
        survey = replay.survey
        pool = Pool(replay.disk, replay.folder, shape, live=survey.used, free=(), number=0)
        # A writer that is never told to begin: it knows where the log ends, and no more.
        writer = Writer(
            pool,
            shape,
            log_id=survey.log_id or b"",
            mark=replay.end,
            generation=survey.generation,
            chance=os.urandom,
            clock=time.perf_counter,
        )
        self.reading.attach(Log(writer, pool, shape))

    def applied(self, group: GroupId) -> Index:
        """The index of the last entry of `group` that was folded."""
        return Index(self.layered.groups.get(group, (0, 0))[0])

    def fold(self, entry: Entry, position: Position) -> None:
        """Take in a committed entry, in memory alone."""
        self._folding.fold(entry, position)

    def files(self) -> dict[int, FileFacts]:
        """Every sealed file that the index knows, by number."""
        return {
            number_of(key): decode_file(value) for key, value in all_cells(self.cells, Table.FILES)
        }

    def cells_of(self, shard: int, kind: Kind | None = None) -> dict[bytes, bytes]:
        """Kind and key → value of a shard's cells, in order; none if there is no such shard."""
        state = self.layered.state(shard)
        if state is None:
            return {}
        return self.layered.cells_of(state.id, b"" if kind is None else bytes([kind]))

    def close(self) -> None:
        self.reading.files.close()
        self.cells.close()
