"""What backups, restores and their verification come to."""

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
    """It can be restored from this entry on..."""
    last_index: int
    """...to this one, or later with an archive."""
    time: datetime
    """As of when."""
    bytes: int
    """Of all its files, those included that it shares."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A folder that was made of a backup."""

    path: Path
    backup: Path
    index: int
    """The last entry that it holds."""
    time: datetime
    """When that was committed; for an untouched backup, when it was made."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A backup that was read as a whole."""

    path: Path
    index: int
    """The entry as of which it was read."""
    shards: int
    rows: int
    differences: tuple[str, ...]
    """Where the folder that it was compared with holds something else; none, if it is the same."""
