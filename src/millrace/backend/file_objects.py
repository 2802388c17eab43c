"""An object store in a folder: for development, tests, and file systems that all nodes mount.

Rule 1: an object appears complete and synced: it is written to a file of its own, synced, and then
linked (created) or renamed (replaced) to its name; then its folder is synced.
Rule 2: `create` is atomic by the link, which fails if the name exists. `replace` compares and
renames under a lock file, which the operating system releases when its holder dies.
Rule 3: the folder is synced before an object is reported as existing, too: its creator may have
been killed between link and sync, and then lose the name with the power.
Rule 4: the version of an object is the hash of its contents.

A crash may leave files in `unfinished`; their names are never used again, and they may be deleted
while no node runs.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from millrace.backend.objects import BackendUnavailable, ObjectEntry, Version, check_name

T = TypeVar("T")

_UNFINISHED = "unfinished"
_OBJECTS = "objects"
_SUFFIX = ".object"
"""The suffix of objects: the folder of a name may have the name of another object."""


class FileObjects:
    """Objects as files below a folder."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        self._objects = folder / _OBJECTS
        self._unfinished = folder / _UNFINISHED

    async def create(self, name: str, data: bytes) -> Version | None:
        path = self._path(name)

        def create() -> Version | None:
            _make_folder(path.parent)
            with self._written(data) as file:
                try:
                    os.link(file, path)
                    is_new = True
                except FileExistsError:
                    is_new = False
            _sync_folder(path.parent)
            return _version_of(data) if is_new else None

        return await self._run(create)

    async def replace(self, name: str, data: bytes, version: Version) -> Version | None:
        path = self._path(name)

        def replace() -> Version | None:
            with self._locked():
                found = _read(path)
                if found is None or _version_of(found) != version:
                    return None
                with self._written(data) as file:
                    os.rename(file, path)
                    _sync_folder(path.parent)
            return _version_of(data)

        return await self._run(replace)

    async def read(self, name: str) -> tuple[bytes, Version] | None:
        path = self._path(name)

        def read() -> bytes | None:
            data = _read(path)
            if data is not None:
                _sync_folder(path.parent)
            return data

        data = await self._run(read)
        return None if data is None else (data, _version_of(data))

    async def read_range(self, name: str, start: int, length: int) -> bytes | None:
        path = self._path(name)

        def read() -> bytes | None:
            try:
                with path.open("rb") as file:
                    file.seek(start)
                    return file.read(length)
            except FileNotFoundError:
                return None

        return await self._run(read)

    async def entries(self, prefix: str) -> list[ObjectEntry]:
        # Only the folder of the prefix is walked.
        folder = self._objects / prefix.rpartition("/")[0]

        def walk() -> list[ObjectEntry]:
            found: list[ObjectEntry] = []
            for path in folder.rglob(f"*{_SUFFIX}"):
                name = path.relative_to(self._objects).as_posix().removesuffix(_SUFFIX)
                if name.startswith(prefix):
                    try:
                        found.append(ObjectEntry(name, path.stat().st_size))
                    except FileNotFoundError:
                        # It was deleted while the folder was walked.
                        continue
            return sorted(found)

        return await self._run(walk)

    async def delete(self, name: str) -> None:
        path = self._path(name)

        def delete() -> None:
            if path.exists():
                path.unlink(missing_ok=True)
                _sync_folder(path.parent)

        await self._run(delete)

    def _path(self, name: str) -> Path:
        return self._objects / f"{check_name(name)}{_SUFFIX}"

    async def _run(self, work: Callable[[], T]) -> T:
        """Run blocking work on a thread; it is finished even if the caller is cancelled."""
        try:
            return await asyncio.shield(asyncio.to_thread(work))
        except OSError as error:
            raise BackendUnavailable(
                f"the folder {self._root} did not do it: {error.strerror or error}",
                field="cluster",
            ) from error

    @contextmanager
    def _written(self, data: bytes) -> Iterator[Path]:
        """A synced file with these contents, removed when the context ends."""
        _make_folder(self._unfinished)
        path = self._unfinished / secrets.token_hex(16)
        try:
            with path.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        _make_folder(self._root)
        with (self._root / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _version_of(data: bytes) -> Version:
    return hashlib.sha256(data).hexdigest()


def _make_folder(folder: Path) -> None:
    """Create a folder with its parents, each synced in its own parent."""
    missing = [folder]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
