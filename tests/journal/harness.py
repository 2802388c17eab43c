"""A node's log with several groups on it, and the naive store that they fold into.

Everything runs in one thread on virtual time. The lane runs work when the loop comes around to it,
or, while it is held, when the test says so.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import count, repeat
from typing import Any, TypeVar

from millrace.core.changes import Entry, EntryKind
from millrace.core.format.codec import decode_entries, encode_entry
from millrace.core.model import Epoch, GroupId, History, Index
from millrace.journal.local import LocalJournal
from millrace.journal.log_writer import LogWriter
from millrace.journal.recovery import Recovery
from millrace.store.memory_store import MemoryStore
from millrace.wal.record import LogMark, LogPosition
from millrace.wal.replay import Replay
from millrace.wal.segment import LogShape
from millrace.wal.write_ahead_log import WriteAheadLog
from tests.support.contracts.check_journal import body_of
from tests.support.contracts.late_journal import LateJournal
from tests.support.simulator.clock import SimClock
from tests.support.simulator.disk import SimDisk
from tests.support.simulator.event_loop import SimLoop

T = TypeVar("T")

LOCAL = GroupId(0)
"""Commits when synced."""

A, B = GroupId(1), GroupId(2)
"""Commit late."""

JUNK = GroupId(99)
"""What fills the log, and means nothing."""

HISTORY = History(b"history of tests")

KIB = 1024

TURNS_MAX = 10_000
"""Turns of the loop after which something is taken to go on for ever."""

SHAPE = LogShape(
    segment_bytes=256 * KIB,
    segments_max=8,
    segments_free=1,
    segments_reserve=2,
    held_bytes_max=KIB * KIB,
)


def run(main: Coroutine[Any, Any, T], *, unhandled: Sequence[str] = ()) -> T:
    """Run on virtual time; what nobody handled must be just this."""
    loop = SimLoop(SimClock())
    try:
        result = loop.run(main)
        # The error of a future that is never awaited is reported when it is freed.
        gc.collect()
        assert len(loop.failures) == len(unhandled), loop.failures
        for found, expected in zip(loop.failures, unhandled, strict=True):
            assert expected in found
        return result
    finally:
        loop.close()


class HeldIoThread:
    """Runs work on the loop's thread, later; while it is held, only by `step`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], None]] = deque()
        self.is_held = False

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001
                future.set_exception(error)
            else:
                future.set_result(result)

        self._waiting.append(run)
        if not self.is_held:
            self._loop.call_soon(self._run)
        return future

    def step(self) -> None:
        """Run the oldest piece of work that waits."""
        self._waiting.popleft()()

    def release(self) -> None:
        """Hold nothing any more."""
        self.is_held = False
        for _ in self._waiting:
            self._loop.call_soon(self._run)

    def waits(self) -> bool:
        """Return True if there is work that was not done."""
        return bool(self._waiting)

    def close(self) -> None:
        self.is_held = True
        self._waiting.clear()

    def _run(self) -> None:
        if self._waiting and not self.is_held:
            self.step()


@dataclass
class Ledger:
    """A store that only remembers which entries it folded."""

    folded: dict[GroupId, list[tuple[Index, Epoch, bytes]]] = field(default_factory=dict)

    def fold(self, entry: Entry, position: LogPosition) -> None:
        assert entry.index == self.applied(entry.group) + 1, "each entry once, in order"
        self.folded.setdefault(entry.group, []).append((entry.index, entry.epoch, body_of(entry)))

    def applied(self, group: GroupId) -> Index:
        return Index(len(self.folded.get(group, [])))

    def bodies(self, group: GroupId) -> list[bytes]:
        return [body for _, _, body in self.folded.get(group, [])]


@dataclass
class Image:
    """A checkpoint: the folded state, and the mark of replay."""

    ledger: Ledger
    mark: LogMark
    facts: dict[GroupId, bytes]


class World:
    """One life of a node; `reopen` begins the next one on the remaining disk."""

    def __init__(
        self,
        disk: SimDisk,
        image: Image | None = None,
        shape: LogShape = SHAPE,
        *,
        store: MemoryStore | None = None,
        is_quick: bool | None = None,
    ) -> None:
        """Syncs are quick enough for the loop, unless there is a store: then every entry is to wait
        for the lane."""
        self.disk = disk
        self.image = image
        self.shape = shape
        self.lane = HeldIoThread()
        self.ledger = copy.deepcopy(image.ledger) if image else Ledger()
        self.store = store
        """A real store in the ledger's place; it has no checkpoints, and is filled by replay."""
        start = image.mark if image else None
        replay = Replay(disk, start=start, needed_from=start.generation if start else 0)
        records = [(position, bytes(payload)) for position, payload in replay]
        chance = random.Random(replay.survey.generation)
        clock = repeat(0.0) if is_quick or (is_quick is None and store is None) else count(0.0)
        self.log = WriteAheadLog.open(replay, shape, chance=chance.randbytes, clock=clock.__next__)
        self.recovery = Recovery(
            self.applied,
            image.facts if image else {},
            self.fold,
            commits_when_synced=lambda group: group == LOCAL,
            epoch=self.epoch,
        )
        for position, payload in records:
            for entry in decode_entries(memoryview(payload)):
                self.recovery.read(entry, position)
        self.writer = LogWriter(self.log, self.lane, self.recovery.hand_over())
        self.dropped: list[tuple[GroupId, int]] = []
        self.failed: list[GroupId] = []

    def fold(self, entry: Entry, position: LogPosition) -> None:
        """Into the ledger; what lies at the place must be the entry."""
        if self.store is not None:
            self.store.fold(entry, position)
            return
        found = self.log.buffer(position)
        assert found is not None, "its place was recycled"
        same = [
            other
            for other in decode_entries(found)
            if other.kind is EntryKind.DATA
            and (other.group, other.index, other.epoch) == (entry.group, entry.index, entry.epoch)
        ]
        assert [body_of(other) for other in same] == [body_of(entry)]
        assert [batch.places for batch in same[0].batches] == [
            batch.places for batch in entry.batches
        ]
        self.ledger.fold(entry, position)

    def applied(self, group: GroupId) -> Index:
        return (self.store or self.ledger).applied(group)

    def epoch(self, group: GroupId) -> Epoch:
        """Return the epoch of the group's last entry in the ledger."""
        folded = self.ledger.folded.get(group)
        return folded[-1][1] if folded else Epoch(0)

    def local(self, epoch: int = 1) -> LocalJournal:
        """The local group's journal, with the ledger listening."""
        journal = LocalJournal(LOCAL, Epoch(epoch), HISTORY, self.applied(LOCAL), self.writer)
        self._listen(journal)
        return journal

    def late(self, group: GroupId, epoch: int = 1) -> LateJournal:
        """A late group's journal, with the ledger listening."""
        journal = LateJournal(group, Epoch(epoch), HISTORY, self.applied(group), self.writer)
        self._listen(journal)
        return journal

    def _listen(self, journal: LocalJournal | LateJournal) -> None:
        group = journal.group
        journal.listen(
            self.fold,
            lambda first, _: self.dropped.append((group, first)),
            lambda _: self.failed.append(group),
        )

    async def settle(self) -> None:
        """Until nothing is being written."""
        self.lane.release()
        for _ in range(TURNS_MAX):
            if not self.writer.busy and not self.lane.waits():
                return
            await asyncio.sleep(0)
        raise AssertionError("it is being written for ever")

    async def turn(self) -> None:
        """Let the loop do what it can without the lane."""
        for _ in range(5):
            await asyncio.sleep(0)

    def checkpoint(self) -> None:
        """Checkpoint as the checkpointer does: sync the image, then recycle segments."""
        self.image = Image(
            copy.deepcopy(self.ledger), self.writer.replay_mark(), dict(self.writer.suffixes.facts)
        )
        self.log.release_before(self.image.mark.generation)

    def prepare(self) -> None:
        """Have segments ready, as the checkpointer does."""
        while self.log.prepare():
            pass

    def fill(self, spare: int = 8 * KIB) -> None:
        """Leave no more room than `spare`, but for the reserve."""
        while (room := self.log.room(reserve=False)) > spare:
            self.log.append(junk(min(room - spare, self.shape.segment_bytes // 4) - 128))

    def turn_over(self, generations: int = 1) -> None:
        """Write until `count` segments were begun."""
        until = self.log.mark().generation + generations
        while self.log.mark().generation < until:
            self.log.prepare()
            self.log.append(junk(self.shape.segment_bytes // 3), reserve=True)

    def end(self, *, power: bool) -> World:
        """Lose the process, or the power with it, and open again."""
        self.lane.close()
        self.writer.close()
        disk = self.disk.crash() if power else self.disk.kill()
        store = MemoryStore() if self.store is not None else None
        return World(disk, self.image, self.shape, store=store)

    def survivors(self) -> list[Entry]:
        """The entries that a loss of power now would leave in the log."""
        start = self.image.mark if self.image else None
        replay = Replay(
            copy.deepcopy(self.disk).crash(),
            start=start,
            needed_from=start.generation if start else 0,
        )
        return [entry for _, payload in replay for entry in decode_entries(payload)]


def new_world(seed: int = 0, shape: LogShape = SHAPE) -> World:
    return World(SimDisk(random.Random(seed)), shape=shape)


def junk(size: int) -> list[bytes]:
    """A record that means nothing to anyone."""
    entry = Entry(
        JUNK, Epoch(1), Index(0), HISTORY, [], kind=EntryKind.FACT, fact=bytes(max(size, 8))
    )
    return [bytes(buffer) for buffer in encode_entry(entry, 0)]
