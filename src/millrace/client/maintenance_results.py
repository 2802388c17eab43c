"""Results of backups, restores, verification and repair, and the health of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was made."""

    path: Path
    """Its own folder, within the one that was given."""
    first_index: int
    """First entry it can be restored to."""
    last_index: int
    """Last entry it can be restored to, without an archive."""
    time: datetime
    """Time of its last entry."""
    bytes: int
    """Total size of its files, including those shared with other backups."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A folder that was restored from a backup."""

    path: Path
    backup: Path
    index: int
    """The last entry that it contains."""
    time: datetime
    """Time of that entry's commit; for a complete backup, the time of the backup."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of reading a whole backup."""

    path: Path
    index: int
    """Last entry included in the comparison."""
    shards: int
    rows: int
    differences: tuple[str, ...]
    """Differences from the folder it was compared with; empty if they are equal."""


@dataclass(frozen=True, slots=True)
class Health:
    """State of an engine and of what watches over its data."""

    refuses: str | None
    """Why publishing is refused now, for lack of disk or memory; None: it is not."""
    disk_free_bytes: int
    scrubbed: datetime | None
    """Time when everything on disk was last read and compared with its checksums."""
    damaged: tuple[str, ...]
    """Damage found by scrubbing or sealing; the affected rows cannot be read."""
    archive: Path | None
    """Folder of the log archive, if there is one."""
    archive_behind_bytes: int
    """Approximate size of the log that is not archived yet."""
    archive_gap: bool
    """True if the archive is incomplete: make a new backup with `follow`."""
    archive_error: str | None
    """Why the archive cannot be written now."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """Result of repairing a quarantined queue."""

    readable: int
    """Number of readable rows, including settled ones that a cursor retains."""
    unreadable: int
    """Number of unreadable rows."""
    dropped: int
    """Number of these that were removed."""
    is_open: bool
    """True if the queue can be used again."""
