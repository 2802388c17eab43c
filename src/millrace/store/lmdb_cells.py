"""Cells in LMDB: commits, full disks and recovery; `lmdb_reader` has the reads.

Rule 1: a commit is atomic, and durable when it returns. There is one writer at a time.
Rule 2: every table has a checksum over all values, written by the same commit, which `check`
compares with the stored values.
Rule 3: read transactions are short, and work is done in steps of half a millisecond, throttled by a
`Pacer` for the event loop.
Rule 4: a full disk is not a failure. The ballast is released, the commit is retried once, and
`short_of_space` asks the caller to refuse commands that need more. A failed sync is a failure, and
never retried.

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
from millrace.store.cells import Table, Writes, check_bounds
from millrace.store.lmdb_reader import (
    COMMIT,
    COMMIT_KEY,
    DATA,
    LMDB_VERSION,
    RECOVER,
    SUMS,
    LmdbReader,
)
from millrace.store.pacing import Pacer, clear_in_steps, run_at_once, sorted_keys, steps
from millrace.wal.disk import make_folders

_NEW = "data.new"
"""Temporary name of the file during its creation; a leftover is removed."""
_MODE = 0o600
"""Mode of LMDB's files; by default LMDB would make them readable for everybody."""
_FORMAT = struct.Struct("<I")
_FORMAT_KEY = b"format"
_FORMAT_NOW = 1

_verify: Callable[[str], list[str]] = audit.verify

_Plan = list[tuple[Table, Mapping[bytes, bytes | None], list[bytes]]]


class LmdbCells(LmdbReader):
    """The cells of one folder, in LMDB; one object at a time may have the folder open."""

    def __init__(
        self,
        folder: Path,
        *,
        map_bytes: int = limits.CELLS_MAP_BYTES,
        ballast_bytes: int = limits.CELLS_BALLAST_BYTES,
        spare_bytes: int = limits.CELLS_SPARE_BYTES,
        pace: Pacer = run_at_once,
    ) -> None:
        """Open the cells, and create them first if the folder has none.

        Commits run through `pace`; with an event loop in the process it should be a `LoopPacer`.

        Raises:
            Corrupt: the file is damaged, or was written by other software.
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
                self._pace(clear_in_steps(keys))

    def maintain(self) -> None:
        with self._lock:
            self._must_live()
            try:
                # The reader slot of a killed process would keep all pages that were freed since.
                self._env.reader_check()
                self._ballast.maintain()
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
        # The transaction has the table as its default, which saves a third per key.
        return transaction.get

    def _is_full(self, error: lmdb.Error | OSError) -> bool:
        """Return True if the only error was a full disk, so that a retry is safe."""
        if isinstance(error, OSError):
            return error.errno in FULL_CODES
        if isinstance(error, lmdb.MapFullError):
            return True
        # LMDB reports a partial write on a full disk as an input/output error.
        is_partial = error.code == errno.EIO and (
            self._ballast.free_bytes() < limits.CELLS_WRITE_BYTES_MAX
        )
        return (is_partial or error.code in FULL_CODES) and self._is_sound()

    def _is_sound(self) -> bool:
        """Return True if no write to the file has failed to reach the disk.

        A failed sync must never be retried, and LMDB returns the same codes for it. The kernel
        reports such a failure once per descriptor, so that our own descriptor, which was open
        before, gets the report as well.
        """
        try:
            os.fdatasync(self._witness)
        except OSError:
            return False
        return True

    def _make(self, map_bytes: int) -> None:
        """Create the file under a temporary name, so that it never exists in part."""
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
        """Open every table, create missing ones, and verify that the last commit is complete."""
        with self._env.begin(write=True) as transaction:
            is_new = transaction.stat()["entries"] == 0
            self.open_tables(transaction, create=True)
            if is_new:
                self._put_fact(transaction, _FORMAT_KEY, _FORMAT.pack(_FORMAT_NOW))
                self._put_fact(transaction, COMMIT_KEY, COMMIT.pack(transaction.id()))
                return
            written = self._fact(transaction, _FORMAT_KEY)
            if written != _FORMAT.pack(_FORMAT_NOW):
                supported = f"format {_FORMAT_NOW} is the one known here"
                raise errors.Corrupt(f"cells in {self._folder}: {supported}, not {written!r}")
        with self._env.begin() as transaction:
            for finding in self._look(transaction):
                raise errors.Corrupt(f"cells in {self._folder}: {finding}; {RECOVER}")

    def _commit(self, plan: _Plan) -> None:
        # Leaving the block writes and syncs: one call, without the GIL, not paced.
        with self._env.begin(write=True) as transaction:
            # The first write of a transaction reads a list of free pages, which may be long.
            self._put_fact(transaction, COMMIT_KEY, COMMIT.pack(transaction.id()))
            self._pace(self._apply(transaction, plan))

    def _commit_without_ballast(self, plan: _Plan) -> None:
        # LMDB never writes to a page of the last commit, and the second attempt writes all of its
        # own pages again: it does not depend on anything that the first one has written.
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
        """Write the cells and the new checksums of their tables."""
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
                    # `replace` puts the value, and returns the previous one.
                    before = map(cursor.replace, keys, stored)
                    total = total.minus([old for old in before if old is not None]).plus(stored)
                    yield
            self._put_fact(transaction, bytes([table]), total.packed())

    def _put_fact(self, transaction: lmdb.Transaction[bytes], key: bytes, value: bytes) -> None:
        [stored] = self._stamps[SUMS].stamped([key], [value])
        transaction.put(key, stored, db=self._sums)


def _planned(writes: Writes) -> Generator[None, None, _Plan]:
    """Check the limits of every cell, and sort the keys."""
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
    """Delete the keys, and return their previous values; missing keys are skipped."""
    before = [transaction.get(key, db=database) for key in keys]
    for key in keys:
        transaction.delete(key, db=database)
    return [stored for stored in before if stored is not None]


# --- The ballast: a file that reserves disk space for the index, to be deleted on a full disk ----
#
# A full disk must not stop the operations that free space: settles, deaths and checkpoints. The
# ballast is deleted when a commit of the index finds no room, and restored when there is space
# again.

NAME = "ballast"

FULL_CODES = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error codes of a full disk."""


class Ballast:
    """One file of a fixed size in a folder; used by one thread at a time."""

    def __init__(self, folder: Path, *, size_bytes: int, spare_bytes: int) -> None:
        self._folder = folder
        self._path = folder / NAME
        self._size_bytes = size_bytes
        self._spare_bytes = spare_bytes
        try:
            held = self._path.stat().st_size
        except FileNotFoundError:
            held = -1
        self._is_whole = held == size_bytes
        self.is_short = False
        """True if the disk counts as full: the ballast is gone, or will soon be needed."""
        self.maintain()

    def maintain(self) -> None:
        """Check the free space: restore the ballast if there is enough, and update `is_short`."""
        free = self.free_bytes()
        if self._is_whole:
            self.is_short = free < self._spare_bytes * (2 if self.is_short else 1)
            return
        # Require more than the ballast, or it would be created and released alternately.
        wanted = self._size_bytes + self._spare_bytes * (2 if self.is_short else 1)
        self.is_short = free < wanted or not self._make()

    def release(self) -> None:
        """Delete the ballast. When this returns, the next write can use its space."""
        self.is_short = True
        self._is_whole = False
        self._path.unlink(missing_ok=True)
        # A journalling file system reuses freed blocks only after its next commit: this forces one.
        sync_folder(self._folder)

    def allocate(self, path: Path, size_bytes: int) -> None:
        """Allocate disk blocks for the file, created if missing; release the ballast if need be."""
        try:
            allocate(path, size_bytes)
        except OSError as error:
            if error.errno not in FULL_CODES:
                raise
            self.release()
            allocate(path, size_bytes)

    def free_bytes(self) -> int:
        """Return the free bytes of the disk for ordinary users."""
        status = os.statvfs(self._folder)
        return status.f_bavail * status.f_frsize

    def _make(self) -> bool:
        self._path.unlink(missing_ok=True)
        try:
            allocate(self._path, self._size_bytes)
        except OSError as error:
            self._path.unlink(missing_ok=True)
            if error.errno in FULL_CODES:
                return False
            raise
        self._is_whole = True
        return True


def allocate(path: Path, size_bytes: int) -> None:
    """Allocate disk blocks for the first bytes of the file; its content stays."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the entries of the folder durable (fsync)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
