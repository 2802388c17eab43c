"""The disk port: files and folders as the engine uses them, and the real disk.

Rule 1: a write is durable when `sync` has returned, a name when `sync_folder` of its folder has.
Rule 2: a full disk raises `Full`: nothing durable was lost, and the caller decides whether that is
fatal (an append) or not (a new file). Any other failed write or sync raises `DiskFailed` and is
never retried: after a failed sync the kernel may count the pages as clean.
Rule 3: a file that cannot be opened or mapped because the process or the system has too many open
files, or no memory, raises `Full`, too: nothing was written or synced, and the same call may
succeed later.
Rule 4: a path that cannot be used (read-only, no permission, missing) raises `Refused`.

Names are relative to the disk's root and use "/".
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from millrace import errors, limits
from millrace.errors import InUse

if TYPE_CHECKING:
    from typing_extensions import Buffer


FULL_CODES = frozenset({errno.ENOSPC, errno.EDQUOT})
SCARCE_CODES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
FORBIDDEN_CODES = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
NO_PATH_CODES = frozenset({errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})


class File(Protocol):
    """An open file. One thread writes at a time; reads and maps may run concurrently."""

    @property
    def name(self) -> str:
        """Name under which the file was opened."""
        ...

    @property
    def size(self) -> int:
        """Current size in bytes."""
        ...

    def read(self, count: int, offset: int) -> bytes:
        """Return `count` bytes from `offset` on; fewer only where the file ends."""
        ...

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write the buffers one after another from `offset` on, all of them.

        Raises:
            Full: the disk has no room; a part may have been written.
            DiskFailed: the contents of the range are unknown now.
        """
        ...

    def sync(self) -> None:
        """Make the bytes and the size durable (fdatasync).

        Raises:
            Full, DiskFailed: it is unknown, for ever, which of the unsynced writes are durable.
        """
        ...

    def sync_all(self) -> None:
        """Make the bytes and all attributes durable (fsync)."""
        ...

    def map(self) -> memoryview:
        """Return the whole file, read-only and shared: later writes show in it.

        The view stays valid after `close` and after the file was removed.

        Raises:
            Full: no more can be mapped now.
        """
        ...

    def close(self) -> None:
        """Close the descriptor without syncing. Closing twice changes nothing."""
        ...


class Lock(Protocol):
    """Ownership of a folder, held until released or until the process ends."""

    def release(self) -> None:
        """Release the folder for another owner. Releasing twice changes nothing."""
        ...


class Disk(Protocol):
    """Folders and files below one root."""

    def open(self, name: str, *, create_bytes: int | None = None) -> File:
        """Open a file for reading and writing.

        With `create_bytes` a missing file is created first, with that many bytes allocated, which
        read as zeros.

        Raises:
            NotFound: the file is missing, and `create_bytes` was not given.
            Full: the bytes do not fit (then nothing was created), or too many files are open.
        """
        ...

    def create(self, name: str) -> File:
        """Create an empty file.

        Raises:
            Exists: the name is taken.
        """
        ...

    def exists(self, name: str) -> bool:
        """Return True if a file or a folder has this name."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in the folder, without its own; none if it is missing."""
        ...

    def remove(self, name: str) -> None:
        """Remove the name. Descriptors and maps of the file stay valid."""
        ...

    def rename(self, name: str, new: str) -> None:
        """Rename the file atomically, replacing the file that has the new name."""
        ...

    def link(self, name: str, new: str) -> None:
        """Create a hard link to the file.

        Raises:
            Exists: the new name is taken.
        """
        ...

    def make_folder(self, name: str) -> None:
        """Create the folder and its missing parents."""
        ...

    def sync_folder(self, name: str) -> None:
        """Make all creations, renames, links and removals in the folder durable (fsync).

        Raises:
            Full: the folder could not be opened now, or has no room; it was not synced.
            DiskFailed: it is unknown which of them are durable.
        """
        ...

    def free_bytes(self) -> int:
        """Return the free space of the disk in bytes."""
        ...

    def identity(self, name: str) -> tuple[int, int]:
        """Return the file's inode and time of birth in ns, 0 where the file system keeps none.

        A copy of the file has another identity; a renamed or linked file has the same.
        """
        ...

    def lock(self, name: str) -> Lock:
        """Become the only owner of the folder, and write the process id into the file `name`.

        Raises:
            InUse: another owner lives, in this process or elsewhere; its `pid` says where.
        """
        ...


def byte_count(buffers: Sequence[Buffer]) -> int:
    """Return the total size of the buffers in bytes, whatever their item sizes are."""
    total = 0
    for buffer in buffers:
        total += len(buffer) if isinstance(buffer, bytes) else memoryview(buffer).nbytes
    return total


def make_folders(path: Path) -> None:
    """Create the folder and its missing parents, each with mode 0700.

    `os.makedirs` applies its mode to the last folder only.
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
    """A file descriptor of the operating system; see `File`."""

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
            # The kernel returns at most 2 GiB per read; the file may end earlier, too.
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
        """Write all but the first `skipped` bytes, with at most `WRITE_BUFFERS_MAX` per call."""
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
    """The folders and files below `root`; see `Disk`. A read-only disk refuses every change."""

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
            return take_lock(descriptor, self._root)
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
    """Map the error of a failed write or sync of an open file to `Full` or `DiskFailed`."""
    if error.errno in FULL_CODES:
        return errors.Full(f"{verb} {name}: the disk is full; free some space", field="path")
    return errors.DiskFailed(f"{verb} {name} failed: {error.strerror}", field=name)


def _unopened(error: OSError, verb: str, name: str) -> errors.MillraceError:
    """Map the error of opening or mapping a file, before anything was written."""
    if error.errno in SCARCE_CODES:
        return errors.Full(
            f"{verb} {name}: {error.strerror}; close some files, or raise the limit (ulimit -n)",
            field="files",
        )
    return _forbidden(error, verb, name)


def _forbidden(error: OSError, verb: str, name: str) -> errors.MillraceError:
    """Map the error of reaching or changing a path to a public error."""
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


# --- Folder lock -----------------------------------------------------------------------------
#
# One owner, in this process or elsewhere. The kernel's lock belongs to the open file description,
# which a forked process shares with its parent: the child would keep the folder locked after the
# owner has closed it, or has died. So the owner unlocks explicitly, and a forked process closes its
# own descriptors first of all.


class RealLock:
    """A locked descriptor; the kernel releases the lock when the process ends, even by a kill."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._process = os.getpid()
        status = os.fstat(descriptor)
        self.file = (status.st_dev, status.st_ino)
        _HELD.add(self)

    def release(self) -> None:
        """Unlock the folder. Releasing twice changes nothing; a forked process never unlocks."""
        if os.getpid() == self._process and self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close the descriptor; a process that shares it keeps the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        _HELD.discard(self)
        if descriptor >= 0:
            os.close(descriptor)


_HELD: set[RealLock] = set()
"""Registry of the locks of this process, for the hook that runs after a fork."""


def _forget_all() -> None:
    for lock in list(_HELD):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def take_lock(descriptor: int, root: Path) -> RealLock:
    """Lock the folder by an open descriptor, which is closed if that fails.

    Raises:
        InUse: another owner lives; `pid` says where.
        OSError: the file cannot be locked or written.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        return RealLock(descriptor)
    except BlockingIOError as error:
        in_use = _in_use(descriptor, root)
        os.close(descriptor)
        raise in_use from error
    except OSError:
        os.close(descriptor)
        raise


def _in_use(descriptor: int, root: Path) -> InUse:
    status = os.fstat(descriptor)
    file = (status.st_dev, status.st_ino)
    # The process id alone could be that of a process of another machine.
    if any(lock.file == file for lock in list(_HELD)):
        return InUse(
            f"{root} is already open in this process ({os.getpid()}); use it there, from any "
            "task or thread, or close it first",
            pid=os.getpid(),
        )
    digits = os.pread(descriptor, 20, 0).strip()
    pid = int(digits) if digits.isdigit() else None
    return InUse(
        f"{root} is in use by process {pid or 'unknown'}; close it there first, or share it there",
        # Our own id in the file belongs to a process of another machine or container.
        pid=None if pid == os.getpid() else pid,
    )


# --- Creation time ---------------------------------------------------------------------------
#
# The creation (birth) time tells a file from its copy; Python's `stat` does not give it on Linux.
# The time of the last change would not do: a hard link or a changed permission changes it, and the
# original would be taken for a copy.

_AT_FDCWD = -100
_STATX_BTIME = 0x800
_BYTES = 256
_MASK = struct.Struct("=I")
_TIME = struct.Struct("=qI")
_TIME_OFFSET = 80


def birth_ns(path: Path) -> int:
    """Return the creation time of the file in ns since 1970, or 0 if it is not recorded.

    Raises:
        OSError: the file cannot be accessed.
    """
    library = ctypes.CDLL(None, use_errno=True)
    statx = ctypes.create_string_buffer(_BYTES)
    if library.statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, statx) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    (mask,) = _MASK.unpack_from(statx)
    if not mask & _STATX_BTIME:
        return 0
    seconds, nanoseconds = _TIME.unpack_from(statx, _TIME_OFFSET)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


# --- File permissions in a data folder: 0600 for files and 0700 for folders, without exception ---
#
# The index holds names of queues and users and digests of tokens; the log, sealed files and
# backups hold bodies. `RealDisk` creates files with these modes; files of earlier versions, and
# files that LMDB created by the umask of the process, are changed when the folder is opened.

_OTHERS = 0o077


def make_private(folder: Path, names: Collection[str]) -> int:
    """Remove all permissions of group and others from the folder and the named entries in it.

    Folders are changed recursively. Other entries stay as they are; links are not followed. Files
    of another owner cannot be changed and are skipped: opening them fails, or their owner permits
    reading them. Returns the number of changed modes.
    """
    folder = Path(os.path.realpath(folder))
    changed = _close(folder)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in names:
                changed += _close_all(Path(entry.path))
    return changed


def _close_all(path: Path) -> int:
    changed = _close(path)
    for base, folders, files in os.walk(path):
        changed += sum(_close(Path(base, name)) for name in (*folders, *files))
    return changed


def _close(path: Path) -> int:
    # The file may just have been removed, have another owner, or its file system may keep no modes.
    with suppress(OSError):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & _OTHERS:
            path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
            return 1
    return 0
