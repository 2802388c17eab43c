"""The composition root, from settings to a running node; the only module that names concrete
classes.

Opening a folder takes its lock, loads the index, reads the log from the mark that the index names,
and checks that both belong to each other and to this folder. Nothing is changed before. Then it
replays the log, folds the committed entries, begins a new epoch, and only then serves requests.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

from millrace import limits
from millrace.core import plain_types
from millrace.core.answers import QueueRef
from millrace.core.catalog import queue_key
from millrace.core.cells import CatalogCell, Kind, QueueCell, TopicCell
from millrace.core.changes import Entry, EntryKind
from millrace.core.commands import InitCatalog
from millrace.core.format.codec import decode_cell
from millrace.core.format.receipt import (
    Receipt,
    prove,
    seal,
    unseal,
)
from millrace.core.model import (
    CATALOG,
    Epoch,
    GroupId,
    History,
    Index,
    ShardId,
)
from millrace.core.state.view import View
from millrace.engine.checkpointer import Checkpointer, CheckpointSchedule
from millrace.engine.command_request import CommandRequest
from millrace.engine.commit_loop import CommitLoop
from millrace.engine.dead_letter_mover import DeadLetterMover
from millrace.engine.topic_forwarder import TopicForwarder
from millrace.errors import Copied, Fatal, Forged, Invalid, MillraceError, Refused
from millrace.event_loop import SwitchIntervalLimit
from millrace.journal.local import LOCAL as LOCAL
from millrace.journal.local import LocalJournal
from millrace.journal.log_writer import LogWriter
from millrace.journal.recovery import Recovery, dry_run
from millrace.maintenance.restore import RESTORING
from millrace.maintenance.scrub import ScrubSchedule as ScrubPace
from millrace.maintenance.supervisor import MaintenancePorts, MaintenanceSettings, Supervisor
from millrace.maintenance.wal_archiver import read_archive_state
from millrace.maintenance.watermarks import memory_used
from millrace.settings import Settings
from millrace.store.cells import Cells
from millrace.store.disk_store import DiskStore
from millrace.store.lmdb_cells import LmdbCells
from millrace.store.pacing import LoopPacer
from millrace.wal.disk import (
    Disk,
    Lock,
    RealDisk,
    make_folders,
    make_private,
)
from millrace.wal.io_thread import IoThread, RealIoThread
from millrace.wal.record import LogPosition
from millrace.wal.replay import Replay
from millrace.wal.segment import LogShape
from millrace.wal.write_ahead_log import WriteAheadLog

NODE = GroupId(0xFFFF_FFFF)
"""Group of facts about the node itself: the identity of its folder."""

LOCAL_FACT = struct.Struct("<Q16s")
"""Layout of the local group's fact: epoch and history."""

IDENTITY = "identity"
"""File whose inode and birth time tell a folder from its copies."""

NAMES = frozenset(
    {
        "follow",
        IDENTITY,
        "index",
        "lock",
        "log",
        "quarantine",
        RESTORING,
        "scrub",
        "sealed",
        "socket",
        "socket.path",
    }
)
"""Files and folders of an engine, which are made private when it opens the folder. Files with
secrets are not listed: one that others can read is refused, not repaired."""

NODE_FACT = struct.Struct("<QQ")
"""Layout of the node's fact: inode and birth time of the identity file."""


def commits_when_synced(group: GroupId) -> bool:
    """Return True for the local group; other journals record in the log which entries are
    committed."""
    return group == LOCAL


@dataclass(frozen=True, slots=True)
class Ports:
    """A node's access to disk, threads, clock and randomness; the simulator provides its own."""

    disk: Disk
    cells: Callable[[], Cells]
    io_thread: Callable[[str], IoThread]
    now_ms: Callable[[], int]
    chance: Callable[[int], bytes]
    clock: Callable[[], float] = time.perf_counter
    """Clock that measures the duration of syncs, in seconds."""
    sleep: Callable[[float], None] = time.sleep
    """Sleeps on an I/O thread for a number of seconds."""
    memory_used: Callable[[], int] = memory_used
    """Returns the memory of the process in bytes."""
    folder: Path | None = None
    """Path of the disk's root on this machine, for hard links to its files; None if it is
    elsewhere."""


def real_ports(folder: Path) -> Ports:
    """Return the machine's own disk, threads, clock and randomness.

    A missing folder is created. An existing one is made private.
    """
    try:
        if folder.is_file():
            raise Invalid(f"{folder} is a file, not a folder", field="path")
        if not folder.is_dir():
            make_folders(folder)
            RealDisk(folder.absolute().parent).sync_folder("")
        make_private(folder, NAMES)
    except OSError as error:
        raise Invalid(f"{folder} cannot be used: {error.strerror}", field="path") from error
    return Ports(
        disk=RealDisk(folder),
        cells=lambda: LmdbCells(folder / "index", pace=LoopPacer(asyncio.get_running_loop())),
        io_thread=RealIoThread,
        now_ms=lambda: time.time_ns() // 1_000_000,
        chance=os.urandom,
        folder=folder.absolute(),
    )


class Node:
    """The engine of one process over one folder."""

    def __init__(self, ports: Ports, settings: Settings, lock: Lock) -> None:
        self._ports = ports
        self._settings = settings
        self._lock = lock
        self._switch_interval: SwitchIntervalLimit | None = None
        self._closed = False
        self.has_ended = False
        """True once the node was closed or given up and the folder is free."""
        self._secret = b""
        self.now_ms = ports.now_ms

    @classmethod
    async def open(cls, ports: Ports, settings: Settings, *, is_restoring: bool = False) -> Node:
        """Open a folder, creating it if it is missing.

        When this returns, everything that was ever acknowledged is there and is served.

        Raises:
            InUse: another process owns the folder; the error names its pid.
            Copied: the folder is a copy of another one.
            Corrupt: the folder is damaged; nothing was changed.
            Refused: the folder is an unfinished restore, and the caller is not restoring it.
        """
        if ports.disk.exists(RESTORING) and not is_restoring:
            raise Refused(
                "this folder is an unfinished restore: remove it, and restore again", field="path"
            )
        lock = ports.disk.lock("lock")
        node = cls(ports, settings, lock)
        with ExitStack() as begun:
            begun.callback(lock.release)
            await node._start(begun)
            begun.pop_all()
        return node

    async def _start(self, begun: ExitStack) -> None:
        """Start all components; `begun` stops those that were started if a later one fails."""
        ports, settings = self._ports, self._settings
        cells = ports.cells()
        begun.callback(cells.close)
        store = DiskStore.open(ports.disk, cells)
        following = read_archive_state(ports.disk)
        needed = store.needed_from()
        if following is not None:
            needed = min(needed, following.generation)
        replay = Replay(ports.disk, start=store.replay_mark(), needed_from=needed)
        begun.callback(replay.close)
        facts = dry_run(
            replay,
            store.applied,
            store.facts(),
            commits_when_synced=commits_when_synced,
            epoch=store.epoch,
        )
        is_fork = self._check_copy(facts.get(NODE))
        store.check_references({segment.generation for segment in replay.survey.used})
        # Up to here nothing was changed.
        shape = LogShape(
            segment_bytes=settings.segment_bytes,
            segments_max=settings.log_segments_max,
            segments_free=settings.log_segments_free,
        )
        log = WriteAheadLog.open(replay, shape, chance=ports.chance, clock=ports.clock)
        begun.callback(log.close)
        store.attach(log)
        recovery = Recovery(
            store.applied,
            store.facts(),
            store.fold,
            commits_when_synced=commits_when_synced,
            epoch=store.epoch,
        )
        recovery.read_all(replay.read_again())

        self.log, self.store = log, store
        self.read_thread = ports.io_thread("millrace-reading")
        self._log_thread = ports.io_thread("millrace-log")
        self._maintenance_thread = ports.io_thread("millrace-care")
        for io_thread in (self.read_thread, self._log_thread, self._maintenance_thread):
            begun.callback(io_thread.close)
        self.writer = LogWriter(log, self._log_thread, recovery.hand_over())
        epoch, history = await self._begin_epoch(recovery, forked=is_fork)
        journal = LocalJournal(LOCAL, epoch, history, Index(store.applied(LOCAL)), self.writer)
        self._commit_loop = CommitLoop(journal, store, ports.now_ms)
        schedule = CheckpointSchedule(
            settings.checkpoint_seconds,
            settings.checkpoint_log_bytes,
            settings.log_segments_unsealed,
        )
        self._dead_letter_mover = DeadLetterMover(self._commit_loop, store, self.read_thread)
        self.forwarder = TopicForwarder(
            self._commit_loop, store, self.read_thread, ports.now_ms, journal.record_bytes_max
        )
        self.supervisor = self._make_supervisor()
        self._checkpointer = Checkpointer(
            log,
            store,
            cells,
            self.writer,
            self._maintenance_thread,
            self._commit_loop,
            recovery.facts,
            schedule,
            ports.sleep,
            self.supervisor,
        )
        await self._found_catalog(epoch, history)
        self.forwarder.begin()
        if following is not None:
            self.supervisor.begin(following)
        if settings.switch_interval_seconds is not None:
            self._switch_interval = SwitchIntervalLimit(settings.switch_interval_seconds)
        self._checkpointer.start()

    def _make_supervisor(self) -> Supervisor:
        """Create the supervisor of archive, scrubbing and watermarks."""
        ports, settings = self._ports, self._settings
        held = settings.follow_held_bytes
        if held is None:
            held = settings.log_segments_max * settings.segment_bytes // limits.FOLLOW_HELD_SHARE
        return Supervisor(
            MaintenancePorts(
                ports.disk,
                ports.folder,
                ports.io_thread,
                ports.now_ms,
                ports.memory_used,
                ports.sleep,
            ),
            self.log,
            self.store,
            self._identity().hex(),
            MaintenanceSettings(
                settings.disk_low,
                settings.memory_high,
                held,
                ScrubPace(settings.scrub_bytes_per_second, int(settings.scrub_every * 1000)),
            ),
        )

    # --- Opening ----------------------------------------------------------------------------------

    def _check_copy(self, recorded: bytes | None) -> bool:
        """Return True if the folder is a copy, by its recorded identity; nothing is changed.

        Raises:
            Copied: it is a copy and was not opened as a fork.
        """
        disk = self._ports.disk
        forked = recorded is not None and not (
            disk.exists(IDENTITY) and self._identity() == recorded
        )
        if forked and not self._settings.fork:
            raise Copied(
                "this folder is a copy: two of them must not go on as one. Open it with fork=True "
                "to give it a history of its own, or open the original"
            )
        return forked

    async def _begin_epoch(self, recovery: Recovery, *, forked: bool) -> tuple[Epoch, History]:
        """Begin a new epoch of the local group, with a new history in a new or forked folder."""
        chance = self._ports.chance
        identity = self._identity()
        fact = recovery.facts.get(LOCAL)
        epoch, history = LOCAL_FACT.unpack(fact) if fact else (0, chance(16))
        if forked:
            history = chance(16)
        epoch += 1
        recovery.facts[NODE] = identity
        recovery.facts[LOCAL] = LOCAL_FACT.pack(epoch, history)
        await self._write_facts(recovery.facts, Epoch(epoch), History(history))
        return Epoch(epoch), History(history)

    def _identity(self) -> bytes:
        disk = self._ports.disk
        if not disk.exists(IDENTITY):
            file = disk.create(IDENTITY)
            file.write([self._ports.chance(16).hex().encode()], 0)
            file.sync_all()
            file.close()
            disk.sync_folder("")
        inode, birth = disk.identity(IDENTITY)
        return NODE_FACT.pack(inode & (2**64 - 1), birth & (2**64 - 1))

    async def _write_facts(
        self, facts: dict[GroupId, bytes], epoch: Epoch, history: History
    ) -> None:
        """Sync the node's facts before any request is served (L6)."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def synced(entry: Entry, position: LogPosition) -> None:
            if entry.group == LOCAL:
                done.set_result(None)

        def failed(error: MillraceError) -> None:
            if not done.done():
                done.set_exception(error)

        for group in (NODE, LOCAL):
            entry = Entry(
                group, epoch, Index(0), history, [], kind=EntryKind.FACT, fact=facts[group]
            )
            self.writer.submit(entry, synced, failed, alone=False, reserve=True)
        await done

    async def _found_catalog(self, epoch: Epoch, history: History) -> None:
        if self.store.meta(CATALOG) is None:
            self._commit_loop.adopt(View(CATALOG, epoch, history))
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._commit_loop.submit(
            CommandRequest(CATALOG, InitCatalog(self._ports.chance(32)), future)
        )
        catalog = await future
        if not isinstance(catalog, CatalogCell):
            raise Fatal(f"the catalog answered {catalog!r}")
        self._secret = catalog.secret

    # --- Queries ----------------------------------------------------------------------------------

    def commit_loop_of(self, shard: ShardId) -> CommitLoop:
        """Return the commit loop that decides for a shard."""
        return self._commit_loop

    def find_queue(self, space: str, name: str) -> QueueRef | None:
        """Look up a committed queue; None if there is none."""
        value = self.store.cell(CATALOG, Kind.QUEUE, queue_key(space, name))
        cell = decode_cell(Kind.QUEUE, value) if value is not None else None
        if not isinstance(cell, QueueCell):
            return None
        shards = tuple(map(ShardId, cell.shards))
        return QueueRef(
            shards, made=False, route=cell.route, ids=cell.ids, placed_by=cell.placed_by
        )

    def queue_names(self, space: str) -> list[str]:
        """Return the names of the committed queues of a space."""
        prefix = queue_key(space, "")
        cells = self.store.cells(CATALOG, Kind.QUEUE, prefix)
        return sorted(key[len(prefix) :].decode() for _, key, _ in cells)

    def spaces(self) -> list[str]:
        """Return the spaces with committed queues or topics."""
        kinds = (Kind.QUEUE, Kind.TOPIC)
        cells = (cell for kind in kinds for cell in self.store.cells(CATALOG, kind))
        return sorted({key.partition(b"\0")[0].decode() for _, key, _ in cells})

    def find_topic(self, space: str, name: str) -> ShardId | None:
        """Look up the shard of a committed topic; None if there is none."""
        value = self.store.cell(CATALOG, Kind.TOPIC, queue_key(space, name))
        cell = decode_cell(Kind.TOPIC, value) if value is not None else None
        return ShardId(cell.shard) if isinstance(cell, TopicCell) else None

    def topic_names(self, space: str) -> list[str]:
        """Return the names of the committed topics of a space."""
        prefix = queue_key(space, "")
        cells = self.store.cells(CATALOG, Kind.TOPIC, prefix)
        return sorted(key[len(prefix) :].decode() for _, key, _ in cells)

    def chance(self, size: int) -> bytes:
        """Return `size` random bytes, which only the simulator can predict."""
        return self._ports.chance(size)

    def seal(self, receipt: Receipt) -> str:
        """Encode and sign a receipt."""
        return seal(receipt, self._secret)

    def unseal(self, text: str) -> Receipt:
        """Decode a receipt and verify its signature."""
        plain = plain_types.text(text)
        if plain is None:
            raise Forged("a receipt is text", field="receipt")
        return unseal(plain, self._secret)

    def prove(self, shard: int, history: bytes, number: int, *, session: bool) -> bytes:
        """Return the proof of the number of a lease call or session."""
        return prove(shard, history, number, self._secret, session=session)

    @property
    def checkpointer(self) -> Checkpointer:
        """The checkpointer of the WAL and store."""
        return self._checkpointer

    # --- Closing ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish accepted requests, write a checkpoint, mark the end of the log, and release the
        folder."""
        if self._closed:
            return
        self._closed = True
        async with AsyncExitStack() as ending:
            # In reverse order of the start; an error in one step does not prevent the others.
            if self._switch_interval is not None:
                ending.callback(self._switch_interval.end)
            ending.callback(self._unlock)
            ending.callback(self.store.close)
            for io_thread in (self.read_thread, self._log_thread, self._maintenance_thread):
                ending.callback(io_thread.close)
            ending.push_async_callback(self._close_log)
            ending.callback(self.writer.close)
            ending.push_async_callback(self.supervisor.stop)
            ending.push_async_callback(self._checkpointer.stop)
            ending.push_async_callback(self._commit_loop.stop)
            ending.push_async_callback(self._dead_letter_mover.stop)
            await self.forwarder.stop()

    def give_up(self) -> None:
        """Release the folder as a crash would, when the event loop is closed and nothing can be
        awaited.

        Acknowledged data is in the log, which the next open replays. Must not be called on an I/O
        thread.
        """
        if self.has_ended:
            return
        self._closed = True
        with ExitStack() as ending:
            if self._switch_interval is not None:
                ending.callback(self._switch_interval.end)
            ending.callback(self._unlock)
            ending.callback(self.store.close)
            ending.callback(self.log.close)
            # First of all, the threads finish what they have begun.
            for io_thread in (self.read_thread, self._log_thread, self._maintenance_thread):
                ending.callback(io_thread.close)
            ending.callback(self.supervisor.abort)

    def _unlock(self) -> None:
        self._lock.release()
        self.has_ended = True

    async def _close_log(self) -> None:
        await self._log_thread.submit(self.log.close)
