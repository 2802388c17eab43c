"""The composition root: settings → a running node. Alone in naming concrete classes.

Opening a folder: take its lock, load the index, read the log from the mark that the index names,
see that both belong together and to this folder; only then change anything. Read the log again and
fold what is committed, begin a new epoch, and only then serve anyone.
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

from millrace.core import exact
from millrace.core.answers import QueueRef
from millrace.core.catalog import queue_key
from millrace.core.changes import Entry, EntryKind
from millrace.core.codec import decode_cell
from millrace.core.commands import Found
from millrace.core.model import (
    CATALOG,
    CatalogCell,
    Epoch,
    GroupId,
    History,
    Index,
    Kind,
    QueueCell,
    ShardId,
)
from millrace.core.receipt import Receipt, prove, seal, unseal
from millrace.core.topic_cells import TopicCell
from millrace.core.view import View
from millrace.engine.checkpointer import Checkpointer, Pace
from millrace.engine.commit_loop import CommitLoop
from millrace.engine.dead_letter_mover import DeadLetterMover
from millrace.engine.request import Request
from millrace.engine.topic_forwarder import TopicForwarder
from millrace.errors import Copied, Fatal, Forged, Invalid, MillraceError, Refused
from millrace.journal.local import LOCAL as LOCAL
from millrace.journal.local import LocalJournal
from millrace.journal.recovery import Recovery, rehearse
from millrace.journal.writer import LogWriter
from millrace.maintenance import bounds
from millrace.maintenance.restore import RESTORING
from millrace.maintenance.scrub import Pace as ScrubPace
from millrace.maintenance.supervisor import Duties, Means, Supervisor
from millrace.maintenance.wal_archiver import read_following
from millrace.maintenance.watermarks import memory_used
from millrace.settings import Settings
from millrace.store.cells import Cells
from millrace.store.disk import DiskStore
from millrace.store.lmdb_cells import LmdbCells
from millrace.store.pace import LoopPace
from millrace.wal.file_modes import make_private
from millrace.wal.files import (
    Disk,
    Lock,
    RealDisk,
    make_folders,
)
from millrace.wal.io_thread import IoThread, RealIoThread
from millrace.wal.record import Position
from millrace.wal.replay import Replay
from millrace.wal.segment import LogShape
from millrace.wal.switch_interval import Turns
from millrace.wal.write_ahead_log import Log

NODE = GroupId(0xFFFF_FFFF)
"""Facts under this group are the node's own: the identity of its folder."""

LOCAL_FACT = struct.Struct("<Q16s")
"""The fact of the local group: epoch and history."""

IDENTITY = "identity"
"""The file whose inode and birth tell the folder from its copies."""

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
"""What an engine makes in its folder, and closes to other users when it opens one. Files with a
secret are not among them: one that others could read is refused, not repaired."""

NODE_FACT = struct.Struct("<QQ")
"""The fact of the node: inode and birth time of the identity file."""


def commits_when_synced(group: GroupId) -> bool:
    """The local journal does; the others say in the log what is committed."""
    return group == LOCAL


@dataclass(frozen=True, slots=True)
class Ports:
    """What a node reaches the world through; the simulator brings its own."""

    disk: Disk
    cells: Callable[[], Cells]
    lane: Callable[[str], IoThread]
    now_ms: Callable[[], int]
    chance: Callable[[int], bytes]
    clock: Callable[[], float] = time.perf_counter
    """Measures how long syncs take."""
    sleep: Callable[[float], None] = time.sleep
    """Lets work on a lane rest for so many seconds."""
    memory_used: Callable[[], int] = memory_used
    """Bytes of memory that the process holds."""
    folder: Path | None = None
    """Where the disk's root lies on this machine, for those who link its files."""


def real_ports(folder: Path) -> Ports:
    """The machine's own disk, threads, clock and chance.

    The folder is made if it is missing. One that is there is closed to other users.
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
        cells=lambda: LmdbCells(folder / "index", pace=LoopPace(asyncio.get_running_loop())),
        lane=RealIoThread,
        now_ms=lambda: time.time_ns() // 1_000_000,
        chance=os.urandom,
        folder=folder.absolute(),
    )


class Node:
    """One process's engine over one folder."""

    def __init__(self, ports: Ports, settings: Settings, lock: Lock) -> None:
        self._ports = ports
        self._settings = settings
        self._lock = lock
        self._turns: Turns | None = None
        self._closed = False
        self.has_ended = False
        """It was closed, or given up, and the folder is free."""
        self._secret = b""
        self.now_ms = ports.now_ms

    @classmethod
    async def open(cls, ports: Ports, settings: Settings, *, is_restoring: bool = False) -> Node:
        """Open the folder, making it if it is missing.

        When this returns, everything that was ever acknowledged is there, and it is served.

        Raises:
            InUse: another process owns it; the error names its pid.
            Copied: it is a copy of another folder.
            Corrupt: it is damaged; nothing was changed.
            Refused: it is an unfinished restore, and not opened by the one who restores.
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
        """Begin everything; `begun` ends what was begun, in case the rest fails."""
        ports, settings = self._ports, self._settings
        cells = ports.cells()
        begun.callback(cells.close)
        store = DiskStore.open(ports.disk, cells)
        following = read_following(ports.disk)
        needed = store.needed_from()
        if following is not None:
            needed = min(needed, following.generation)
        replay = Replay(ports.disk, start=store.replay_mark(), needed_from=needed)
        begun.callback(replay.close)
        facts = rehearse(
            replay, store.applied, store.facts(), commits_when_synced=commits_when_synced
        )
        is_fork = self._check_copy(facts.get(NODE))
        store.check_homes({segment.generation for segment in replay.survey.used})
        # Up to here nothing was changed.
        shape = LogShape(
            segment_bytes=settings.segment_bytes,
            segments_max=settings.log_segments_max,
            segments_free=settings.log_segments_free,
        )
        log = Log.open(replay, shape, chance=ports.chance, clock=ports.clock)
        begun.callback(log.close)
        store.attach(log)
        recovery = Recovery(
            store.applied, store.facts(), store.fold, commits_when_synced=commits_when_synced
        )
        recovery.read_all(replay.again())

        self.log, self.store = log, store
        self.reading = ports.lane("millrace-reading")
        self._writing = ports.lane("millrace-log")
        self._caring = ports.lane("millrace-care")
        for lane in (self.reading, self._writing, self._caring):
            begun.callback(lane.close)
        self.writer = LogWriter(log, self._writing, recovery.hand_over())
        epoch, history = await self._begin_epoch(recovery, forked=is_fork)
        journal = LocalJournal(LOCAL, epoch, history, Index(store.applied(LOCAL)), self.writer)
        self._host = CommitLoop(journal, store, ports.now_ms)
        pace = Pace(
            settings.checkpoint_seconds,
            settings.checkpoint_log_bytes,
            settings.log_segments_unsealed,
        )
        self._mover = DeadLetterMover(self._host, store, self.reading)
        self.forwarder = TopicForwarder(
            self._host, store, self.reading, ports.now_ms, journal.record_bytes_max
        )
        self.warden = self._make_warden()
        self._keeper = Checkpointer(
            log,
            store,
            cells,
            self.writer,
            self._caring,
            self._host,
            recovery.facts,
            pace,
            ports.sleep,
            self.warden,
        )
        await self._found_catalog(epoch, history)
        self.forwarder.begin()
        if following is not None:
            self.warden.begin(following)
        if settings.switch_interval_seconds is not None:
            self._turns = Turns(settings.switch_interval_seconds)
        self._keeper.start()

    def _make_warden(self) -> Supervisor:
        """Have archive, scrubbing and watermarks looked after."""
        ports, settings = self._ports, self._settings
        held = settings.follow_held_bytes
        if held is None:
            held = settings.log_segments_max * settings.segment_bytes // bounds.FOLLOW_HELD_SHARE
        return Supervisor(
            Means(
                ports.disk, ports.folder, ports.lane, ports.now_ms, ports.memory_used, ports.sleep
            ),
            self.log,
            self.store,
            self._identity().hex(),
            Duties(
                settings.disk_low,
                settings.memory_high,
                held,
                ScrubPace(settings.scrub_bytes_per_second, int(settings.scrub_every * 1000)),
            ),
        )

    # --- Beginnings -----------------------------------------------------------------------------

    def _check_copy(self, known: bytes | None) -> bool:
        """Whether the folder is a copy, by the identity that it knew; changes nothing.

        Raises:
            Copied: it is one, and was not opened as a fork.
        """
        disk = self._ports.disk
        forked = known is not None and not (disk.exists(IDENTITY) and self._identity() == known)
        if forked and not self._settings.fork:
            raise Copied(
                "this folder is a copy: two of them must not go on as one. Open it with fork=True "
                "to give it a history of its own, or open the original"
            )
        return forked

    async def _begin_epoch(self, recovery: Recovery, *, forked: bool) -> tuple[Epoch, History]:
        """A new epoch for the local group, and a new history for a new or forked folder."""
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
        """What the node must not forget is synced before anyone is served (L6)."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def synced(entry: Entry, position: Position) -> None:
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
            self._host.adopt(View(CATALOG, epoch, history))
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._host.submit(Request(CATALOG, Found(self._ports.chance(32)), future))
        catalog = await future
        if not isinstance(catalog, CatalogCell):
            raise Fatal(f"the catalog answered {catalog!r}")
        self._secret = catalog.secret

    # --- What the engine asks -------------------------------------------------------------------

    def host_of(self, shard: ShardId) -> CommitLoop:
        """The host that decides for a shard."""
        return self._host

    def find_queue(self, space: str, name: str) -> QueueRef | None:
        """Where a queue is, as far as it is committed."""
        value = self.store.cell(CATALOG, Kind.QUEUE, queue_key(space, name))
        found = decode_cell(Kind.QUEUE, value) if value is not None else None
        if not isinstance(found, QueueCell):
            return None
        shards = tuple(map(ShardId, found.shards))
        return QueueRef(shards, made=False, route=found.route, ids=found.ids)

    def queue_names(self, space: str) -> list[str]:
        """The names of a space's queues, as far as they are committed."""
        prefix = queue_key(space, "")
        found = self.store.cells(CATALOG, Kind.QUEUE, prefix)
        return sorted(key[len(prefix) :].decode() for _, key, _ in found)

    def spaces(self) -> list[str]:
        """The spaces that hold queues or topics, as far as they are committed."""
        kinds = (Kind.QUEUE, Kind.TOPIC)
        found = (cell for kind in kinds for cell in self.store.cells(CATALOG, kind))
        return sorted({key.partition(b"\0")[0].decode() for _, key, _ in found})

    def find_topic(self, space: str, name: str) -> ShardId | None:
        """The shard of a topic, as far as it is committed."""
        value = self.store.cell(CATALOG, Kind.TOPIC, queue_key(space, name))
        found = decode_cell(Kind.TOPIC, value) if value is not None else None
        return ShardId(found.shard) if isinstance(found, TopicCell) else None

    def topic_names(self, space: str) -> list[str]:
        """The names of a space's topics, as far as they are committed."""
        prefix = queue_key(space, "")
        found = self.store.cells(CATALOG, Kind.TOPIC, prefix)
        return sorted(key[len(prefix) :].decode() for _, key, _ in found)

    def chance(self, size: int) -> bytes:
        """So many bytes that nobody can foresee, but the simulator."""
        return self._ports.chance(size)

    def seal(self, receipt: Receipt) -> str:
        """The receipt as text."""
        return seal(receipt, self._secret)

    def unseal(self, text: str) -> Receipt:
        """The receipt behind the text."""
        plain = exact.text(text)
        if plain is None:
            raise Forged("a receipt is text", field="receipt")
        return unseal(plain, self._secret)

    def prove(self, shard: int, history: bytes, number: int, *, session: bool) -> bytes:
        """What proves a lease call, or a session."""
        return prove(shard, history, number, self._secret, session=session)

    @property
    def keeper(self) -> Checkpointer:
        """Who looks after log and store."""
        return self._keeper

    # --- The end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish what was accepted, checkpoint, mark the log's end, let the folder go."""
        if self._closed:
            return
        self._closed = True
        async with AsyncExitStack() as ending:
            # From the last to the first; what fails does not keep the rest from being ended.
            if self._turns is not None:
                ending.callback(self._turns.end)
            ending.callback(self._let_go)
            ending.callback(self.store.close)
            for lane in (self.reading, self._writing, self._caring):
                ending.callback(lane.close)
            ending.push_async_callback(self._close_log)
            ending.callback(self.writer.close)
            ending.push_async_callback(self.warden.stop)
            ending.push_async_callback(self._keeper.stop)
            ending.push_async_callback(self._host.stop)
            ending.push_async_callback(self._mover.stop)
            await self.forwarder.stop()

    def give_up(self) -> None:
        """Let the folder go as a crash would: its event loop is closed, and nothing can be awaited.

        What was acknowledged is in the log; the next open reads it there. Not on a lane's thread.
        """
        if self.has_ended:
            return
        self._closed = True
        with ExitStack() as ending:
            if self._turns is not None:
                ending.callback(self._turns.end)
            ending.callback(self._let_go)
            ending.callback(self.store.close)
            ending.callback(self.log.close)
            # Before all else: what they have begun is done to the end.
            for lane in (self.reading, self._writing, self._caring):
                ending.callback(lane.close)
            ending.callback(self.warden.give_up)

    def _let_go(self) -> None:
        self._lock.release()
        self.has_ended = True

    async def _close_log(self) -> None:
        await self._writing.submit(self.log.close)
