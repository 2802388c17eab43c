"""A folder as the command line looks at it: without changing it, whoever owns it.

Rule 1: every file is opened read-only, and the folder's lock is never taken exclusively; it is
tried for an instant, shared, to learn whether someone has it.
Rule 2: a folder in use changes while it is looked at. What cannot be read for that reason is read
again; in the end the user is told.
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
from millrace.core.codec import decode_cell
from millrace.core.fold import ShardMeta
from millrace.core.model import CATALOG, Kind, QueueCell
from millrace.errors import Corrupt, MillraceError, NotFound
from millrace.journal.recovery import Recovery
from millrace.node import IDENTITY, commits_when_synced
from millrace.store.cells import Cells
from millrace.store.inspect import Inspection, ReadOnlyCells
from millrace.store.memory import MemoryCells
from millrace.wal.files import RealDisk
from millrace.wal.replay import Replay

INDEX = "index"
LOG = "log"
LOCK = "lock"

SHARD_PREFIX = "shard:"
"""Names a shard by its number; no queue's name has a colon."""

DEFAULT_SPACE = "default"
"""The space of queues that were made without one."""


class Problem(click.ClickException):
    """Ends a verb with a message and a hint: it could not be done."""

    exit_code = 2

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def format_message(self) -> str:
        return f"{self.message}\nHint: {self.hint}"


class Damage(Problem):
    """Ends a verb that met damage."""

    exit_code = 1


class Use(NamedTuple):
    """Whether someone has the folder, and since when."""

    is_in_use: bool
    pid: int | None
    """Of the owner; of the last one if it is not in use."""
    opened_ns: int
    """When an owner last took it; 0 if none ever did."""

    @property
    def owner(self) -> str:
        return "an unknown process" if self.pid is None else f"process {self.pid}"


class Folder:
    """A folder with queues in it.

    Raises:
        Problem: there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        hint = "give the folder that was given to millrace.open()"
        if is_address(str(path)):
            raise Problem(
                f"this looks at the files of a folder, and {path} is a server",
                "run it on the server's machine, with the path of its folder",
            )
        if not path.exists():
            raise Problem(f"{path} does not exist", hint)
        if not path.is_dir():
            raise Problem(f"{path} is not a folder", hint)
        if not any((path / name).exists() for name in (LOG, INDEX, IDENTITY)):
            raise Problem(f"{path} holds no queues: it has neither a log nor an index", hint)
        if not os.access(path, os.R_OK | os.X_OK):
            raise Problem(f"{path} may not be read by this user", "run it as the folder's owner")
        self.disk = RealDisk(path, read_only=True)

    def use(self) -> Use:
        """Look who has the folder, now."""
        try:
            descriptor = os.open(self.path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # It is missing, or not to be read by this user: then someone may well have it.
            return Use(is_in_use=(self.path / LOCK).exists(), pid=None, opened_ns=0)
        try:
            digits = os.pread(descriptor, 20, 0).strip()
            pid = int(digits) if digits.isdigit() else None
            opened_ns = os.fstat(descriptor).st_mtime_ns
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return Use(is_in_use=True, pid=pid, opened_ns=opened_ns)
            return Use(is_in_use=False, pid=pid, opened_ns=opened_ns)
        finally:
            os.close(descriptor)

    def cells(self, *, is_in_use: bool) -> Cells:
        """The index; an empty one if there is none, as an engine would take it."""
        if not (self.path / INDEX / "data.mdb").exists():
            return MemoryCells()
        return ReadOnlyCells(self.path / INDEX, is_in_use=is_in_use)

    def state(self) -> State:
        """Everything that is committed: the index, with the log's end folded over it.

        Raises:
            Corrupt: the index or the log is damaged.
        """
        for attempt in range(limits.LOOK_AGAIN_MAX):
            use = self.use()
            cells = self.cells(is_in_use=use.is_in_use)
            try:
                return State(self, use, Inspection(self.disk, cells))
            except (Corrupt, NotFound):
                cells.close()
                # Beside an engine, a record that was half written or recycled looks like damage.
                if not use.is_in_use or attempt + 1 == limits.LOOK_AGAIN_MAX:
                    raise
            except MillraceError:
                cells.close()
                raise
        raise AssertionError("the last attempt has returned or raised")


class State:
    """What a folder holds, as of one look."""

    def __init__(self, folder: Folder, use: Use, store: Inspection) -> None:
        self.folder = folder
        self.use = use
        self.store = store
        self.replay = Replay(folder.disk, start=store.mark, needed_from=store.needed)
        self.records = 0
        """Data records after the checkpoint."""
        try:
            for _ in self.replay:
                self.records += 1
            store.attach(self.replay)
            recovery = Recovery(
                store.applied, store.facts, store.fold, commits_when_synced=commits_when_synced
            )
            recovery.read_all(self.replay.again())
        except MillraceError:
            self.replay.close()
            raise
        self.facts = recovery.facts
        self.names: dict[int, str] = {}
        """Shard → the queue that it belongs to; `space/name` outside the default space."""
        for key, value in store.cells_of(CATALOG, Kind.QUEUE).items():
            cell = decode_cell(Kind.QUEUE, value)
            assert isinstance(cell, QueueCell)
            self.names |= dict.fromkeys(cell.shards, _queue_name(key[1:]))

    def shards(self) -> list[tuple[int, ShardMeta]]:
        """Every shard and its counters, in order."""
        found = [(shard, self.store.layered.must(shard)) for shard in self.store.layered.all()]
        return [(shard, state.meta) for shard, state in found]

    def shard(self, queue: str) -> int:
        """The shard of a queue, given as `name`, `space/name` or `shard:number`.

        Raises:
            Problem: there is none, or there are several.
        """
        known = self.store.layered.all()
        if queue.startswith(SHARD_PREFIX):
            number = queue.removeprefix(SHARD_PREFIX)
            if number.isdecimal() and int(number) in known:
                return int(number)
            shown = ", ".join(map(str, known)) or "none"
            raise Problem(f"there is no shard {number!r}", f"there are the shards {shown}")
        wanted = queue.removeprefix(f"{DEFAULT_SPACE}/")
        shards = [shard for shard, name in self.names.items() if name == wanted]
        if len(shards) > 1:
            choices = ", ".join(f"{SHARD_PREFIX}{shard}" for shard in sorted(shards))
            raise Problem(f"queue {queue!r} has several shards", f"name one of {choices}")
        if not shards:
            raise Problem(f"there is no queue {queue!r}", _nearest(wanted, self.names.values()))
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
