"""Stores under test: a store, what feeds it, and what must go unnoticed by whoever asks it.

`DiskSubject` runs the shipped log and store over any disk and any cells. Each of its disturbances
(checkpoint, seal, reopen, crash) changes where things lie, and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from millrace import limits
from millrace.core.changes import Entry, EntryKind
from millrace.core.format.codec import decode_entries, encode_entry
from millrace.core.model import Epoch, GroupId, History, Index
from millrace.store.base import Store
from millrace.store.cells import Cells
from millrace.store.checkpoint import FrozenState
from millrace.store.disk_store import DiskStore
from millrace.store.memory_cells import MemoryCells
from millrace.store.memory_store import MemoryStore
from millrace.store.seal import SealPlan, SealResult
from millrace.wal.disk import Disk
from millrace.wal.replay import Replay
from millrace.wal.segment import LogShape
from millrace.wal.write_ahead_log import WriteAheadLog
from tests.support.simulator.disk import SimDisk

SEGMENT_BYTES = 512 * 1024


class Subject(Protocol):
    """A store that is fed with entries."""

    @property
    def store(self) -> Store:
        """The store as it is now; another object after it was reopened."""
        ...

    def feed(self, entry: Entry) -> None:
        """Let the store fold the next entry."""
        ...

    def disturb(self, how: int) -> None:
        """Do something that no question may notice; the same number does the same thing."""
        ...

    def close(self) -> None:
        """End."""
        ...


class MemorySubject:
    """The naive twin: nothing can disturb it."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    def feed(self, entry: Entry) -> None:
        self.store.fold(entry, None)

    def disturb(self, how: int) -> None:
        pass

    def close(self) -> None:
        pass


class DiskSubject:
    """The store on disk, with its log."""

    def __init__(
        self,
        disk: Disk,
        open_cells: Callable[[], Cells],
        *,
        shape: LogShape | None = None,
        seed: int = 0,
    ) -> None:
        self.disk = disk
        self._open_cells = open_cells
        self._shape = shape or LogShape(
            segment_bytes=SEGMENT_BYTES, segments_max=64, segments_free=2, segments_reserve=1
        )
        self._chance = random.Random(seed)
        self.store: DiskStore
        self.log: WriteAheadLog
        self.open()

    # --- Life ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open log and store as a node does: index, replay, attach, fold."""
        self._frozen: FrozenState | None = None
        self._is_written = False
        self._plan: SealPlan | None = None
        self._result: SealResult | None = None
        self.cells = self._open_cells()
        self.store = DiskStore.open(self.disk, self.cells)
        replay = Replay(
            self.disk, start=self.store.replay_mark(), needed_from=self.store.needed_from()
        )
        records = [
            (entry, position) for position, payload in replay for entry in decode_entries(payload)
        ]
        self.log = WriteAheadLog.open(replay, self._shape, chance=self._chance.randbytes)
        self.store.attach(self.log)
        for entry, position in records:
            if entry.kind is EntryKind.DATA:
                self.store.fold(entry, position)

    def close(self) -> None:
        self.log.close()
        self.store.close()

    def reopen(self) -> None:
        """End properly, and begin again."""
        self.close()
        self.open()

    # --- What happens to it ----------------------------------------------------------------------

    def feed(self, entry: Entry) -> None:
        while self.log.prepare():
            pass
        position = self.log.append(encode_entry(entry, 0))
        self.store.fold(entry, position)

    def checkpoint(self) -> None:
        """Checkpoint the whole log, and recycle segments that are no longer needed."""
        self.settle()
        for _ in range(3):
            self.step_checkpoint()

    def step_checkpoint(self) -> None:
        """Freeze, write or thaw, whatever comes next; batches may be folded in between."""
        if self._frozen is None:
            self._frozen = self.store.freeze(self.log.mark(), {})
        elif not self._is_written:
            self.store.write(self._frozen)
            self._is_written = True
        else:
            self.store.thaw(self._frozen)
            self._frozen, self._is_written = None, False
            self.log.release_before(self.store.needed_from())

    def seal(self, *, everything: bool = True) -> bool:
        """One pass, and the checkpoint that makes it count."""
        self.settle()
        self.step_seal(everything=everything)
        if self._plan is None:
            return False
        self.checkpoint()
        return True

    def step_seal(self, *, everything: bool = True) -> None:
        """Plan, run or finish, whatever comes next; batches may be folded in between."""
        if self._plan is None:
            self._plan = self.store.plan_seal(everything=everything)
        elif self._result is None:
            self._result = self.store.run_seal(self._plan)
        else:
            self.store.finish_seal(self._result)
            self._plan = self._result = None

    def settle(self) -> None:
        """Finish the started work."""
        while self._plan is not None:
            self.step_seal()
        while self._frozen is not None:
            self.step_checkpoint()

    def seal_all(self) -> None:
        """Empty the log as far as possible."""
        self.turn_over()
        self.checkpoint()
        while self.seal():
            pass

    def turn_over(self) -> None:
        """Begin a new segment, so that the one before counts as full."""
        filler = Entry(
            GroupId(0),
            Epoch(0),
            Index(0),
            History(bytes(16)),
            [],
            kind=EntryKind.FACT,
            fact=bytes(self.log.record_bytes_max - limits.SECTOR_BYTES),
        )
        generation = self.log.mark().generation
        while self.log.mark().generation == generation:
            while self.log.prepare():
                pass
            self.log.append(encode_entry(filler, 0))

    def disturb(self, how: int) -> None:
        match how % 8:
            case 0 | 1:
                self.checkpoint()
            case 2:
                self.turn_over()
            case 3:
                self.seal(everything=False)
            case 4:
                self.seal_all()
            case 5:
                self.reopen()
            case 6:
                self.half_checkpoint(how)
            case _:
                self.half_seal()

    def half_checkpoint(self, how: int) -> None:
        """Freeze, perhaps write, and then lose the process before it is thawed."""
        self.settle()
        self.step_checkpoint()
        if how // 8 % 2:
            self.step_checkpoint()
        self.reopen()

    def half_seal(self) -> None:
        """Copy rows, and lose the process before their new locations are applied."""
        self.settle()
        self.step_seal()
        if self._plan is not None:
            self.step_seal()
            self.reopen()


def simulated(seed: int = 0) -> DiskSubject:
    """A store over a simulated disk and cells in memory."""
    image = MemoryCells().image()
    last: list[MemoryCells] = []

    def open_cells() -> Cells:
        cells = MemoryCells(last[-1].image() if last else image)
        last[:] = [cells]
        return cells

    return DiskSubject(SimDisk(random.Random(seed)), open_cells, seed=seed)
