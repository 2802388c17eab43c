"""Cells in LMDB.

Rule 1: a commit is atomic, and durable when it returns. There is one writer at a time.
Rule 2: every value carries a stamp, which is verified by every read; every table has a sum, written
by the same commit as its values, which `check` compares with a walk over everything.
Rule 3: read transactions are short, and work goes in steps of half a millisecond, at a pace that
the event loop can stand.
Rule 4: a full disk is not a failure. The ballast is given up, the commit is tried once more, and
`short_of_space` asks the caller to refuse whatever would take more.

The bytes are described in docs/formats/cells.md.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NoReturn

import lmdb
from lmdb import verify as audit

from millrace import errors, limits
from millrace.store.ballast import FULL_CODES, Ballast, sync_folder
from millrace.store.cells import Table, Writes, check_bounds
from millrace.store.pace import Pace, at_once
from millrace.store.stamp import STAMP_BYTES, Stamp, Sum
from millrace.store.steps import forget, sorted_keys, steps

_SUMS = 255
"""The number of the table that describes the others."""

_DATA = "data.mdb"
"""What LMDB calls its file."""
_NEW = "data.new"
"""The file while it is being made; what is left of one is removed."""
_LMDB_VERSION = 0
"""The format of LMDB 0.9, whatever the process's environment asks for."""
_FORMAT = struct.Struct("<I")
_FORMAT_KEY = b"format"
_FORMAT_NOW = 1
_COMMIT = struct.Struct("<Q")
_COMMIT_KEY = b"commit"

_RECOVER = "nothing was skipped; restore the folder from a backup or resync it from a replica"

_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.BadValsizeError,
    lmdb.CursorFullError,
    lmdb.PageFullError,
)
"""What LMDB says where its own pages make no sense."""

_verify: Callable[[str], list[str]] = audit.verify

_Plan = list[tuple[Table, Mapping[bytes, bytes | None], list[bytes]]]


class LmdbCells:
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
        """
        self._folder = folder
        self._pace = pace
        self._lock = threading.Lock()
        self._failure: errors.MillraceError | None = None
        self._is_refused = False
        self._stamps = {table: Stamp(table) for table in (*Table, _SUMS)}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._ballast = Ballast(folder, size_bytes=ballast_bytes, spare_bytes=spare_bytes)
            # LMDB writes to this file through a map: on a full disk that would end the process.
            self._ballast.allocate(folder / "lock.mdb", limits.CELLS_LOCK_BYTES)
            if not (folder / _DATA).exists():
                self._make(map_bytes)
            self._env = lmdb.open(
                os.fspath(folder),
                map_size=map_bytes,
                max_dbs=len(Table) + 1,
                max_readers=limits.CELLS_READERS_MAX,
                lib_version=_LMDB_VERSION,
            )
        except (lmdb.Error, OSError) as error:
            self._fail(error, is_opening=True)
        try:
            self._begin()
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

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        self._must_live()
        found: list[bytes | None] = []
        try:
            with self._env.begin(self._tables[table]) as transaction:
                for step in steps(keys):
                    check_bounds(step)
                    # One `get` lets go of the GIL once, `getmulti` three times for each key.
                    stored = list(map(transaction.get, step))
                    there = [
                        (key, value)
                        for key, value in zip(step, stored, strict=True)
                        if value is not None
                    ]
                    self._verify_stamps(table, there)
                    found += [None if value is None else value[:-STAMP_BYTES] for value in stored]
        except lmdb.Error as error:
            self._fail(error)
        return found

    def range(
        self, table: Table, low: bytes, high: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        self._must_live()
        found: list[tuple[bytes, bytes]] = []
        rows_of = _rows_before if reverse else _rows_from
        try:
            with (
                self._env.begin() as transaction,
                transaction.cursor(self._tables[table]) as cursor,
            ):
                for rows in steps(islice(rows_of(cursor, low, high), limit)):
                    self._verify_stamps(table, rows)
                    found += [(key, value[:-STAMP_BYTES]) for key, value in rows]
        except lmdb.Error as error:
            self._fail(error)
        return found

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

    def close(self) -> None:
        with self._lock:
            if not isinstance(self._failure, errors.Closed):
                self._failure = errors.Closed("the cells are closed; open them again")
                self._env.close()

    def _must_live(self) -> None:
        if self._failure is not None:
            # A new one each time: an error that is raised again keeps every trace of the last.
            raise type(self._failure)(self._failure.message)

    def _fail(self, error: lmdb.Error | OSError, *, is_opening: bool = False) -> NoReturn:
        """Raise what the error means for the caller; what it ends, it ends for every later call."""
        # Closing ends the reads that are under way, with an error that says less.
        self._must_live()
        # A file that was just opened has no transaction to be wrong and no map to be outgrown: what
        # LMDB itself finds then, whatever it calls it, is damage. The system's errors are positive.
        is_own = is_opening and isinstance(error, lmdb.Error) and error.code < 0
        if is_own or isinstance(error, _DAMAGE):
            raise errors.Corrupt(f"cells in {self._folder}: {error}; {_RECOVER}") from error
        self._failure = errors.DiskFailed(f"cells in {self._folder}: {error}")
        raise self._failure from error

    def _is_full(self, error: lmdb.Error | OSError) -> bool:
        if isinstance(error, OSError):
            return error.errno in FULL_CODES
        if isinstance(error, lmdb.MapFullError) or error.code in FULL_CODES:
            return True
        # LMDB reports a write of which only a part found room as an input/output error.
        is_partial = error.code == errno.EIO
        return is_partial and self._ballast.free_bytes() < limits.CELLS_WRITE_BYTES_MAX

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
            lib_version=_LMDB_VERSION,
        )
        with self._env:
            self._begin()
        new.rename(self._folder / _DATA)

    def _begin(self) -> None:
        """Open every table, make those that are missing, and see that the last commit is whole."""
        with self._env.begin(write=True) as transaction:
            is_new = transaction.stat()["entries"] == 0
            self._tables = {
                table: self._env.open_db(table.name.encode(), txn=transaction) for table in Table
            }
            self._sums = self._env.open_db(b"SUMS", txn=transaction)
            if is_new:
                self._put_fact(transaction, _FORMAT_KEY, _FORMAT.pack(_FORMAT_NOW))
                self._put_fact(transaction, _COMMIT_KEY, _COMMIT.pack(transaction.id()))
                return
            written = self._fact(transaction, _FORMAT_KEY)
            if written != _FORMAT.pack(_FORMAT_NOW):
                known = f"format {_FORMAT_NOW} is the one known here"
                raise errors.Corrupt(f"cells in {self._folder}: {known}, not {written!r}")
        with self._env.begin() as transaction:
            for finding in self._look(transaction):
                raise errors.Corrupt(f"cells in {self._folder}: {finding}; {_RECOVER}")

    def _commit(self, plan: _Plan) -> None:
        # Leaving the block writes and syncs: one call, without the GIL, and outside the pace.
        with self._env.begin(write=True) as transaction:
            # The first write of a transaction reads a list of free pages, which may be long.
            self._put_fact(transaction, _COMMIT_KEY, _COMMIT.pack(transaction.id()))
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

    def _verify_stamps(self, table: Table, rows: Sequence[tuple[bytes, bytes]]) -> None:
        damaged = self._damaged(table, rows)
        if damaged:
            raise errors.Corrupt(f"cells in {self._folder}: {damaged[0]}; {_RECOVER}")

    def _damaged(self, table: Table, rows: Sequence[tuple[bytes, bytes]]) -> list[str]:
        keys = [key for key, _ in rows]
        damaged = self._stamps[table].damaged(keys, [stored for _, stored in rows])
        return [
            f"table {table.name}, key {_shown(key)}: the value is not the one that was written"
            for key in damaged
        ]

    def _look(self, transaction: lmdb.Transaction[bytes]) -> Iterator[str]:
        """Find what a glance can: a root that is not the last commit's, a count that is wrong."""
        committed = self._fact(transaction, _COMMIT_KEY)
        if committed != _COMMIT.pack(transaction.id()):
            yield f"LMDB shows commit {transaction.id()}, whose own number is {committed!r}"
        for table in Table:
            count = transaction.stat(self._tables[table])["entries"]
            expected = self._sum(transaction, table).count
            if count != expected:
                yield f"table {table.name} has {count} values, its sum says {expected}"

    def _walk(self, transaction: lmdb.Transaction[bytes]) -> Iterator[str]:
        """Read everything, and find what differs from its stamp or from its table's sum."""
        yield from self._look(transaction)
        for table in Table:
            total = Sum()
            database = self._tables[table]
            with transaction.cursor(database) as cursor:
                for rows in steps(cursor.iternext()):
                    stored = [value for _, value in rows]
                    total = total.plus(stored)
                    yield from self._damaged(table, rows)
                    # A damaged signpost on the way from the root hides keys that the walk does see.
                    if [transaction.get(key, db=database) for key, _ in rows] != stored:
                        first = _shown(rows[0][0])
                        yield f"table {table.name}: keys from {first} on cannot be looked up"
            expected = self._sum(transaction, table)
            if total != expected:
                yield f"table {table.name}, a value is lost or old: {total}, not {expected}"

    def _sum(self, transaction: lmdb.Transaction[bytes], table: Table) -> Sum:
        packed = self._fact(transaction, bytes([table]))
        return Sum() if packed is None else Sum.unpacked(packed)

    def _fact(self, transaction: lmdb.Transaction[bytes], key: bytes) -> bytes | None:
        stored = transaction.get(key, db=self._sums)
        if stored is None:
            return None
        if self._stamps[_SUMS].damaged([key], [stored]):
            raise errors.Corrupt(f"cells in {self._folder}: fact {key!r} is damaged; {_RECOVER}")
        return stored[:-STAMP_BYTES]

    def _put_fact(self, transaction: lmdb.Transaction[bytes], key: bytes, value: bytes) -> None:
        [stored] = self._stamps[_SUMS].stamped([key], [value])
        transaction.put(key, stored, db=self._sums)


def _shown(key: bytes) -> str:
    # What damage left of a key may be as long as a page.
    return key.hex() if len(key) <= limits.CELL_KEY_BYTES_MAX else f"{key[:32].hex()}…"


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


def _rows_from(
    cursor: lmdb.Cursor[bytes], low: bytes, high: bytes
) -> Iterator[tuple[bytes, bytes]]:
    # LMDB knows no empty key; every key comes after it.
    if cursor.set_range(low) if low else cursor.first():
        for row in cursor.iternext():
            if row[0] >= high:
                return
            yield row


def _rows_before(
    cursor: lmdb.Cursor[bytes], low: bytes, high: bytes
) -> Iterator[tuple[bytes, bytes]]:
    if not high:
        return
    # The place is that of the first key that is too high, if there is one; the wanted one precedes.
    if cursor.prev() if cursor.set_range(high) else cursor.last():
        for row in cursor.iterprev():
            if row[0] < low:
                return
            yield row
