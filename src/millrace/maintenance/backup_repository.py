"""A vault: the folder that backups of one folder of queues lie in, and the archive of its log.

Rule 1: a backup is made under a name that says that it is unfinished, and gets its number when it
is whole and synced. What a crash left is removed by the next backup.
Rule 2: one process at a time makes backups in a vault; anyone may read it.
Rule 3: nothing else is ever removed. A backup is given up by removing its folder.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from millrace.errors import Corrupt, Exists, Invalid, NotFound
from millrace.maintenance import manifest
from millrace.maintenance.manifest import Manifest
from millrace.wal.file_modes import make_private
from millrace.wal.files import Lock, RealDisk

UNFINISHED = ".unfinished"
ARCHIVE = "archive"
ARCHIVED = f"{ARCHIVE}/log"
SCRATCH = "verifying."
"""How the names of folders begin in which a backup is looked at."""
_DIGITS = 6


class BackupRepository:
    """The backups in a folder; it is made when the first one is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = RealDisk(path)

    def numbers(self) -> list[int]:
        """The numbers of the finished backups, oldest first."""
        return sorted(
            int(name)
            for name in self.disk.names("")
            if len(name) == _DIGITS and name.isdigit() and (self.path / name).is_dir()
        )

    def folder_of(self, number: int) -> Path:
        return self.path / f"{number:0{_DIGITS}d}"

    def manifest_of(self, number: int) -> Manifest:
        """What a backup holds.

        Raises:
            Corrupt: its manifest is damaged.
        """
        try:
            return manifest.read(RealDisk(self.folder_of(number), read_only=True))
        except NotFound:
            raise NotFound(
                f"{self.folder_of(number)} has no manifest: it is no backup", field="path"
            ) from None

    def check_folder(self, folder: str) -> None:
        """Make sure that the backups here are of this folder.

        Raises:
            Exists: they are of another one.
            Invalid: the newest is damaged, or is none.
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
        """Make the vault if it is missing; it is then this folder's, and has an archive.

        Raises:
            Exists: it is another folder's.
            Invalid: there is something else in it.
        """
        self._make()
        self.check_folder(folder)
        self.disk.make_folder(ARCHIVED)
        self.disk.sync_folder("")
        self.disk.sync_folder(ARCHIVE)

    def begin(self, folder: str) -> Draft:
        """A place for the next backup of this folder.

        Raises:
            InUse: another process makes one.
            Exists: there are backups of another folder.
            Invalid: there is something else in it.
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
            draft = Draft(self, self.folder_of(number), lock)
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


class Draft:
    """A backup that is being made: it gets its name at the end, or is removed."""

    def __init__(self, vault: BackupRepository, final: Path, lock: Lock) -> None:
        self._vault = vault
        self._final = final
        self._lock = lock
        self.path = final.with_name(final.name + UNFINISHED)

    def finish(self) -> Path:
        """It is whole and synced: give it its name, which is durable when this returns."""
        try:
            self._vault.disk.rename(self.path.name, self._final.name)
            self._vault.disk.sync_folder("")
        finally:
            self._lock.release()
        return self._final

    def give_up(self) -> None:
        """Remove what was made of it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()
