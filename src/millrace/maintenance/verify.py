"""Verifying a backup: every sum of it, that it opens, and that it is what the source has.

It is laid out in a scratch folder, with links where that can be, and read as an engine would. To
compare it with its source, the scratch folder is brought to the source's own last entry, with what
the source's log has beyond the backup: both must then hold the same.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from millrace.errors import Exists, Refused, Retry
from millrace.maintenance.archived_log import Piece, piece_of
from millrace.maintenance.backup_repository import SCRATCH, UNFINISHED
from millrace.maintenance.digest import ShardDigest, differences, digest
from millrace.maintenance.file_copy import Tally
from millrace.maintenance.offline_folder import Look
from millrace.maintenance.restore import (
    Plan,
    Target,
    find_plan,
    lay_out,
)
from millrace.wal.files import Lock, RealDisk
from millrace.wal.segment_pool import SEGMENT_SUFFIX

_LOCK = "lock"
_FOLDER = "folder"
"""What a scratch folder holds: who looks, and what is looked at."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What a verification has looked at."""

    backup: Path
    index: int
    """The entry as of which it was read."""
    shards: int
    rows: int
    differences: list[str]
    """Where the source holds something else."""


def verify(
    path: Path,
    *,
    against: Path | None = None,
    scratch: Path | None = None,
    pause: Tally | None = None,
) -> Compared:
    """Read everything of a backup, and compare it with the folder that it was made of.

    `scratch`: where a folder for it may be made; beside the backup, if None. What a killed
    verification has left there is removed.

    Raises:
        Corrupt: it is damaged; the error names the file.
        Full: there is no room for the scratch folder.
        Refused: it cannot be made there, or the source has moved on so far that its log does not
            reach back to the backup.
    """
    pause = pause or Tally(lambda _, __: None)
    if against is None:
        found, _ = _read(find_plan(path, Target(), pause=pause), scratch, pause)
        return found
    source = Look(against)
    try:
        index = source.applied()
        plan = _common(path, against, index, pause)
        found, held = _read(plan, scratch, pause)
        return replace(found, differences=differences(held, digest(source)))
    finally:
        source.close()


def _common(path: Path, against: Path, index: int, pause: Tally) -> Plan:
    """The backup, and the log of the source, up to the source's own last entry."""
    try:
        return find_plan(path, Target(index=index), pause=pause, more=_segments(against))
    except Exists:
        raise
    except Refused as error:
        raise Refused(
            f"{against} is at index {index}, and its log no longer leads there from the end of the "
            f"backup ({error.message}); make a backup, and verify that",
            field="against",
            limit=error.limit,
        ) from error


def _segments(folder: Path) -> Iterator[Piece]:
    disk = RealDisk(folder, read_only=True)
    for name in disk.names("log"):
        if name.endswith(SEGMENT_SUFFIX):
            piece = piece_of(disk, f"log/{name}")
            if piece is not None:
                yield piece


def _read(
    plan: Plan, scratch: Path | None, pause: Tally
) -> tuple[Compared, dict[int, ShardDigest]]:
    beside = scratch or plan.folder.parent
    clear(beside)
    scratched = beside / f"{SCRATCH}{secrets.token_hex(8)}{UNFINISHED}"
    RealDisk(beside).make_folder(scratched.name)
    lock: Lock | None = None
    try:
        lock = RealDisk(scratched).lock(_LOCK)
        folder = scratched / _FOLDER
        pause.expect(plan.work(links=True))
        lay_out(plan, folder, pause=pause, links=True)
        look = Look(folder)
        try:
            held = digest(look)
        finally:
            look.close()
    finally:
        shutil.rmtree(scratched, ignore_errors=True)
        if lock is not None:
            lock.release()
    rows = sum(shard.rows for shard in held.values())
    return Compared(plan.folder, plan.cut.point.index, len(held), rows, []), held


def clear(beside: Path) -> None:
    """Remove the scratch folders of those who were killed; who still looks holds a lock."""
    for name in RealDisk(beside).names(""):
        folder = beside / name
        # Without anything in it, it may be about to be locked.
        if not name.startswith(SCRATCH) or not os.path.isdir(folder / _FOLDER):
            continue
        # What cannot be removed now does not keep this one from looking.
        with suppress(Refused, Retry):
            lock = RealDisk(folder).lock(_LOCK)
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()
