"""Point-in-time restore: makes a folder from a backup, at its end or at an earlier point.

Rule 1: the checksum of every file is verified before or during the copy. A damaged file is named
and refused.
Rule 2: the folder has a marker file from the first step to the last; engines refuse to open it.
Rule 3: the index is as old as the backup's checkpoint. The log continues from there, and is
truncated after the last wanted entry. Points before the checkpoint cannot be restored.
Rule 4: the result is a copy of the source: the caller gives it an identity and a history of its own
before the marker is removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from millrace.errors import Corrupt, Exists, Invalid, NotFound, Refused
from millrace.maintenance import archived_log, manifest
from millrace.maintenance.archived_log import (
    LogCut,
    LogPiece,
    LogWalk,
    find_progress,
    list_archived,
)
from millrace.maintenance.backup_repository import ARCHIVE, UNFINISHED, BackupRepository
from millrace.maintenance.file_copy import (
    FileChecksum,
    StepCallback,
    checksum,
    copy,
    link,
    no_pause,
)
from millrace.maintenance.manifest import Manifest, Point, QuarantinePart
from millrace.maintenance.sealed_checksums import check_file
from millrace.store import unreadable
from millrace.store.sealed import file_name
from millrace.wal.disk import Disk, RealDisk
from millrace.wal.record import (
    DATA,
    ZEROS,
    encode_record,
    record_span,
)
from millrace.wal.segment_pool import SEGMENT_SUFFIX

RESTORING = "restoring"
"""Marker file of an incomplete folder."""

INDEX = "index/data.mdb"


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """The wanted point; the end of the backup, if neither is given."""

    index: int | None = None
    time_ms: int | None = None


class RestorePlan(NamedTuple):
    """The files and the range of the log to restore."""

    folder: Path
    """Path of the backup."""
    manifest: Manifest
    pieces: list[LogPiece]
    cut: LogCut

    def work(self, *, links: bool = False) -> int:
        """Return the bytes that `write_folder` reads: sealed files are checked, and copied unless
        linked."""
        manifest, end = self.manifest, self.cut.end.generation
        log = sum(size for generation, size in self.cut.ends.items() if generation <= end)
        sealed = sum(part.size for part in manifest.sealed)
        return manifest.index_size + log + sealed * (1 if links else 2)


def plan_restore(
    path: Path,
    target: RestoreTarget,
    *,
    pause: StepCallback = no_pause,
    more: Iterable[LogPiece] = (),
) -> RestorePlan:
    """Find the backup that leads to the point; `path` is a repository or one backup.

    `more`: copies of the log in other places.

    Raises:
        Refused: no backup here reaches the point; the error names the points in reach.
        NotFound: the repository has no backup.
        Corrupt: a needed file is damaged.
    """
    more = list(more)
    refusal: Refused | None = None
    for folder in _candidates(path):
        disk = RealDisk(folder, read_only=True)
        backup_manifest = _manifest(disk, folder)
        if _is_before(target, backup_manifest.start):
            refusal = _too_early(folder, backup_manifest, target)
            continue
        return _plan(folder, disk, backup_manifest, target, more, pause, is_named=folder == path)
    raise refusal or NotFound(f"{path} holds no backup", field="backup")


def _candidates(path: Path) -> list[Path]:
    """Return the backups to try, newest first."""
    if path.name.endswith(UNFINISHED):
        raise Refused(f"{path} is an unfinished backup; use another one", field="backup")
    if os.path.exists(path / manifest.MANIFEST):
        return [path]
    if not os.path.isdir(path):
        raise NotFound(f"there is no backup {path}", field="backup")
    repository = BackupRepository(path)
    return [repository.folder_of(number) for number in reversed(repository.numbers())]


def _manifest(disk: Disk, folder: Path) -> Manifest:
    try:
        return manifest.read(disk)
    except NotFound:
        raise Corrupt(f"{folder}/{manifest.MANIFEST} is missing", field=manifest.MANIFEST) from None


def _is_before(target: RestoreTarget, start: Point) -> bool:
    return (target.index is not None and target.index < start.index) or (
        target.time_ms is not None and target.time_ms < start.time_ms
    )


def _too_early(folder: Path, backup_manifest: Manifest, target: RestoreTarget) -> Refused:
    index, time_ms = backup_manifest.start.index, backup_manifest.start.time_ms
    by_index = target.index is not None
    begins = f"index {index}" if by_index else datetime.fromtimestamp(time_ms / 1000, UTC)
    return Refused(
        f"{folder} begins with {begins}: what was before its checkpoint cannot be reached; use an "
        "earlier backup, or a later point",
        field="index" if by_index else "time",
        limit=index if by_index else time_ms,
    )


def _plan(
    folder: Path,
    disk: Disk,
    backup_manifest: Manifest,
    target: RestoreTarget,
    more: list[LogPiece],
    pause: StepCallback,
    *,
    is_named: bool,
) -> RestorePlan:
    own: list[LogPiece] = []
    for part in backup_manifest.log:
        _check_part(disk, part.name, part.size, part.crc, pause)
        piece = archived_log.read_piece(disk, part.name)
        if piece is None:
            raise Corrupt(f"{part.name}: it has no header", field=part.name)
        own.append(piece)
    repository = folder.parent
    newest_generation = own[-1].header.generation if own else 0
    archived = [
        piece for piece in list_archived(repository) if piece.header.generation >= newest_generation
    ]
    additional = [piece for piece in more if piece.header.generation >= newest_generation]
    pieces = archived_log.merge_pieces(own, archived, additional)
    walk = LogWalk(pieces)
    cut = archived_log.find_cut(
        walk,
        backup_manifest.start,
        backup_manifest.mark,
        index=target.index,
        time_ms=target.time_ms,
    )
    covered = backup_manifest.end.time_ms
    until = find_progress(repository) if archived else None
    if until is not None and walk.gap is None and not additional:
        covered = max(covered, until.time_ms)
        if walk.is_over and cut.end.serial < until.serial:
            name = f"{ARCHIVE}/{manifest.log_name(cut.end.generation)}"
            raise Corrupt(
                f"{name}, offset {cut.end.offset}: records are missing or damaged", field=name
            )
    is_apart = all(piece.header.generation > newest_generation for piece in archived)
    if is_named and is_apart and walk.end is not None and walk.end.generation == newest_generation:
        # An archive that was begun after a backup is not part of it, if that backup was named.
        walk.gap = None
    _check_reached(cut, walk, backup_manifest, target, covered)
    return RestorePlan(folder, backup_manifest, pieces, cut)


def _check_reached(
    cut: LogCut, walk: LogWalk, backup_manifest: Manifest, target: RestoreTarget, covered_ms: int
) -> None:
    """Refuse a point that the log does not reach, and an end behind a gap."""
    last = cut.point.index
    if last < backup_manifest.end.index and not _is_before(target, backup_manifest.end):
        raise Corrupt(
            f"the log ends with entry {last}, not {backup_manifest.end.index}", field="log"
        )
    wants_end = target == RestoreTarget()
    misses = (target.index is not None and target.index > last) or (
        target.time_ms is not None and target.time_ms > covered_ms and walk.is_over
    )
    if walk.gap is not None and (wants_end or misses):
        raise Refused(
            f"the archive has a gap before {walk.gap}, which cannot be crossed: index {last} is "
            "the last before it. Name that index, or restore a backup that was made later",
            field="time" if target.time_ms is not None else "index",
            limit=last,
        )
    if misses:
        raise Refused(
            f"the backup ends with index {last}; leave the point out to restore its end",
            field="index" if target.index is not None else "time",
            limit=last,
        )


def _check_part(disk: Disk, name: str, size: int, crc: int, pause: StepCallback) -> None:
    try:
        file = disk.open(name)
    except NotFound:
        raise Corrupt(f"{name} is missing from the backup; use another one", field=name) from None
    try:
        if file.size != size or checksum(file, size, pause) != crc:
            raise Corrupt(f"{name}: it is not what was backed up; use another backup", field=name)
    finally:
        file.close()


# --- Laying out -----------------------------------------------------------------------------------


def write_folder(
    plan: RestorePlan, into: Path, *, pause: StepCallback = no_pause, links: bool = False
) -> None:
    """Write the restored folder; it is marked as unfinished until `finish`.

    `links`: hard-link sealed files, for a folder that is only read.

    Raises:
        Exists: the folder is not empty.
        Corrupt: the backup is damaged; the error names the file.
        Full: not enough space.
    """
    disk = _begin(into)
    backup = RealDisk(plan.folder, read_only=True)
    for name in ("index", "log", "sealed"):
        disk.make_folder(name)
    _copy_index(plan, backup, disk, pause)
    for part in plan.manifest.sealed:
        check_file(backup, part, pause)
        name = file_name(part.number)
        if not (links and link(plan.folder / name, into / name)):
            file = backup.open(name)
            try:
                copy(file, disk, name, size=part.size, pause=pause)
            finally:
                file.close()
    if plan.manifest.quarantine:
        disk.make_folder(unreadable.FOLDER)
    for aside in plan.manifest.quarantine:
        _copy_whole(backup, disk, unreadable.file_name(aside.number), aside, pause)
    write_log(plan.pieces, plan.cut, disk, pause)
    folders = [unreadable.FOLDER] if plan.manifest.quarantine else []
    for name in ("index", "log", "sealed", *folders, ""):
        disk.sync_folder(name)


def _begin(into: Path) -> Disk:
    is_folder = os.path.isdir(into)
    if os.path.exists(into) and not is_folder:
        raise Invalid(f"{into} is a file, not a folder", field="into")
    if is_folder and any(into.iterdir()):
        state = "an unfinished restore: remove it" if (into / RESTORING).exists() else "not empty"
        raise Exists(f"{into} is {state}; restore into a new folder", field="into")
    if not is_folder:
        parent = RealDisk(into.absolute().parent)
        parent.make_folder(into.name)
        parent.sync_folder("")
    disk = RealDisk(into)
    file = disk.create(RESTORING)
    file.write([b"This folder is being restored. It is not whole while this file is here.\n"], 0)
    file.sync_all()
    file.close()
    disk.sync_folder("")
    return disk


def _copy_index(plan: RestorePlan, backup: Disk, disk: Disk, pause: StepCallback) -> None:
    expected = FileChecksum(plan.manifest.index_size, plan.manifest.index_crc)
    _copy_whole(backup, disk, INDEX, expected, pause)


def _copy_whole(
    backup: Disk,
    disk: Disk,
    name: str,
    expected: FileChecksum | QuarantinePart,
    pause: StepCallback,
) -> None:
    """Copy a file of a backup and verify its size and checksum."""
    try:
        file = backup.open(name)
    except NotFound:
        raise Corrupt(f"{name} is missing from the backup", field=name) from None
    try:
        if file.size != expected.size:
            raise Corrupt(f"{name}: it has another size than was backed up", field=name)
        copied = copy(file, disk, name, size=file.size, pause=pause)
    finally:
        file.close()
    if copied.crc != expected.crc:
        raise Corrupt(f"{name}: it is not what was backed up; use another backup", field=name)


def write_log(
    pieces: Sequence[LogPiece], cut: LogCut, disk: Disk, pause: StepCallback = no_pause
) -> None:
    """Write the copies of generations as segments, up to the cut."""
    for place, piece in enumerate(pieces):
        generation = piece.header.generation
        if generation > cut.end.generation:
            return
        name = f"log/{place + 1:08d}{SEGMENT_SUFFIX}"
        file = piece.disk.open(piece.name)
        try:
            size, full = cut.ends[generation], piece.header.size
            copy(file, disk, name, size=size, pause=pause, full=full)
        finally:
            file.close()
        if generation == cut.end.generation and cut.kept:
            _write_kept(disk, name, piece, cut)


def _write_kept(disk: Disk, name: str, piece: LogPiece, cut: LogCut) -> None:
    """Rewrite the last record with the entries before the cut."""
    head, _ = encode_record(
        DATA,
        piece.header,
        serial=cut.end.serial,
        prev_crc=cut.end.prev_crc,
        buffers=[cut.kept],
        length=len(cut.kept),
    )
    padding = ZEROS[: record_span(len(cut.kept)) - len(head) - len(cut.kept)]
    file = disk.open(name)
    try:
        file.write([head, cut.kept, padding], cut.end.offset)
        file.sync_all()
    finally:
        file.close()


def finish(into: Path) -> None:
    """Remove the marker from a complete folder."""
    disk = RealDisk(into)
    disk.remove(RESTORING)
    disk.sync_folder("")
