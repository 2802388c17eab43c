"""A vault: the folder that backups of one folder of queues lie in, and the archive of its log.

Rule 1: a backup is made under a name that says that it is unfinished, and gets its number when it
is whole and synced. What a crash left is removed by the next backup.
Rule 2: one process at a time makes backups in a vault; anyone may read it.
Rule 3: nothing else is ever removed. A backup is given up by removing its folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace.care import manifest
from millrace.care.manifest import Manifest
from millrace.errors import Exists, Invalid, MillraceError, NotFound
from millrace.log.files import RealDisk

UNFINISHED = ".unfinished"
ARCHIVE = "archive"
SCRATCH = "verifying."
"""How the names of folders begin in which a backup is looked at."""
_DIGITS = 6


class Vault:
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
        """
        numbers = self.numbers()
        if numbers and self.manifest_of(numbers[-1]).folder != folder:
            raise Exists(
                f"{self.path} holds backups of another folder; a restored or forked folder is "
                "another one, too. Give each a place of its own",
                field="into",
            )

    def prepare(self, folder: str) -> None:
        """Make the vault if it is missing, and see that it is one, and this folder's."""
        self._make()
        self.check_folder(folder)

    @contextmanager
    def making(self) -> Iterator[Path]:
        """A folder for the next backup, which is given its number at the end; whole or not at all.

        Raises:
            InUse: another process makes one.
            Invalid: there is something else in the folder.
        """
        self._make()
        lock = self.disk.lock("lock")
        try:
            for name in self.disk.names(""):
                stem = name.removesuffix(UNFINISHED)
                if stem != name and stem.isdigit():
                    shutil.rmtree(self.path / name)
            number = max(self.numbers(), default=0) + 1
            final = self.folder_of(number).name
            self.disk.make_folder(final + UNFINISHED)
            try:
                yield self.path / (final + UNFINISHED)
            except MillraceError:
                shutil.rmtree(self.path / (final + UNFINISHED), ignore_errors=True)
                raise
            self.disk.rename(final + UNFINISHED, final)
            self.disk.sync_folder("")
        finally:
            lock.release()

    def _make(self) -> None:
        if self.path.is_file():
            raise Invalid(f"{self.path} is a file, not a folder", field="into")
        if not self.path.is_dir():
            RealDisk(self.path.absolute().parent).make_folder(self.path.name)
            RealDisk(self.path.absolute().parent).sync_folder("")
        known = {"lock", ARCHIVE}
        others = [
            name
            for name in self.disk.names("")
            if name not in known
            and not name.removesuffix(UNFINISHED).isdigit()
            and not name.startswith(SCRATCH)
        ]
        if others:
            raise Invalid(
                f"{self.path} holds other things ({others[0]}); backups need a folder of their own",
                field="into",
            )
