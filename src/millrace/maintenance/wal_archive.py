"""The archive of a log beside its backups: generations, copied before they are recycled.

`archive/log/` has a file for each generation, which grows as the log does; `archive/reached.json`
says up to where it is whole. What it says is durable before anything counts as archived.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from millrace.maintenance import checksummed_json
from millrace.maintenance.archived_log import Piece, piece_of
from millrace.maintenance.backup_repository import ARCHIVE
from millrace.maintenance.manifest import TimeMs
from millrace.wal.files import Disk, RealDisk

REACHED = f"{ARCHIVE}/reached.json"


class Reached(msgspec.Struct, frozen=True):
    """Up to where an archive is whole."""

    generation: int
    offset: int
    serial: int
    """The number of the next record."""
    time_ms: TimeMs
    """Until when it is known that there was no other."""


def archived(vault: Path) -> list[Piece]:
    """What of the log is in the archive, if there is one."""
    disk = RealDisk(vault, read_only=True)
    found: list[Piece] = []
    for name in disk.names(f"{ARCHIVE}/log"):
        if name.endswith(".log") and name.removesuffix(".log").isdigit():
            piece = piece_of(disk, f"{ARCHIVE}/log/{name}")
            if piece is not None:
                found.append(piece)
    return found


def reached(vault: Path) -> Reached | None:
    """Up to where the archive is whole; None if there is none.

    Raises:
        Corrupt: the file that says so is damaged.
    """
    disk = RealDisk(vault, read_only=True)
    return read_reached(disk) if disk.exists(REACHED) else None


def read_reached(disk: Disk) -> Reached:
    return checksummed_json.read(disk, REACHED, Reached, hint="begin a new vault")
