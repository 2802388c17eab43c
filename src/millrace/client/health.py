"""How an engine is: what watches over its data, in one look."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Health:
    """What an engine knows of its own state."""

    refuses: str | None
    """Why publishing is refused at the moment: the disk or the memory is short."""
    disk_free_bytes: int
    scrubbed: datetime | None
    """When everything on the disk was last read again and compared with its sums."""
    damaged: tuple[str, ...]
    """What was found damaged, by scrubbing or by sealing; the rows in it are refused."""
    archive: Path | None
    """Where the log is archived, if it is followed."""
    archive_behind_bytes: int
    """About how much of the log is not archived yet."""
    archive_gap: bool
    """Something is missing from the archive: make a new backup with `follow`."""
    archive_error: str | None
    """Why it cannot be written to, at the moment."""
