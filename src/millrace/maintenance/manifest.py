"""The manifest of a backup: its files with sizes and checksums, and the range of entries.

It is written last, so that a folder with a manifest under its final name is complete. See
docs/formats/backup.md.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from millrace.errors import Corrupt
from millrace.maintenance import checksummed_json
from millrace.wal.disk import Disk
from millrace.wal.record import LogMark

MANIFEST = "manifest.json"
FORMAT = 1


TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond that can be formatted as a date."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A size, an index or a generation; a negative number would fail in the middle of a restore."""

TimeMs = Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]


class Point(msgspec.Struct, frozen=True):
    """An entry of the local commit group and its time."""

    index: Count
    time_ms: TimeMs


class LogPart(msgspec.Struct, frozen=True):
    """A generation of the WAL, up to the end of the backup."""

    generation: Count
    size: Count
    crc: Count

    @property
    def name(self) -> str:
        return log_name(self.generation)


class SealedPart(msgspec.Struct, frozen=True):
    """A sealed file; the checksum covers its lines, which have checksums of the rows."""

    number: Count
    size: Count
    crc: Count
    is_damaged: bool = False
    """True if it was damaged when the backup was made; queues with rows in it are quarantined."""


class QuarantinePart(msgspec.Struct, frozen=True):
    """A file with the bytes of unreadable rows."""

    number: Count
    size: Count
    crc: Count


class Manifest(msgspec.Struct, frozen=True):
    """The content of a backup."""

    format: int
    folder: str
    """Identity of the source folder."""
    log_id: str
    start: Point
    """The entry of the index: the earliest point that can be restored."""
    end: Point
    """The last entry, and the time until which no other was written."""
    mark: LogMark | None
    """The position at which replay begins."""
    needed: Count
    """The oldest generation with live rows."""
    index_size: Count
    index_crc: Count
    log: list[LogPart]
    sealed: list[SealedPart]
    quarantine: list[QuarantinePart] = []

    @property
    def size(self) -> int:
        """Total size of all files in bytes."""
        return (
            self.index_size
            + sum(part.size for part in self.log)
            + sum(part.size for part in self.sealed)
            + sum(part.size for part in self.quarantine)
        )


def log_name(generation: int) -> str:
    """Return the file name of a generation, in a backup and in an archive."""
    return f"log/{generation:012d}.log"


def read(disk: Disk) -> Manifest:
    """Read the manifest of the backup below the disk's root.

    Raises:
        Corrupt: the manifest is damaged, or of a later version.
        NotFound: the manifest does not exist: the backup is unfinished, or this is not a backup.
    """
    manifest = checksummed_json.read(disk, MANIFEST, Manifest, hint="use another backup")
    if manifest.format != FORMAT:
        raise Corrupt(
            f"{MANIFEST}: format {manifest.format} is a later version's; use that version",
            field=MANIFEST,
        )
    return manifest
