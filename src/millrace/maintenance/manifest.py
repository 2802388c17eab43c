"""The manifest of a backup: what it holds, from where to where, with the sums of it.

It is written last, so that a folder with a manifest under its final name is whole. See
docs/formats/backup.md.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from millrace.errors import Corrupt
from millrace.maintenance import checksummed_json
from millrace.wal.files import Disk
from millrace.wal.record import Mark

MANIFEST = "manifest.json"
FORMAT = 1


TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond that can be written as a date."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A size, an index, a generation: what is none would be found out in the middle of a restore."""

TimeMs = Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]


class Point(msgspec.Struct, frozen=True):
    """A place in the life of the local commit group."""

    index: Count
    time_ms: TimeMs


class LogPart(msgspec.Struct, frozen=True):
    """A generation of the log, up to where the backup has it."""

    generation: Count
    size: Count
    crc: Count

    @property
    def name(self) -> str:
        return log_name(self.generation)


class SealedPart(msgspec.Struct, frozen=True):
    """A sealed file; its own lines sum its rows, and this is the sum of the lines."""

    number: Count
    size: Count
    crc: Count
    is_damaged: bool = False
    """It was damaged when the backup was made; queues with rows in it are quarantined."""


class AsidePart(msgspec.Struct, frozen=True):
    """Bytes of unreadable rows."""

    number: Count
    size: Count
    crc: Count


class Manifest(msgspec.Struct, frozen=True):
    """What a backup holds."""

    format: int
    folder: str
    """The identity of the folder that it is of."""
    log_id: str
    start: Point
    """Of its index: it can be restored from here on."""
    end: Point
    """Its last entry, and until when it knows that there was no other."""
    mark: Mark | None
    """Where replay begins."""
    needed: Count
    """The oldest generation in which rows lie."""
    index_size: Count
    index_crc: Count
    log: list[LogPart]
    sealed: list[SealedPart]
    quarantine: list[AsidePart] = []

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return (
            self.index_size
            + sum(part.size for part in self.log)
            + sum(part.size for part in self.sealed)
            + sum(part.size for part in self.quarantine)
        )


def log_name(generation: int) -> str:
    """The name of a generation's file, in a backup and in an archive."""
    return f"log/{generation:012d}.log"


def read(disk: Disk) -> Manifest:
    """The manifest of the backup below the disk's root.

    Raises:
        Corrupt: it is damaged, or of a later version.
        NotFound: there is none: the backup is not finished, or this is none.
    """
    manifest = checksummed_json.read(disk, MANIFEST, Manifest, hint="use another backup")
    if manifest.format != FORMAT:
        raise Corrupt(
            f"{MANIFEST}: format {manifest.format} is a later version's; use that version",
            field=MANIFEST,
        )
    return manifest
