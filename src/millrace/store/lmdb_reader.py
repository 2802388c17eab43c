"""Reads cells in LMDB and verifies their checksums; base of the writable and read-only cells.

Rule 1: every value carries a checksum (its *stamp*), which every read verifies.
Rule 2: LMDB's own errors end here: each becomes `Corrupt` or `DiskFailed`; after a failure, all
later calls fail.

The bytes are described in docs/formats/cells.md.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import add
from pathlib import Path
from typing import NoReturn, Self

import lmdb
import numpy as np
from crc32c import crc32c

from millrace import errors, limits
from millrace.store.cells import Table, check_bounds
from millrace.store.pacing import steps

SUMS = 255
"""Number of the table that describes the others."""

SUMS_NAME = b"SUMS"

DATA = "data.mdb"
"""LMDB's name of its file."""

LMDB_VERSION = 0
"""The format of LMDB 0.9, regardless of environment variables."""

COMMIT = struct.Struct("<Q")
COMMIT_KEY = b"commit"

RECOVER = "nothing was skipped; restore the folder from a backup or resync it from a replica"

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
"""LMDB's errors for inconsistent pages."""


class LmdbReader(ABC):
    """Reads the tables of one folder; the subclass provides the transaction."""

    _env: lmdb.Environment
    _tables: dict[Table, lmdb._Database]
    _sums: lmdb._Database

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._failure: errors.MillraceError | None = None
        self._stamps = {table: ValueChecksum(table) for table in (*Table, SUMS)}

    @abstractmethod
    def _transaction(self, table: Table) -> AbstractContextManager[lmdb.Transaction[bytes]]:
        """Return a transaction to read this table in."""

    def _lookup(
        self, transaction: lmdb.Transaction[bytes], table: Table
    ) -> Callable[[bytes], bytes | None]:
        """Return the function that looks up a key in the table; called for every key."""
        return partial(transaction.get, db=self._tables[table])

    def open_tables(self, transaction: lmdb.Transaction[bytes], *, create: bool) -> None:
        """Open the tables, creating missing ones if `create`."""
        self._tables = {
            table: self._env.open_db(table.name.encode(), txn=transaction, create=create)
            for table in Table
        }
        self._sums = self._env.open_db(SUMS_NAME, txn=transaction, create=create)

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        self._must_live()
        values: list[bytes | None] = []
        try:
            with self._transaction(table) as transaction:
                look = self._lookup(transaction, table)
                for step in steps(keys):
                    check_bounds(step)
                    # `get` releases the GIL once per key, `getmulti` three times.
                    stored = list(map(look, step))
                    there = [value for value in stored if value is not None]
                    if len(there) == len(stored):
                        self._verify(table, step, there)
                        values += [value[:-STAMP_BYTES] for value in there]
                        continue
                    pairs = zip(step, stored, strict=True)
                    self._verify(table, [key for key, value in pairs if value is not None], there)
                    values += [None if value is None else value[:-STAMP_BYTES] for value in stored]
        except lmdb.Error as error:
            self._fail(error)
        return values

    def range(
        self, table: Table, low: bytes, high: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        self._must_live()
        cells: list[tuple[bytes, bytes]] = []
        rows_of = _rows_before if reverse else _rows_from
        try:
            with (
                self._transaction(table) as transaction,
                transaction.cursor(self._tables[table]) as cursor,
            ):
                for rows in steps(islice(rows_of(cursor, low, high), limit)):
                    self._verify(table, [key for key, _ in rows], [value for _, value in rows])
                    cells += [(key, value[:-STAMP_BYTES]) for key, value in rows]
        except lmdb.Error as error:
            self._fail(error)
        return cells

    def close(self) -> None:
        with self._lock:
            if not isinstance(self._failure, errors.Closed):
                self._failure = errors.Closed("the cells are closed; open them again")
                self._end()
                self._env.close()

    @abstractmethod
    def _end(self) -> None:
        """Close the additional resources of the subclass."""

    def _must_live(self) -> None:
        if self._failure is not None:
            # Create a new error each time: one that is raised again accumulates tracebacks.
            raise type(self._failure)(self._failure.message)

    def _fail(self, error: lmdb.Error | OSError, *, is_opening: bool = False) -> NoReturn:
        """Raise the public error; after a fatal one, every later call fails with it."""
        # Closing fails the reads in progress with a less specific error.
        self._must_live()
        # A file that was just opened has no bad transaction and has not outgrown its map: any error
        # of LMDB itself means damage then. Errors of the operating system have positive codes.
        is_own = is_opening and isinstance(error, lmdb.Error) and error.code < 0
        if is_own or isinstance(error, _DAMAGE):
            raise errors.Corrupt(f"cells in {self._folder}: {error}; {RECOVER}") from error
        code = error.code if isinstance(error, lmdb.Error) else error.errno
        if is_opening and code in (errno.EMFILE, errno.ENFILE):
            # Nothing was written: the same call may succeed after some files were closed. Not so
            # with a lack of memory: a damaged page may ask for more than there is.
            raise errors.Full(
                f"cells in {self._folder}: {os.strerror(code)}; close some files, or raise the "
                "limit (ulimit -n)",
                field="files",
            ) from error
        self._failure = errors.DiskFailed(f"cells in {self._folder}: {error}")
        raise self._failure from error

    def _verify(self, table: Table, keys: Sequence[bytes], stored: Sequence[bytes]) -> None:
        damaged = self._damaged(table, keys, stored)
        if damaged:
            raise errors.Corrupt(f"cells in {self._folder}: {damaged[0]}; {RECOVER}")

    def _damaged(self, table: Table, keys: Sequence[bytes], stored: Sequence[bytes]) -> list[str]:
        return [
            f"table {table.name}, key {_shown(key)}: the value is not the one that was written"
            for key in self._stamps[table].damaged(keys, stored)
        ]

    def _look(self, transaction: lmdb.Transaction[bytes]) -> Iterator[str]:
        """Yield the findings of a quick check: an old root, or a wrong count of values."""
        committed = self._fact(transaction, COMMIT_KEY)
        if committed != COMMIT.pack(transaction.id()):
            yield f"LMDB shows commit {transaction.id()}, whose own number is {committed!r}"
        for table in Table:
            count = transaction.stat(self._tables[table])["entries"]
            expected = self._sum(transaction, table).count
            if count != expected:
                yield f"table {table.name} has {count} values, its sum says {expected}"

    def _walk(self, transaction: lmdb.Transaction[bytes]) -> Iterator[str]:
        """Read everything, and yield mismatches with the checksums of values and tables."""
        yield from self._look(transaction)
        for table in Table:
            total = TableChecksum()
            database = self._tables[table]
            with transaction.cursor(database) as cursor:
                for rows in steps(cursor.iternext()):
                    stored = [value for _, value in rows]
                    total = total.plus(stored)
                    yield from self._damaged(table, [key for key, _ in rows], stored)
                    # A damaged branch page hides keys from lookups, but not from the scan.
                    if [transaction.get(key, db=database) for key, _ in rows] != stored:
                        first = _shown(rows[0][0])
                        yield f"table {table.name}: keys from {first} on cannot be looked up"
            expected = self._sum(transaction, table)
            if total != expected:
                yield f"table {table.name}, a value is lost or old: {total}, not {expected}"

    def _sum(self, transaction: lmdb.Transaction[bytes], table: Table) -> TableChecksum:
        packed = self._fact(transaction, bytes([table]))
        return TableChecksum() if packed is None else TableChecksum.unpacked(packed)

    def _fact(self, transaction: lmdb.Transaction[bytes], key: bytes) -> bytes | None:
        stored = transaction.get(key, db=self._sums)
        if stored is None:
            return None
        if self._stamps[SUMS].damaged([key], [stored]):
            raise errors.Corrupt(f"cells in {self._folder}: fact {key!r} is damaged; {RECOVER}")
        return stored[:-STAMP_BYTES]


def _shown(key: bytes) -> str:
    # A damaged key may be as long as a page.
    return key.hex() if len(key) <= limits.CELL_KEY_BYTES_MAX else f"{key[:32].hex()}…"


def _rows_from(
    cursor: lmdb.Cursor[bytes], low: bytes, high: bytes
) -> Iterator[tuple[bytes, bytes]]:
    # LMDB has no empty key; it sorts before every key.
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
    # The cursor is at the first key that is too high, if there is one; step back from it.
    if cursor.prev() if cursor.set_range(high) else cursor.last():
        for row in cursor.iterprev():
            if row[0] < low:
                return
            yield row


# --- Checksums of the cells: a stamp for each stored value, and a sum for each table -------------
#
# Rule 1: a value is stored with a stamp behind it, the CRC-32C of its table, its key and itself.
# LMDB has no checksums of its own: the stamp detects a value that was changed, or is under another
# key.
# Rule 2: a stamp does not detect that a value was lost, or replaced by an older one of the same
# key. So each table has a sum over the stamps of all its values, which does not depend on their
# order and is updated incrementally.
# Rule 3: checksums are computed for many cells per call: a call per cell would cost more than
# LMDB's own work.

STAMP_BYTES = 4
"""A CRC-32C, little-endian."""

_RESIDUE = 0x48674BC7
"""The CRC-32C of any bytes followed by their own CRC-32C."""

_pack_stamp = struct.Struct("<I").pack
_SUM = struct.Struct("<QQ")
_SUM_MODULUS = 1 << 64


class ValueChecksum:
    """Computes and verifies the stamps of one table."""

    def __init__(self, table: int) -> None:
        # The stamp covers the key's length; otherwise a byte could move from key to value.
        self._seeds = [
            crc32c(struct.pack("<BH", table, length))
            for length in range(limits.CELL_KEY_BYTES_MAX + 1)
        ]

    def stamped(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
        """Return the values with their stamps appended."""
        return list(map(add, values, map(_pack_stamp, self._sums(keys, values))))

    def damaged(self, keys: Sequence[bytes], stored: Sequence[bytes]) -> list[bytes]:
        """Return the keys whose stored values do not match their stamps."""
        if max(map(len, keys), default=0) > limits.CELL_KEY_BYTES_MAX:
            return [key for key in keys if len(key) > limits.CELL_KEY_BYTES_MAX]
        sums = self._sums(keys, stored)
        if sums.count(_RESIDUE) == len(sums) and min(map(len, stored), default=4) >= STAMP_BYTES:
            return []
        return [
            key
            for key, value, checksum in zip(keys, stored, sums, strict=True)
            if checksum != _RESIDUE or len(value) < STAMP_BYTES
        ]

    def _sums(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[int]:
        seeds = map(self._seeds.__getitem__, map(len, keys))
        return list(map(crc32c, map(add, keys, values), seeds))


@dataclass(frozen=True, slots=True)
class TableChecksum:
    """The number of values of a table, and the sum of their mixed stamps modulo 2**64."""

    count: int = 0
    hash: int = 0

    def plus(self, stored: Sequence[bytes]) -> Self:
        """Return the checksum with these values added."""
        return self._moved(len(stored), _mixed(stored))

    def minus(self, stored: Sequence[bytes]) -> Self:
        """Return the checksum with these values removed.

        It never fails if the checksum is wrong already: the difference stays, for `check` to find.
        """
        return self._moved(-len(stored), -_mixed(stored))

    def _moved(self, count: int, mixed: int) -> Self:
        return type(self)((self.count + count) % _SUM_MODULUS, (self.hash + mixed) % _SUM_MODULUS)

    def packed(self) -> bytes:
        return _SUM.pack(self.count, self.hash)

    @classmethod
    def unpacked(cls, value: bytes) -> Self:
        if len(value) != _SUM.size:
            raise errors.Corrupt(f"a sum of the cells has {len(value)} bytes, not {_SUM.size}")
        return cls(*_SUM.unpack(value))


def _mixed(stored: Sequence[bytes]) -> int:
    """Sum the stamps, each spread over 64 bits first (the finaliser of SplitMix64).

    CRCs are linear; without this, changes that belong together could cancel each other out.
    """
    stamps = b"".join([value[-STAMP_BYTES:] for value in stored])
    if len(stamps) != STAMP_BYTES * len(stored):
        raise errors.Corrupt("a value of the cells is too short to have a stamp")
    bits = np.frombuffer(stamps, dtype="<u4").astype(np.uint64)
    bits += np.uint64(0x9E3779B97F4A7C15)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return int(bits.sum(dtype=np.uint64))
