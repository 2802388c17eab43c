"""Read-only access to a folder, even while another process has it open.

Rule 1: every file is opened read-only, and the folder's lock is never taken exclusively; a shared
lock is tried for an instant to find out whether the folder is in use.
Rule 2: a folder in use changes while it is read. Reads that fail for this reason are retried a few
times, then reported as an error.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import click

from millrace import limits
from millrace.cli.target import is_address
from millrace.core.cells import Kind, QueueCell
from millrace.core.format.codec import decode_cell
from millrace.core.model import CATALOG
from millrace.core.state.fold import ShardMeta
from millrace.errors import Corrupt, MillraceError, NotFound
from millrace.journal.recovery import Recovery
from millrace.node import IDENTITY, commits_when_synced
from millrace.store.cells import Cells
from millrace.store.memory_cells import MemoryCells
from millrace.store.read_only_store import ReadOnlyCells, ReadOnlyStore
from millrace.wal.disk import RealDisk
from millrace.wal.replay import Replay

INDEX = "index"
LOG = "log"
LOCK = "lock"

SHARD_PREFIX = "shard:"
"""Prefix of a shard's number in place of a queue's name, which never has a colon."""

DEFAULT_SPACE = "default"
"""The space of queues created without one."""


class FolderError(click.ClickException):
    """Ends a verb that cannot show or check a folder."""

    exit_code = 2

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def format_message(self) -> str:
        return f"{self.message}\nHint: {self.hint}"


class DamageError(FolderError):
    """Ends a verb that found damage."""

    exit_code = 1


class FolderUse(NamedTuple):
    """Lock state of a folder, and its last owner."""

    is_in_use: bool
    pid: int | None
    """Process id of the owner, or of the last one if the folder is not in use."""
    opened_ns: int
    """Time of the last open in ns since 1970; 0 if it was never opened."""

    @property
    def owner(self) -> str:
        return "an unknown process" if self.pid is None else f"process {self.pid}"


class Folder:
    """A folder of queues, for reading.

    Raises:
        FolderError: the path has no folder of queues, or it is unreadable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        hint = "give the folder that was given to millrace.open()"
        if is_address(str(path)):
            raise FolderError(
                f"this reads the files of a folder, and {path} is a server",
                "run it on the server's machine, with the path of its folder",
            )
        if not path.exists():
            raise FolderError(f"{path} does not exist", hint)
        if not path.is_dir():
            raise FolderError(f"{path} is not a folder", hint)
        if not any((path / name).exists() for name in (LOG, INDEX, IDENTITY)):
            raise FolderError(f"{path} holds no queues: it has neither a log nor an index", hint)
        if not os.access(path, os.R_OK | os.X_OK):
            raise FolderError(
                f"{path} may not be read by this user", "run it as the folder's owner"
            )
        self.disk = RealDisk(path, read_only=True)

    def use(self) -> FolderUse:
        """Return the current lock state."""
        try:
            descriptor = os.open(self.path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # Missing, or unreadable for this user: in the latter case it may be in use.
            return FolderUse(is_in_use=(self.path / LOCK).exists(), pid=None, opened_ns=0)
        try:
            digits = os.pread(descriptor, 20, 0).strip()
            pid = int(digits) if digits.isdigit() else None
            opened_ns = os.fstat(descriptor).st_mtime_ns
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return FolderUse(is_in_use=True, pid=pid, opened_ns=opened_ns)
            return FolderUse(is_in_use=False, pid=pid, opened_ns=opened_ns)
        finally:
            os.close(descriptor)

    def cells(self, *, is_in_use: bool) -> Cells:
        """Open the index; without one, return an empty index, as an engine would."""
        if not (self.path / INDEX / "data.mdb").exists():
            return MemoryCells()
        return ReadOnlyCells(self.path / INDEX, is_in_use=is_in_use)

    def state(self) -> FolderState:
        """Return the committed state: the index with the end of the log folded over it.

        Raises:
            Corrupt: the index or the log is damaged.
        """
        for attempt in range(limits.LOOK_AGAIN_MAX):
            use = self.use()
            cells = self.cells(is_in_use=use.is_in_use)
            try:
                return FolderState(self, use, ReadOnlyStore(self.disk, cells))
            except (Corrupt, NotFound):
                cells.close()
                # While an engine runs, a half-written or recycled record looks like damage.
                if not use.is_in_use or attempt + 1 == limits.LOOK_AGAIN_MAX:
                    raise
            except MillraceError:
                cells.close()
                raise
        raise AssertionError("the last attempt has returned or raised")


class FolderState:
    """The committed state of a folder at one time."""

    def __init__(self, folder: Folder, use: FolderUse, store: ReadOnlyStore) -> None:
        self.folder = folder
        self.use = use
        self.store = store
        self.replay = Replay(folder.disk, start=store.mark, needed_from=store.needed)
        self.records = 0
        """Number of data records after the checkpoint."""
        try:
            for _ in self.replay:
                self.records += 1
            store.attach(self.replay)
            recovery = Recovery(
                store.applied, store.facts, store.fold, commits_when_synced=commits_when_synced
            )
            recovery.read_all(self.replay.read_again())
        except MillraceError:
            self.replay.close()
            raise
        self.facts = recovery.facts
        self.names: dict[int, str] = {}
        """Name of each shard's queue; `space/name` outside the default space."""
        for key, value in store.cells_of(CATALOG, Kind.QUEUE).items():
            cell = decode_cell(Kind.QUEUE, value)
            assert isinstance(cell, QueueCell)
            self.names |= dict.fromkeys(cell.shards, _queue_name(key[1:]))

    def shards(self) -> list[tuple[int, ShardMeta]]:
        """Return every shard with its counters, in order."""
        found = [(shard, self.store.layered.must(shard)) for shard in self.store.layered.all()]
        return [(shard, state.meta) for shard, state in found]

    def shard(self, queue: str) -> int:
        """Return the shard of a queue, given as `name`, `space/name` or `shard:number`.

        Raises:
            FolderError: the queue does not exist, or has several shards.
        """
        known = self.store.layered.all()
        if queue.startswith(SHARD_PREFIX):
            number = queue.removeprefix(SHARD_PREFIX)
            if number.isdecimal() and int(number) in known:
                return int(number)
            shown = ", ".join(map(str, known)) or "none"
            raise FolderError(f"there is no shard {number!r}", f"there are the shards {shown}")
        wanted = queue.removeprefix(f"{DEFAULT_SPACE}/")
        shards = [shard for shard, name in self.names.items() if name == wanted]
        if len(shards) > 1:
            choices = ", ".join(f"{SHARD_PREFIX}{shard}" for shard in sorted(shards))
            raise FolderError(f"queue {queue!r} has several shards", f"name one of {choices}")
        if not shards:
            raise FolderError(f"there is no queue {queue!r}", _nearest(wanted, self.names.values()))
        return shards[0]

    def close(self) -> None:
        self.replay.close()
        self.store.close()


def _queue_name(key: bytes) -> str:
    space, _, name = key.decode().partition("\0")
    return name if space == DEFAULT_SPACE else f"{space}/{name}"


def _nearest(wanted: str, names: Iterable[str]) -> str:
    known = sorted(set(names))
    if not known:
        return "there are no queues yet"
    near = get_close_matches(wanted, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return "`millrace dump PATH` lists the queues; those outside the default space are `space/name`"
