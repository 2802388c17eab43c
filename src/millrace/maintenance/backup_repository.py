"""A backup repository: a folder with the backups of one folder of queues and its WAL archive.

Rule 1: a backup is written under a temporary name, and is renamed to its number when it is complete
and synced. The next backup removes remnants of a crash.
Rule 2: one process at a time writes to a repository; any number may read it.
Rule 3: nothing else is ever removed. To delete a backup, remove its folder.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from millrace.errors import Corrupt, Exists, Invalid, NotFound
from millrace.maintenance import manifest
from millrace.maintenance.manifest import Manifest
from millrace.wal.disk import Lock, RealDisk, make_private

UNFINISHED = ".unfinished"
ARCHIVE = "archive"
ARCHIVED = f"{ARCHIVE}/log"
SCRATCH = "verifying."
"""Name prefix of the scratch folders of verifications."""
_DIGITS = 6


class BackupRepository:
    """The backups in a folder, which is created with the first one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = RealDisk(path)

    def numbers(self) -> list[int]:
        """Return the numbers of the complete backups, oldest first."""
        return sorted(
            int(name)
            for name in self.disk.names("")
            if len(name) == _DIGITS and name.isdigit() and (self.path / name).is_dir()
        )

    def folder_of(self, number: int) -> Path:
        return self.path / f"{number:0{_DIGITS}d}"

    def manifest_of(self, number: int) -> Manifest:
        """Read the manifest of a backup.

        Raises:
            Corrupt: the manifest is damaged.
        """
        try:
            return manifest.read(RealDisk(self.folder_of(number), read_only=True))
        except NotFound:
            raise NotFound(
                f"{self.folder_of(number)} has no manifest: it is no backup", field="path"
            ) from None

    def check_folder(self, folder: str) -> None:
        """Check that the backups here are of the given folder.

        Raises:
            Exists: they are of another folder.
            Invalid: the newest one is damaged or is not a backup.
        """
        numbers = self.numbers()
        try:
            is_other = bool(numbers) and self.manifest_of(numbers[-1]).folder != folder
        except (Corrupt, NotFound) as error:
            raise Invalid(
                f"{self.folder_of(numbers[-1])} is no whole backup ({error.message}); move it away "
                "to make others here",
                field="into",
            ) from error
        if is_other:
            raise Exists(
                f"{self.path} holds backups of another folder; a restored or forked folder is "
                "another one, too. Give each a place of its own",
                field="into",
            )

    def prepare(self, folder: str) -> None:
        """Create the repository if it is missing, and the archive of this folder in it.

        Raises:
            Exists: it belongs to another folder.
            Invalid: it contains other files.
        """
        self._make()
        self.check_folder(folder)
        self.disk.make_folder(ARCHIVED)
        self.disk.sync_folder("")
        self.disk.sync_folder(ARCHIVE)

    def begin(self, folder: str) -> UnfinishedBackup:
        """Begin the next backup of a folder.

        Raises:
            InUse: another process is making one.
            Exists: there are backups of another folder.
            Invalid: the repository contains other files.
        """
        self._make()
        self.check_folder(folder)
        lock = self.disk.lock("lock")
        try:
            for name in self.disk.names(""):
                stem = name.removesuffix(UNFINISHED)
                if stem != name and stem.isdigit():
                    shutil.rmtree(self.path / name, ignore_errors=True)
            number = max(self.numbers(), default=0) + 1
            draft = UnfinishedBackup(self, self.folder_of(number), lock)
            self.disk.make_folder(draft.path.name)
        except BaseException:
            lock.release()
            raise
        return draft

    def _make(self) -> None:
        is_folder = os.path.isdir(self.path)
        if os.path.exists(self.path) and not is_folder:
            raise Invalid(f"{self.path} is a file, not a folder", field="into")
        if not is_folder:
            RealDisk(self.path.absolute().parent).make_folder(self.path.name)
            RealDisk(self.path.absolute().parent).sync_folder("")
        names = self.disk.names("")
        known = {
            name
            for name in names
            if name in ("lock", ARCHIVE)
            or name.removesuffix(UNFINISHED).isdigit()
            or name.startswith(SCRATCH)
        }
        others = [name for name in names if name not in known]
        if others:
            raise Invalid(
                f"{self.path} holds other things ({others[0]}); backups need a folder of their own",
                field="into",
            )
        make_private(self.path, known)


class UnfinishedBackup:
    """A backup in progress: it gets its final name at the end, or is removed."""

    def __init__(self, repository: BackupRepository, final: Path, lock: Lock) -> None:
        self._repository = repository
        self._final = final
        self._lock = lock
        self.path = final.with_name(final.name + UNFINISHED)

    def finish(self) -> Path:
        """Rename the complete and synced backup to its final name; durable when this returns."""
        try:
            self._repository.disk.rename(self.path.name, self._final.name)
            self._repository.disk.sync_folder("")
        finally:
            self._lock.release()
        return self._final

    def abort(self) -> None:
        """Remove the unfinished backup."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()
