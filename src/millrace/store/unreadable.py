"""Unreadable rows: their error, and the quarantine that keeps their bytes until a repair.

Rule 1: a read error names the shard and the rows of one location. It concerns only that shard.
Rule 2: a log segment is recycled even if rows in it cannot be read: their bytes are copied to the
folder `quarantine`, and the index refers to the copy. Sealed files are never recycled; a damaged
one stays as it is, so that the same file of a backup can replace it.
Rule 3: the engine never reads or removes a file of that folder. They are for `millrace repair`, and
for operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pyarrow as pa
from crc32c import crc32c

from millrace.errors import Corrupt, MillraceError
from millrace.store import sealed
from millrace.store.row_location import UNREADABLE, RowLocation
from millrace.wal.disk import Disk
from millrace.wal.write_ahead_log import WriteAheadLog

FOLDER = "quarantine"
SUFFIX = ".block"

HOME = 0
"""Number of the sealed file, which never exists, of locations in the quarantine."""


class Unreadable(Corrupt):
    """The rows at one location cannot be read."""

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        shard: int = 0,
        first: int = 0,
        last: int = 0,
        file: int | None = None,
    ) -> None:
        super().__init__(message, field=field)
        self.shard = shard
        self.first = first
        """Seq of the first row; 0 if they are staged, and have no seqs."""
        self.last = last
        self.file = file
        """Number of the sealed file with the rows, or None."""


@contextmanager
def reading_rows(shard: int, first: int, location: RowLocation) -> Iterator[None]:
    """Convert errors of reading the rows of a location to `Unreadable`."""
    try:
        yield
    except (Unreadable, MemoryError):
        # A lack of memory is not damage; `pa.ArrowMemoryError` is a subclass of both error types.
        raise
    except (Corrupt, pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(shard, first, location, error) from error


def unreadable(shard: int, first: int, location: RowLocation, error: Exception) -> Unreadable:
    """Return the error for rows at a location of a shard; `first` is 0 if they are staged."""
    last = first + location.span - 1 if first else 0
    rows = f"rows {first} to {last}" if first else "staged rows"
    why = error.message if isinstance(error, MillraceError) else str(error)
    field = error.field if isinstance(error, MillraceError) else None
    return Unreadable(
        f"shard {shard}: {rows} cannot be read: {why}",
        field=field,
        shard=shard,
        first=first,
        last=last,
        file=location.home if location.sealed and not location.flags & UNREADABLE else None,
    )


def file_name(number: int) -> str:
    """Return the name of a quarantine file."""
    return f"{FOLDER}/{number:012d}{SUFFIX}"


def file_number(name: str) -> int | None:
    """Return the number of the quarantine file with this name, or None if it is another file."""
    stem = name.removesuffix(SUFFIX)
    return int(stem) if stem != name and len(stem) == 12 and stem.isdigit() else None


def quarantine_bytes(disk: Disk, location: RowLocation, data: bytes) -> RowLocation:
    """Write the bytes of unreadable rows to the quarantine, durably; return their location."""
    if not disk.exists(FOLDER):
        disk.make_folder(FOLDER)
        disk.sync_folder("")
    numbers = [number for name in disk.names(FOLDER) if (number := file_number(name)) is not None]
    number = max(numbers, default=0) + 1
    file = disk.create(file_name(number))
    try:
        file.write([data], 0)
        file.sync_all()
    finally:
        file.close()
    disk.sync_folder(FOLDER)
    return msgspec.structs.replace(
        location,
        home=HOME,
        offset=0,
        length=len(data),
        flags=UNREADABLE,
        sealed=True,
        number=number,
        crc=crc32c(data),
    )


def raw_bytes(disk: Disk, log: WriteAheadLog, location: RowLocation) -> bytes | None:
    """Return the raw bytes at a location, damaged or not; None if they are gone."""
    if not location.sealed:
        return log.raw(location.position())
    is_quarantined = bool(location.flags & UNREADABLE)
    name = file_name(location.number) if is_quarantined else sealed.file_name(location.home)
    if not disk.exists(name):
        return None
    file = disk.open(name)
    try:
        data = bytes(file.read(location.length, location.offset))
    finally:
        file.close()
    # An operator may have removed the file, and another one may have its number by now.
    return None if is_quarantined and crc32c(data) != location.crc else data
