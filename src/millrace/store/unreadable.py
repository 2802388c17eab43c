"""Rows that cannot be read, and where their bytes are kept until the queue is repaired.

Rule 1: an error of reading names the shard and the rows of one place. It concerns that shard alone.
Rule 2: a log segment is recycled although rows in it cannot be read: their bytes are copied to the
folder `quarantine`, and the index says that they lie there. Sealed files are never recycled; one
that is damaged stays as it is, so that the same file of a backup can replace it.
Rule 3: the engine never reads or removes a file of that folder. They are for `millrace repair`, and
for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pyarrow as pa
from crc32c import crc32c

from millrace.errors import Corrupt, MillraceError
from millrace.store import sealed
from millrace.store.place import UNREADABLE, Place
from millrace.wal.files import Disk
from millrace.wal.write_ahead_log import Log

FOLDER = "quarantine"
SUFFIX = ".block"

HOME = 0
"""Places in the folder are of this sealed file, which never exists."""


class Unreadable(Corrupt):
    """The rows at one place cannot be read."""

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
        """The first row there; 0 if they are staged, and have no seq."""
        self.last = last
        self.file = file
        """The sealed file that they lie in."""


@contextmanager
def reading(shard: int, first: int, place: Place) -> Iterator[None]:
    """While the rows of a place are read: whatever is wrong concerns these rows alone."""
    try:
        yield
    except (Unreadable, MemoryError):
        # Rows that found no memory are not damaged; `pa.ArrowMemoryError` is one of both kinds.
        raise
    except (Corrupt, pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(shard, first, place, error) from error


def unreadable(shard: int, first: int, place: Place, error: Exception) -> Unreadable:
    """The error of reading rows at a place of a shard; `first` is 0 where they are staged."""
    last = first + place.span - 1 if first else 0
    rows = f"rows {first} to {last}" if first else "staged rows"
    why = error.message if isinstance(error, MillraceError) else str(error)
    field = error.field if isinstance(error, MillraceError) else None
    return Unreadable(
        f"shard {shard}: {rows} cannot be read: {why}",
        field=field,
        shard=shard,
        first=first,
        last=last,
        file=place.home if place.sealed and not place.flags & UNREADABLE else None,
    )


def file_name(number: int) -> str:
    """The file in which the bytes of unreadable rows are kept."""
    return f"{FOLDER}/{number:012d}{SUFFIX}"


def file_number(name: str) -> int | None:
    """The number of the file with this name in its folder, or None if it is none."""
    stem = name.removesuffix(SUFFIX)
    return int(stem) if stem != name and len(stem) == 12 and stem.isdigit() else None


def set_aside(disk: Disk, place: Place, data: bytes) -> Place:
    """Keep the bytes of unreadable rows; when this returns, they are durable."""
    if not disk.exists(FOLDER):
        disk.make_folder(FOLDER)
        disk.sync_folder("")
    known = [number for name in disk.names(FOLDER) if (number := file_number(name)) is not None]
    number = max(known, default=0) + 1
    file = disk.create(file_name(number))
    try:
        file.write([data], 0)
        file.sync_all()
    finally:
        file.close()
    disk.sync_folder(FOLDER)
    return msgspec.structs.replace(
        place,
        home=HOME,
        offset=0,
        length=len(data),
        flags=UNREADABLE,
        sealed=True,
        number=number,
        crc=crc32c(data),
    )


def raw_bytes(disk: Disk, log: Log, place: Place) -> bytes | None:
    """The bytes at a place, as they are; None if they are gone."""
    if not place.sealed:
        return log.raw(place.position())
    is_aside = bool(place.flags & UNREADABLE)
    name = file_name(place.number) if is_aside else sealed.file_name(place.home)
    if not disk.exists(name):
        return None
    file = disk.open(name)
    try:
        data = bytes(file.read(place.length, place.offset))
    finally:
        file.close()
    # People may have removed the file, and another one may have its number by now.
    return None if is_aside and crc32c(data) != place.crc else data
