"""Making a folder of a backup, at its end or at an earlier point.

Rule 1: everything that is used is summed first or while it is copied. What is damaged is refused,
and named.
Rule 2: the folder carries a mark from the first step to the last; an engine refuses it meanwhile.
Rule 3: the index is as old as its backup's checkpoint, and the log leads on from there: it is cut
behind the last entry that is wanted. Nothing before the checkpoint can be reached.
Rule 4: what is laid out is a copy of the source: whoever opens it gives it an identity and a
history of its own, before the mark is taken off.
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
from millrace.maintenance.archived_log import Cut, Piece, Walk
from millrace.maintenance.backup_repository import ARCHIVE, UNFINISHED, BackupRepository
from millrace.maintenance.file_copy import (
    Pause,
    Sum,
    at_once,
    copy,
    link,
    sum_of,
)
from millrace.maintenance.manifest import AsidePart, Manifest, Point
from millrace.maintenance.sealed_checksums import check_file
from millrace.maintenance.wal_archive import archived, reached
from millrace.store import unreadable
from millrace.store.sealed import file_name
from millrace.wal.files import Disk, RealDisk
from millrace.wal.record import (
    DATA,
    ZEROS,
    encode_record,
    span_of,
)
from millrace.wal.segment_pool import SEGMENT_SUFFIX

RESTORING = "restoring"
"""The mark of a folder that is not whole yet."""

INDEX = "index/data.mdb"


@dataclass(frozen=True, slots=True)
class Target:
    """Which point is wanted; the end, if neither is given."""

    index: int | None = None
    time_ms: int | None = None


class Plan(NamedTuple):
    """What is to be laid out."""

    folder: Path
    """The backup."""
    manifest: Manifest
    pieces: list[Piece]
    cut: Cut

    def work(self, *, links: bool = False) -> int:
        """Bytes that `lay_out` reads: sealed files are checked, and copied if not linked."""
        known, end = self.manifest, self.cut.end.generation
        log = sum(size for generation, size in self.cut.ends.items() if generation <= end)
        sealed = sum(part.size for part in known.sealed)
        return known.index_size + log + sealed * (1 if links else 2)


def find_plan(
    path: Path, target: Target, *, pause: Pause = at_once, more: Iterable[Piece] = ()
) -> Plan:
    """Which backup leads to the point; `path` is a vault, or one backup in it.

    `more`: pieces of the log that lie elsewhere.

    Raises:
        Refused: no backup here reaches the point; the error says what can be reached.
        NotFound: there is no backup.
        Corrupt: what should be used is damaged.
    """
    more = list(more)
    refusal: Refused | None = None
    for folder in _candidates(path):
        disk = RealDisk(folder, read_only=True)
        known = _manifest(disk, folder)
        if _is_before(target, known.start):
            refusal = _too_early(folder, known, target)
            continue
        return _plan(folder, disk, known, target, more, pause, is_named=folder == path)
    raise refusal or NotFound(f"{path} holds no backup", field="backup")


def _candidates(path: Path) -> list[Path]:
    """The backups that may serve, the newest first."""
    if path.name.endswith(UNFINISHED):
        raise Refused(f"{path} is an unfinished backup; use another one", field="backup")
    if os.path.exists(path / manifest.MANIFEST):
        return [path]
    if not os.path.isdir(path):
        raise NotFound(f"there is no backup {path}", field="backup")
    vault = BackupRepository(path)
    return [vault.folder_of(number) for number in reversed(vault.numbers())]


def _manifest(disk: Disk, folder: Path) -> Manifest:
    try:
        return manifest.read(disk)
    except NotFound:
        raise Corrupt(f"{folder}/{manifest.MANIFEST} is missing", field=manifest.MANIFEST) from None


def _is_before(target: Target, start: Point) -> bool:
    return (target.index is not None and target.index < start.index) or (
        target.time_ms is not None and target.time_ms < start.time_ms
    )


def _too_early(folder: Path, known: Manifest, target: Target) -> Refused:
    index, time_ms = known.start.index, known.start.time_ms
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
    known: Manifest,
    target: Target,
    more: list[Piece],
    pause: Pause,
    *,
    is_named: bool,
) -> Plan:
    own: list[Piece] = []
    for part in known.log:
        _check_part(disk, part.name, part.size, part.crc, pause)
        piece = archived_log.piece_of(disk, part.name)
        if piece is None:
            raise Corrupt(f"{part.name}: it has no header", field=part.name)
        own.append(piece)
    vault = folder.parent
    least = own[-1].header.generation if own else 0
    beside = [piece for piece in archived(vault) if piece.header.generation >= least]
    others = [piece for piece in more if piece.header.generation >= least]
    pieces = archived_log.merge(own, beside, others)
    walk = Walk(pieces)
    found = archived_log.cut(
        walk, known.start, known.mark, index=target.index, time_ms=target.time_ms
    )
    covered = known.end.time_ms
    until = reached(vault) if beside else None
    if until is not None and walk.gap is None and not others:
        covered = max(covered, until.time_ms)
        if walk.is_over and found.end.serial < until.serial:
            name = f"{ARCHIVE}/{manifest.log_name(found.end.generation)}"
            raise Corrupt(
                f"{name}, offset {found.end.offset}: records are missing or damaged", field=name
            )
    is_apart = all(piece.header.generation > least for piece in beside)
    if is_named and is_apart and walk.end is not None and walk.end.generation == least:
        # An archive that was begun later is no part of a backup that was asked for by its name.
        walk.gap = None
    _check_reached(found, walk, known, target, covered)
    return Plan(folder, known, pieces, found)


def _check_reached(
    found: Cut, walk: Walk, known: Manifest, target: Target, covered_ms: int
) -> None:
    """Refuse a point that was not reached, and an end that lies behind a gap."""
    last = found.point.index
    if last < known.end.index and not _is_before(target, known.end):
        raise Corrupt(f"the log ends with entry {last}, not {known.end.index}", field="log")
    wants_end = target == Target()
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


def _check_part(disk: Disk, name: str, size: int, crc: int, pause: Pause) -> None:
    try:
        file = disk.open(name)
    except NotFound:
        raise Corrupt(f"{name} is missing from the backup; use another one", field=name) from None
    try:
        if file.size != size or sum_of(file, size, pause) != crc:
            raise Corrupt(f"{name}: it is not what was backed up; use another backup", field=name)
    finally:
        file.close()


# --- Laying out ------------------------------------------------------------------------------


def lay_out(plan: Plan, into: Path, *, pause: Pause = at_once, links: bool = False) -> None:
    """Make the folder; it is marked as unfinished until `finish`.

    `links`: sealed files are linked, for a folder that is only looked at.

    Raises:
        Exists: there is something in the folder.
        Corrupt: the backup is damaged; the error names the file.
        Full: there is no room.
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
    lay_log(plan.pieces, plan.cut, disk, pause)
    folders = [unreadable.FOLDER] if plan.manifest.quarantine else []
    for name in ("index", "log", "sealed", *folders, ""):
        disk.sync_folder(name)


def _begin(into: Path) -> Disk:
    is_folder = os.path.isdir(into)
    if os.path.exists(into) and not is_folder:
        raise Invalid(f"{into} is a file, not a folder", field="into")
    if is_folder and any(into.iterdir()):
        what = "an unfinished restore: remove it" if (into / RESTORING).exists() else "not empty"
        raise Exists(f"{into} is {what}; restore into a new folder", field="into")
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


def _copy_index(plan: Plan, backup: Disk, disk: Disk, pause: Pause) -> None:
    known = Sum(plan.manifest.index_size, plan.manifest.index_crc)
    _copy_whole(backup, disk, INDEX, known, pause)


def _copy_whole(backup: Disk, disk: Disk, name: str, known: Sum | AsidePart, pause: Pause) -> None:
    """Copy a file of a backup that must be what was backed up."""
    try:
        file = backup.open(name)
    except NotFound:
        raise Corrupt(f"{name} is missing from the backup", field=name) from None
    try:
        if file.size != known.size:
            raise Corrupt(f"{name}: it has another size than was backed up", field=name)
        taken = copy(file, disk, name, size=file.size, pause=pause)
    finally:
        file.close()
    if taken.crc != known.crc:
        raise Corrupt(f"{name}: it is not what was backed up; use another backup", field=name)


def lay_log(pieces: Sequence[Piece], cut: Cut, disk: Disk, pause: Pause = at_once) -> None:
    """Make segments of the pieces, up to the cut."""
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


def _write_kept(disk: Disk, name: str, piece: Piece, cut: Cut) -> None:
    """Write the last record anew, with those of its entries that are wanted."""
    head, _ = encode_record(
        DATA,
        piece.header,
        serial=cut.end.serial,
        prev_crc=cut.end.prev_crc,
        buffers=[cut.kept],
        length=len(cut.kept),
    )
    padding = ZEROS[: span_of(len(cut.kept)) - len(head) - len(cut.kept)]
    file = disk.open(name)
    try:
        file.write([head, cut.kept, padding], cut.end.offset)
        file.sync_all()
    finally:
        file.close()


def finish(into: Path) -> None:
    """The folder is whole: take the mark off."""
    disk = RealDisk(into)
    disk.remove(RESTORING)
    disk.sync_folder("")
