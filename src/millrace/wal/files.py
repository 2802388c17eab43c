"""The disk as a port: what the engine asks of files and folders, and the real one.

Rule 1: a write is durable when `sync` has returned, a name when `sync_folder` of its folder has.
Rule 2: a full disk is `Full`: nothing durable was lost, and the caller decides whether that is the
end (an append) or not (a new file). Any other failed write or sync is `DiskFailed`, and is never
tried again: after a failed sync the pages may count as clean.
Rule 3: what cannot be opened or mapped because the process or the system has too many files, or no
memory, is `Full`, too: nothing was written or synced, and the same call may succeed later.
Rule 4: what the path itself forbids (read-only, no permission, missing) is `Refused`.

Names are relative to the disk's root and use "/".
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from millrace import errors, limits
from millrace.wal import folder_lock
from millrace.wal.birth_time import birth_ns

if TYPE_CHECKING:
    from typing_extensions import Buffer

FULL_CODES = frozenset({errno.ENOSPC, errno.EDQUOT})
SCARCE_CODES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
FORBIDDEN_CODES = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
NO_PATH_CODES = frozenset({errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})


class File(Protocol):
    """An open file. One thread writes at a time; reads and maps may run beside it."""

    @property
    def name(self) -> str:
        """The name under which it was opened."""
        ...

    @property
    def size(self) -> int:
        """Bytes from its beginning to its end, now."""
        ...

    def read(self, count: int, offset: int) -> bytes:
        """Return `count` bytes from `offset` on; fewer only where the file ends."""
        ...

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write the buffers one after another from `offset` on, all of them.

        Raises:
            Full: the disk has no room; a part may have been written.
            DiskFailed: what the range holds now is unknown.
        """
        ...

    def sync(self) -> None:
        """Make the bytes and the size durable (fdatasync).

        Raises:
            Full, DiskFailed: what of the unsynced writes is durable is unknown for ever.
        """
        ...

    def sync_all(self) -> None:
        """As `sync`, and the remaining attributes too (fsync)."""
        ...

    def map(self) -> memoryview:
        """Return the whole file, read-only and shared: later writes show in it.

        The view stays valid after `close` and after the file was removed.

        Raises:
            Full: no more can be mapped now.
        """
        ...

    def close(self) -> None:
        """Give the descriptor back. Closing twice changes nothing; nothing is synced."""
        ...


class Lock(Protocol):
    """Ownership of a folder, held until released or until the process ends."""

    def release(self) -> None:
        """Let another owner in. Releasing twice changes nothing."""
        ...


class Disk(Protocol):
    """Folders and files below one root."""

    def open(self, name: str, *, create_bytes: int | None = None) -> File:
        """Open a file for reading and writing.

        With `create_bytes` a missing file is made first, with that many bytes allocated, which read
        as zeros. Raises `NotFound` without, `Full` where they do not fit (then nothing was made),
        or where too many files are open.
        """
        ...

    def create(self, name: str) -> File:
        """Make an empty file; `Exists` if the name is taken."""
        ...

    def exists(self, name: str) -> bool:
        """Tell whether a file or a folder has this name."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in the folder, without its own; none if it is missing."""
        ...

    def remove(self, name: str) -> None:
        """Remove the name. Descriptors and maps of the file stay valid."""
        ...

    def rename(self, name: str, new: str) -> None:
        """Give the file another name, in one step; what had that name is gone."""
        ...

    def link(self, name: str, new: str) -> None:
        """Give the file a second name; `Exists` if it is taken."""
        ...

    def make_folder(self, name: str) -> None:
        """Make the folder and those above it where they are missing."""
        ...

    def sync_folder(self, name: str) -> None:
        """Make what was created, renamed, linked and removed in the folder durable.

        Raises:
            Full: the folder could not be opened now, or has no room; it was not synced.
            DiskFailed: what of it is durable is unknown.
        """
        ...

    def free_bytes(self) -> int:
        """Return how much may still be written."""
        ...

    def identity(self, name: str) -> tuple[int, int]:
        """Return the file's inode and time of birth in ns, 0 where the file system keeps none.

        A copy of the file has another identity; a renamed or linked file has the same.
        """
        ...

    def lock(self, name: str) -> Lock:
        """Become the one owner, whose process id the file `name` then holds.

        Raises:
            InUse: another owner lives, in this process or elsewhere; its `pid` says where.
        """
        ...


def byte_count(buffers: Sequence[Buffer]) -> int:
    """Return how many bytes the buffers have in all, whatever their items are."""
    total = 0
    for buffer in buffers:
        total += len(buffer) if isinstance(buffer, bytes) else memoryview(buffer).nbytes
    return total


def make_folders(path: Path) -> None:
    """Make the folder and those above it where they are missing, each of mode 0700.

    `os.makedirs` gives its mode to the last one alone.
    """
    missing: list[Path] = []
    at = path
    while not at.is_dir() and at != at.parent:
        missing.append(at)
        at = at.parent
    for folder in reversed(missing):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    if not path.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


class RealFile:
    """A descriptor; see `File`."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self.name = name

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, count: int, offset: int) -> bytes:
        try:
            data = os.pread(self._descriptor, count, offset)
            if len(data) == count:
                return data
            parts = [data]
            # A read is cut short by the kernel at 2 GiB, or by the end of the file.
            while data and (left := count - sum(map(len, parts))):
                data = os.pread(self._descriptor, left, offset + count - left)
                parts.append(data)
        except OSError as error:
            raise errors.DiskFailed(
                f"reading {self.name} at {offset} failed: {error.strerror}", field=self.name
            ) from error
        return b"".join(parts)

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        try:
            written = 0
            if len(buffers) <= limits.WRITE_BUFFERS_MAX:
                written = os.pwritev(self._descriptor, buffers, offset)
            if written != byte_count(buffers):
                self._write_rest(buffers, written, offset)
        except OSError as error:
            raise _failed(error, "writing to", self.name) from error

    def _write_rest(self, buffers: Sequence[Buffer], skipped: int, offset: int) -> None:
        """Write all but the first `skipped` bytes, in slices that the kernel takes."""
        left = [view for buffer in buffers if (view := memoryview(buffer).cast("B")).nbytes]
        place = 0
        while True:
            while place < len(left) and skipped >= left[place].nbytes:
                skipped -= left[place].nbytes
                offset += left[place].nbytes
                place += 1
            if place == len(left):
                return
            left[place] = left[place][skipped:]
            offset += skipped
            skipped = os.pwritev(
                self._descriptor, left[place : place + limits.WRITE_BUFFERS_MAX], offset
            )
            if skipped == 0:
                raise OSError(errno.EIO, "nothing was written")

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise _failed(error, "syncing", self.name) from error

    def sync_all(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise _failed(error, "syncing", self.name) from error

    def map(self) -> memoryview:
        if self.size == 0:
            return memoryview(b"")
        try:
            return memoryview(mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise _unopened(error, "mapping", self.name) from error

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealDisk:
    """The folders and files below `root`; see `Disk`. Read-only, it refuses every change."""

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        self._root = root
        self._read_only = read_only

    def open(self, name: str, *, create_bytes: int | None = None) -> File:
        path = self._path(name)
        if create_bytes is not None and not path.exists():
            return self._allocate(name, create_bytes)
        flags = os.O_RDONLY if self._read_only else os.O_RDWR
        return RealFile(self._descriptor("opening", name, flags), name)

    def _allocate(self, name: str, count: int) -> File:
        descriptor = self._descriptor("creating", name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            if count:
                os.posix_fallocate(descriptor, 0, count)
        except OSError as error:
            os.close(descriptor)
            with suppress(OSError):
                os.unlink(self._path(name))
            raise _failed(error, "creating", name) from error
        return RealFile(descriptor, name)

    def create(self, name: str) -> File:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        return RealFile(self._descriptor("creating", name, flags), name)

    def exists(self, name: str) -> bool:
        return self._path(name).exists()

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._path(folder)))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unopened(error, "listing", folder) from error

    def remove(self, name: str) -> None:
        self._changing("removing", name)
        try:
            os.unlink(self._path(name))
        except OSError as error:
            raise _forbidden(error, "removing", name) from error

    def rename(self, name: str, new: str) -> None:
        self._changing("renaming", name)
        try:
            os.rename(self._path(name), self._path(new))
        except OSError as error:
            raise _forbidden(error, "renaming", name) from error

    def link(self, name: str, new: str) -> None:
        self._changing("linking", name)
        try:
            os.link(self._path(name), self._path(new))
        except OSError as error:
            raise _forbidden(error, "linking", f"{name} to {new}") from error

    def make_folder(self, name: str) -> None:
        self._changing("making the folder", name)
        try:
            make_folders(self._path(name))
        except OSError as error:
            raise _forbidden(error, "making the folder", name) from error

    def sync_folder(self, name: str) -> None:
        descriptor = self._descriptor("syncing", name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise _failed(error, "syncing", name) from error
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int:
        try:
            status = os.statvfs(self._root)
        except OSError as error:
            raise _forbidden(error, "looking at", str(self._root)) from error
        return status.f_bavail * status.f_frsize

    def identity(self, name: str) -> tuple[int, int]:
        try:
            path = self._path(name)
            return os.stat(path).st_ino, birth_ns(path)
        except OSError as error:
            raise _forbidden(error, "looking at", name) from error

    def lock(self, name: str) -> Lock:
        descriptor = self._descriptor("locking", name, os.O_RDWR | os.O_CREAT)
        try:
            return folder_lock.take(descriptor, self._root)
        except OSError as error:
            raise _failed(error, "locking", name) from error

    def _path(self, name: str) -> Path:
        parts = name.split("/")
        if name and (".." in parts or "" in parts):
            raise errors.Invalid(f"{name!r} is not a name below the root", field="name")
        return self._root / name

    def _changing(self, verb: str, name: str) -> None:
        if self._read_only:
            raise errors.Refused(f"{verb} {name}: the disk was opened read-only", field="path")

    def _descriptor(self, verb: str, name: str, flags: int) -> int:
        if flags & os.O_CREAT:
            self._changing(verb, name)
        try:
            return os.open(self._path(name), flags | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unopened(error, verb, name) from error


def _failed(error: OSError, verb: str, name: str) -> errors.MillraceError:
    """Say what a failed write or sync means, whose file was open already."""
    if error.errno in FULL_CODES:
        return errors.Full(f"{verb} {name}: the disk is full; free some space", field="path")
    return errors.DiskFailed(f"{verb} {name} failed: {error.strerror}", field=name)


def _unopened(error: OSError, verb: str, name: str) -> errors.MillraceError:
    """Say what it means that a file could not be opened or mapped, before anything was done."""
    if error.errno in SCARCE_CODES:
        return errors.Full(
            f"{verb} {name}: {error.strerror}; close some files, or raise the limit (ulimit -n)",
            field="files",
        )
    return _forbidden(error, verb, name)


def _forbidden(error: OSError, verb: str, name: str) -> errors.MillraceError:
    """Say what it means that a path could not be reached or changed."""
    if error.errno in FORBIDDEN_CODES:
        return errors.Refused(
            f"{verb} {name}: {error.strerror}; the path must be writable by this user",
            field="path",
        )
    if error.errno == errno.ENOENT:
        return errors.NotFound(f"{verb} {name}: it does not exist", field="path")
    if error.errno in NO_PATH_CODES:
        return errors.Invalid(f"{verb} {name}: {error.strerror}; name another path", field="path")
    if error.errno == errno.EEXIST:
        return errors.Exists(f"{verb} {name}: the name is taken", field="path")
    return _failed(error, verb, name)
