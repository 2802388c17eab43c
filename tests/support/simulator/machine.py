"""The simulated machine: disk, index, clock and I/O threads, and their faults.

Rule 1: everything that goes wrong is drawn from the seed, each kind from a source of its own, so
that a change in one does not shift the others.
Rule 2: a machine may end between any two effects: writes, syncs, changes of names, commits of the
index. What still runs while the process is taken apart reaches nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, repeat

from millrace.errors import MillraceError
from millrace.node import LOCAL, Ports
from millrace.settings import Settings
from millrace.store.cells import Writes
from millrace.store.memory_cells import Image, MemoryCells, Room
from tests.support.checkers.history import History
from tests.support.checkers.ledger import Ledger, LedgerDisk
from tests.support.simulator.clock import SimClock
from tests.support.simulator.disk import Crashed, Effect, SimDisk
from tests.support.simulator.event_loop import SimLoop
from tests.support.simulator.io_threads import IoDelay, SimIoThread, SteppedThreads


class Fault(Enum):
    """Faults that a run may inject; each run draws its own subset."""

    CRASH = "crash"
    CRASH_AGAIN = "crash again"
    """While recovering from a crash."""
    FAILED_WRITE = "failed write"
    FAILED_SYNC = "failed sync"
    FAILED_COMMIT = "failed commit"
    FULL_DISK = "full disk"
    CLOCK = "clock"
    SLOW = "slow"
    INTERLEAVE = "interleave"
    """Lanes are interrupted between two effects."""
    FLIP = "flip"
    SETTINGS = "other settings"
    """Each life has its own."""
    UNREADABLE = "unreadable block"
    """A client writes blocks that nobody can read."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of a run."""

    faults: frozenset[Fault]
    settings: Settings
    pace: IoDelay
    effects_per_life: int

    def has(self, fault: Fault) -> bool:
        return fault in self.faults


def draw_plan(seed: int) -> Plan:
    """The set-up of the run with this seed."""
    chance = random.Random(f"{seed}/plan")
    faults: frozenset[Fault] = frozenset(
        fault
        for fault in Fault
        if fault is not Fault.UNREADABLE
        and chance.random() < (0.8 if fault is Fault.CRASH else 0.5)
    )
    if random.Random(f"{seed}/unreadable").random() < 0.5:
        faults |= {Fault.UNREADABLE}
    settings = draw_settings(chance)
    slow = Fault.SLOW in faults
    pace = IoDelay(
        usual=chance.choice([0.0, 0.0005, 0.005]),
        slow=chance.choice([0.05, 0.5]) if slow else 0.02,
        slow_share=chance.choice([0.02, 0.2]) if slow else 0.01,
        is_stepped=Fault.INTERLEAVE in faults,
    )
    return Plan(faults, settings, pace, chance.choice([60, 300, 1000]))


def draw_settings(chance: random.Random) -> Settings:
    """Small segments and short intervals, so that everything happens all the time."""
    return Settings(
        segment_bytes=chance.choice([192, 256, 512]) * 1024,
        log_segments_max=chance.randint(8, 14),
        log_segments_unsealed=chance.randint(1, 3),
        checkpoint_seconds=chance.choice([0.02, 0.2, 1.0]),
        checkpoint_log_bytes=chance.choice([16, 64, 512]) * 1024,
        switch_interval_seconds=None,
    )


class Machine:
    """One machine through all lives of its process."""

    def __init__(self, seed: int, plan: Plan, history: History) -> None:
        self.plan = plan
        self.settings = plan.settings
        """Of the present life."""
        self.history = history
        self.clock = SimClock()
        self.ledger = Ledger(LOCAL)
        self.crashes = 0
        self.effects = 0
        self.loop: SimLoop | None = None
        self.cells: SimCells | None = None
        self.is_over = False
        """The present life has ended."""
        self.has_failed = False
        """Something was made to fail in this life, so that the engine may give up."""
        self.disk = SimDisk(random.Random(f"{seed}/disk"))
        self.image: Image | None = None
        """The index, as the next process finds it."""
        self._chance = random.Random(f"{seed}/machine")
        self._lanes = random.Random(f"{seed}/lanes")
        self._bytes = random.Random(f"{seed}/bytes")
        self._settings = random.Random(f"{seed}/settings")
        self._room = random.Random(f"{seed}/room")
        self._watch = random.Random(f"{seed}/watch")
        self._steps = SteppedThreads()
        self._written: LedgerDisk | None = None
        """What the present life writes through."""
        self._crash_at: int | None = None
        self._fail_at: dict[int, Fault] = {}
        self._is_recovering = False

    # --- A life --------------------------------------------------------------------------------

    def begin(self, loop: SimLoop, *, is_calm: bool) -> Ports:
        """A process starts; returns what it reaches the world through."""
        self.loop = loop
        self.is_over = self.has_failed = False
        self.disk.hook = self._hook
        if self.plan.has(Fault.SETTINGS):
            self.settings = draw_settings(self._settings)
        self._draw_faults(is_calm=is_calm)
        self._written = LedgerDisk(self.disk, self.ledger)
        return Ports(
            disk=self._written,
            cells=self._open_cells,
            io_thread=lambda name: SimIoThread(name, self.plan.pace, self._lanes, self._steps),
            now_ms=self.clock.now_ms,
            chance=self._bytes.randbytes,
            clock=self._stopwatch(),
            sleep=lambda seconds: None,
        )

    def _stopwatch(self) -> Callable[[], float]:
        """Measures syncs of a quick disk, of a slow one, or of one between: by that the log is
        written on the loop, on its lane, or now here and now there."""
        mean = self._watch.choice([0.0001, 0.001, 0.01])
        passed = accumulate(repeat(0.0), lambda total, _: total + self._watch.expovariate(1 / mean))
        return lambda: next(passed)

    def _open_cells(self) -> SimCells:
        self.cells = SimCells(self, self.image)
        return self.cells

    def _draw_faults(self, *, is_calm: bool) -> None:
        self._crash_at = None
        self._fail_at = {}
        if is_calm:
            return
        chance, plan = self._chance, self.plan
        mean = plan.effects_per_life
        if plan.has(Fault.CRASH):
            self._crash_at = self.effects + chance.randint(1, 2 * mean)
        if self._is_recovering and plan.has(Fault.CRASH_AGAIN) and chance.random() < 0.5:
            self._crash_at = self.effects + chance.randint(1, 20)
        for fault in (Fault.FAILED_WRITE, Fault.FAILED_SYNC, Fault.FAILED_COMMIT):
            if plan.has(fault) and chance.random() < 0.4:
                self._fail_at[self.effects + chance.randint(1, 2 * mean)] = fault

    def end(self) -> str:
        """The process has ended, however it did; the disk is now as the next one finds it."""
        crashed = self.is_over
        self.is_over = True
        self._steps.end()
        if self._written is not None:
            self._written.ledger = None
        self.ledger.new_life()
        self._is_recovering = crashed
        self.disk.fail_sync_in = self.disk.fail_write_in = None
        self.disk.fail_folder_sync_in = None
        if self.cells is not None:
            self.image = self.cells.image()
            self.cells = None
        how = self._chance.choice(["power", "power", "kill"])
        if not crashed and self._chance.random() < 0.5:
            # The same process opens the folder again: it must have been released on close.
            how = "stay"
            self.disk.hook = None
        elif how == "power":
            self.disk = self.disk.crash()
        else:
            self.disk = self.disk.kill()
        self.crashes += crashed
        return f"{'crashed' if crashed else 'ended'}, {how}"

    # --- Effects -------------------------------------------------------------------------------

    def _hook(self, effect: Effect) -> None:
        self.effect(effect.verb, effect.name)

    def effect(self, verb: str, name: str) -> None:
        """Something is about to change the disk or the index."""
        self._steps.pause()
        if self.is_over:
            raise Crashed
        self.effects += 1
        self.history.trace(f"{verb} {name}")
        match self._fail_at.pop(self.effects, None):
            case Fault.FAILED_SYNC:
                self.history.say("the next sync fails")
                if verb == "sync_folder":
                    self.disk.fail_folder_sync_in = 1
                else:
                    self.disk.fail_sync_in = 1
                self.has_failed = True
            case Fault.FAILED_WRITE:
                self.history.say("the next write fails")
                self.disk.fail_write_in = 1
                self.has_failed = True
            case Fault.FAILED_COMMIT if self.cells is not None:
                is_applied = self._chance.random() < 0.5
                self.history.say(f"the next commit of the index fails, applied: {is_applied}")
                self.cells.fail_next(is_applied=is_applied)
                self.has_failed = True
        if self.is_full and verb in ("sync", "sync_all") and name.startswith("sealed/"):
            # Some file systems look for room only now.
            self.disk.sync_finds_no_room = self._room.random() < 0.5
        if self._crash_at is not None and self.effects >= self._crash_at:
            self.history.say(f"the machine ends before {verb} {name}")
            self.crash()

    def crash(self) -> None:
        """End this life at once."""
        self.is_over = True
        if self.loop is not None:
            self.loop.halt()
        raise Crashed

    # --- Weather -------------------------------------------------------------------------------

    def toss(self) -> bool:
        """Heads or tails."""
        return self._chance.random() < 0.5

    def fill_disk(self, spare_bytes: int) -> None:
        """Limit the free space of the disk."""
        self.disk.budget_bytes = None
        names = [f"{folder}/{name}" for folder in ("log", "sealed") for name in self._names(folder)]
        used = sum(self.disk.open(name).size for name in names)
        self.disk.budget_bytes = used + spare_bytes
        if self.cells is not None:
            self.cells.room = self._chance.choice([Room.AMPLE, Room.BALLAST, Room.BALLAST])

    @property
    def is_full(self) -> bool:
        """True if the free space of the disk is limited."""
        return self.disk.budget_bytes is not None

    def empty_disk(self) -> None:
        """Give it room again."""
        self.disk.budget_bytes = None
        if self.cells is not None:
            self.cells.room = Room.AMPLE

    def _names(self, folder: str) -> list[str]:
        return self.disk.names(folder)


class SimCells(MemoryCells):
    """The index: a commit is an effect, and a crash during one leaves all of it or nothing."""

    def __init__(self, machine: Machine, image: Image | None) -> None:
        super().__init__(image)
        self._machine = machine

    def commit(self, writes: Writes) -> None:
        machine = self._machine
        if machine.is_over:
            raise Crashed
        try:
            machine.effect("commit", "index")
        except Crashed:
            if machine.toss():
                with suppress(MillraceError):
                    super().commit(writes)
            raise
        super().commit(writes)
