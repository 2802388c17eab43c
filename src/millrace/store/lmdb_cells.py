"""Cells in LMDB.

Rule 1: a commit is atomic, and durable when it returns. There is one writer at a time.
Rule 2: every table has a sum, written by the same commit as its values, which `check` compares with
a walk over everything. Reading is in `lmdb_reading`.
Rule 3: read transactions are short, and work goes in steps of half a millisecond, at a pace that
the event loop can stand.
Rule 4: a full disk is not a failure. The ballast is given up, the commit is tried once more, and
`short_of_space` asks the caller to refuse whatever would take more. A failed sync is one, and is
never tried again.

The bytes are described in docs/formats/cells.md.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path

import lmdb
from lmdb import verify as audit

from millrace import errors, limits
from millrace.store.ballast import FULL_CODES, Ballast, sync_folder
from millrace.store.cells import Table, Writes, check_bounds
from millrace.store.lmdb_reading import (
    COMMIT,
    COMMIT_KEY,
    DATA,
    LMDB_VERSION,
    RECOVER,
    SUMS,
    LmdbReading,
)
from millrace.store.pace import Pace, at_once
from millrace.store.steps import forget, sorted_keys, steps
from millrace.wal.files import make_folders

_NEW = "data.new"
"""The file while it is being made; what is left of one is removed."""
_MODE = 0o600
"""The mode of LMDB's files; LMDB itself would make them readable for everybody."""
_FORMAT = struct.Struct("<I")
_FORMAT_KEY = b"format"
_FORMAT_NOW = 1

_verify: Callable[[str], list[str]] = audit.verify

_Plan = list[tuple[Table, Mapping[bytes, bytes | None], list[bytes]]]


class LmdbCells(LmdbReading):
    """The cells of one folder, in LMDB; one object at a time may have the folder open."""

    def __init__(
        self,
        folder: Path,
        *,
        map_bytes: int = limits.CELLS_MAP_BYTES,
        ballast_bytes: int = limits.CELLS_BALLAST_BYTES,
        spare_bytes: int = limits.CELLS_SPARE_BYTES,
        pace: Pace = at_once,
    ) -> None:
        """Open the cells, and make them first if the folder has none.

        Commits run at the given pace; beside an event loop that should be a `LoopPace`.

        Raises:
            Corrupt: what is there is damaged, or was written by something else.
            DiskFailed: it cannot be read or written.
            Full: too many files are open.
        """
        super().__init__(folder)
        self._pace = pace
        self._is_refused = False
        try:
            make_folders(folder)
            self._ballast = Ballast(folder, size_bytes=ballast_bytes, spare_bytes=spare_bytes)
            # LMDB writes to this file through a map: on a full disk that would end the process.
            self._ballast.allocate(folder / "lock.mdb", limits.CELLS_LOCK_BYTES)
            if not (folder / DATA).exists():
                self._make(map_bytes)
            self._env = lmdb.open(
                os.fspath(folder),
                map_size=map_bytes,
                max_dbs=len(Table) + 1,
                max_readers=limits.CELLS_READERS_MAX,
                mode=_MODE,
                lib_version=LMDB_VERSION,
            )
        except (lmdb.Error, OSError) as error:
            self._fail(error, is_opening=True)
        try:
            self._begin()
            self._witness = os.open(folder / DATA, os.O_RDONLY | os.O_CLOEXEC)
            # LMDB does not sync the entry of the file that it makes.
            sync_folder(folder)
            sync_folder(folder.absolute().parent)
        except (lmdb.Error, OSError) as error:
            self._env.close()
            self._fail(error, is_opening=True)
        except errors.Fatal:
            self._env.close()
            raise

    @property
    def short_of_space(self) -> bool:
        return self._is_refused or self._ballast.is_short

    def commit(self, writes: Writes) -> None:
        with self._lock:
            self._must_live()
            plan = self._pace(_planned(writes))
            if not plan:
                return
            try:
                self._commit(plan)
            except lmdb.Error as error:
                if not self._is_full(error):
                    self._fail(error)
                self._commit_without_ballast(plan)
            self._is_refused = False
            for _, _, keys in plan:
                self._pace(forget(keys))

    def care(self) -> None:
        with self._lock:
            self._must_live()
            try:
                # A process that was killed while it read would hold on to every page freed since.
                self._env.reader_check()
                self._ballast.care()
            except (lmdb.Error, OSError) as error:
                self._fail(error)

    def check(self) -> list[str]:
        with self._lock:
            self._must_live()
            try:
                # LMDB trusts its pages, so their structure is judged first, without its help.
                findings = _verify(os.fspath(self._folder))
                if not findings:
                    with self._env.begin() as transaction:
                        for finding in islice(self._walk(transaction), limits.CELLS_FINDINGS_MAX):
                            findings.append(finding)
            except (lmdb.Error, audit.VerifyError, errors.Corrupt) as error:
                findings = [str(error)]
            return findings[: limits.CELLS_FINDINGS_MAX]

    def _end(self) -> None:
        os.close(self._witness)

    def _transaction(self, table: Table) -> AbstractContextManager[lmdb.Transaction[bytes]]:
        return self._env.begin(self._tables[table])

    def _lookup(
        self, transaction: lmdb.Transaction[bytes], table: Table
    ) -> Callable[[bytes], bytes | None]:
        # The transaction has the table as its own: a third less for each key.
        return transaction.get

    def _is_full(self, error: lmdb.Error | OSError) -> bool:
        """Whether there was no room, and nothing else went wrong: then it may be tried again."""
        if isinstance(error, OSError):
            return error.errno in FULL_CODES
        if isinstance(error, lmdb.MapFullError):
            return True
        # LMDB reports a write of which only a part found room as an input/output error.
        is_partial = error.code == errno.EIO and (
            self._ballast.free_bytes() < limits.CELLS_WRITE_BYTES_MAX
        )
        return (is_partial or error.code in FULL_CODES) and self._is_sound()

    def _is_sound(self) -> bool:
        """Whether nothing that was written to the file has failed to reach the disk.

        A sync that failed must never be tried again, and LMDB gives the same codes for it. The
        kernel tells each descriptor of such a failure once, so that one of our own, which was open
        before, is told of what LMDB's was told.
        """
        try:
            os.fdatasync(self._witness)
        except OSError:
            return False
        return True

    def _make(self, map_bytes: int) -> None:
        """Make the file under another name: under its own it is never there in part."""
        new = self._folder / _NEW
        new.unlink(missing_ok=True)
        self._env = lmdb.open(
            os.fspath(new),
            subdir=False,
            lock=False,
            map_size=map_bytes,
            max_dbs=len(Table) + 1,
            mode=_MODE,
            lib_version=LMDB_VERSION,
        )
        with self._env:
            self._begin()
        new.rename(self._folder / DATA)

    def _begin(self) -> None:
        """Open every table, make those that are missing, and see that the last commit is whole."""
        with self._env.begin(write=True) as transaction:
            is_new = transaction.stat()["entries"] == 0
            self.open_tables(transaction, create=True)
            if is_new:
                self._put_fact(transaction, _FORMAT_KEY, _FORMAT.pack(_FORMAT_NOW))
                self._put_fact(transaction, COMMIT_KEY, COMMIT.pack(transaction.id()))
                return
            written = self._fact(transaction, _FORMAT_KEY)
            if written != _FORMAT.pack(_FORMAT_NOW):
                known = f"format {_FORMAT_NOW} is the one known here"
                raise errors.Corrupt(f"cells in {self._folder}: {known}, not {written!r}")
        with self._env.begin() as transaction:
            for finding in self._look(transaction):
                raise errors.Corrupt(f"cells in {self._folder}: {finding}; {RECOVER}")

    def _commit(self, plan: _Plan) -> None:
        # Leaving the block writes and syncs: one call, without the GIL, and outside the pace.
        with self._env.begin(write=True) as transaction:
            # The first write of a transaction reads a list of free pages, which may be long.
            self._put_fact(transaction, COMMIT_KEY, COMMIT.pack(transaction.id()))
            self._pace(self._apply(transaction, plan))

    def _commit_without_ballast(self, plan: _Plan) -> None:
        # LMDB never writes to a page that the last commit holds, and the second attempt writes each
        # of its own pages again, so that nothing rests on what the first one left behind.
        try:
            self._ballast.release()
            self._commit(plan)
        except (lmdb.Error, OSError) as error:
            if not self._is_full(error):
                self._fail(error)
            self._is_refused = True
            raise errors.Full(
                "no room for the index, not even without its ballast; nothing was committed: "
                "free space on the disk"
            ) from error

    def _apply(
        self, transaction: lmdb.Transaction[bytes], plan: _Plan
    ) -> Generator[None, None, None]:
        """Write the cells and their tables' new sums."""
        for table, cells, order in plan:
            total = self._sum(transaction, table)
            with transaction.cursor(self._tables[table]) as cursor:
                for keys in steps(order):
                    values = [value for value in map(cells.__getitem__, keys) if value is not None]
                    if len(values) < len(keys):
                        dead = [key for key in keys if cells[key] is None]
                        total = total.minus(_deleted(transaction, self._tables[table], dead))
                        keys = [key for key in keys if cells[key] is not None]
                    stored = self._stamps[table].stamped(keys, values)
                    # `replace` puts, and returns what was there before.
                    before = map(cursor.replace, keys, stored)
                    total = total.minus([old for old in before if old is not None]).plus(stored)
                    yield
            self._put_fact(transaction, bytes([table]), total.packed())

    def _put_fact(self, transaction: lmdb.Transaction[bytes], key: bytes, value: bytes) -> None:
        [stored] = self._stamps[SUMS].stamped([key], [value])
        transaction.put(key, stored, db=self._sums)


def _planned(writes: Writes) -> Generator[None, None, _Plan]:
    """Check the bounds of every cell, and put the keys in order."""
    plan: _Plan = []
    for table, cells in writes.items():
        keys: list[bytes] = []
        for step in steps(cells):
            check_bounds(step, [cells[key] for key in step])
            keys += step
            yield
        if keys:
            plan.append((table, cells, (yield from sorted_keys(keys))))
    return plan


def _deleted(
    transaction: lmdb.Transaction[bytes], database: lmdb._Database, keys: Sequence[bytes]
) -> list[bytes]:
    """Delete the keys that are there, and return what they had."""
    before = [transaction.get(key, db=database) for key in keys]
    for key in keys:
        transaction.delete(key, db=database)
    return [stored for stored in before if stored is not None]
