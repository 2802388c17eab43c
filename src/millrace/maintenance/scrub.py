"""Scrubbing: what lies on the disk is read again from time to time, and compared with its sums.

Sealed files, and the segments of the log that are not being written. A pass reads all of them, at a
bounded rate; where it is, survives a restart.

Rule 1: damage in a sealed file concerns the rows in it: whoever asks for them is told, and nobody
else. Damage in the log is told of: it will refuse the folder at the next open.
Rule 2: nothing is mended or removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from millrace.errors import Corrupt, DiskFailed, MillraceError, NotFound, detached
from millrace.maintenance import bounds, checksummed_json
from millrace.maintenance.file_copy import write_whole
from millrace.maintenance.sealed_checksums import walk_rows
from millrace.store.disk import DiskStore
from millrace.store.sealed import FOLDER, file_name
from millrace.wal.files import Disk
from millrace.wal.write_ahead_log import Log

SCRUB = "scrub"

_logger = logging.getLogger("millrace")


class _State(msgspec.Struct, frozen=True):
    """What is remembered of passes."""

    began_ms: int = 0
    """When the pass began that is under way, or the last one."""
    ended_ms: int = 0
    """When the last whole pass ended; 0 if there was none."""
    after: int = 0
    """Files up to this number were read in the pass under way."""
    damaged: tuple[str, ...] = ()
    """What the last pass has found, and this one so far."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast, and how often."""

    bytes_per_second: int
    """0: never."""
    every_ms: int


class Scrubber:
    """Reads in small steps, whenever it is asked to; on the engine's thread but for `step`."""

    def __init__(
        self,
        disk: Disk,
        store: DiskStore,
        log: Log,
        now_ms: Callable[[], int],
        pace: Pace,
    ) -> None:
        self._disk = disk
        self._store = store
        self._log = log
        self._now_ms = now_ms
        self._pace = pace
        self._state = _read(disk)
        for number in store.file_numbers():
            name = file_name(number)
            if name in self._state.damaged:
                store.note_damage(number, Corrupt(f"{name} was found damaged", field=name))
        self._work: Iterator[int] | None = None
        self._found: list[tuple[str, int | None, MillraceError]] = []
        self._budget = 0.0
        self._asked_ms = now_ms()

    @property
    def ended_ms(self) -> int:
        """When the last whole pass ended; 0 if there was none."""
        return self._state.ended_ms

    @property
    def damaged(self) -> tuple[str, ...]:
        """Files and generations that were found damaged."""
        there = {file_name(number) for number in self._store.file_numbers()}
        return tuple(
            name
            for name in self._state.damaged
            if name in there or not name.startswith(f"{FOLDER}/")
        )

    def learn(self) -> bool:
        """Take in what readers have found damaged; whether it is to be written down."""
        found = {file_name(number) for number in self._store.damaged_files()}
        if found <= set(self._state.damaged):
            return False
        known = tuple(sorted(found.union(self._state.damaged)))
        self._state = msgspec.structs.replace(self._state, damaged=known)
        return True

    def write_down(self) -> None:
        """Make what is known durable: a backup looks at files that are known to be damaged, also
        where their queues were purged before the engine ended; on a lane."""
        write_whole(self._disk, SCRUB, checksummed_json.encode(self._state))

    def ask(self) -> int:
        """How many bytes should be read now; 0 if nothing is to be done."""
        now = self._now_ms()
        rate, since = self._pace.bytes_per_second, max(now - self._asked_ms, 0)
        self._asked_ms = now
        if not rate:
            return 0
        if self._work is None:
            if now - self._state.began_ms < self._pace.every_ms and not self._state.after:
                return 0
            if not self._begin(now):
                return 0
        self._budget = min(self._budget + rate * since / 1000, rate)
        if self._budget < bounds.CARE_STEP_BYTES and self._budget < rate:
            return 0
        return int(self._budget)

    def _begin(self, now: int) -> bool:
        """Begin a pass, or go on with one; False if there is nothing to be read."""
        state = self._state
        if not self._store.file_numbers():
            return False
        if not state.after:
            state = self._state = _State(now, state.ended_ms, 0, ())
        numbers = [number for number in self._store.file_numbers() if number > state.after]
        generations = [live.generation for live in self._log.segments()[:-1]]
        self._work = self._walk(numbers, generations)
        self._budget = 0.0
        return True

    def step(self, count: int) -> None:
        """Read about so many bytes; on a lane."""
        work = self._work
        if work is None:
            return
        while count > 0:
            done = next(work, None)
            if done is None:
                self._work = None
                return
            count -= max(done, 1)
            self._budget -= done

    def settle(self) -> None:
        """After a step, on the engine's thread: what was found counts from now on."""
        found, self._found = self._found, []
        for name, number, error in found:
            if number is not None:
                if number not in self._store.file_numbers():
                    # It was dropped while it was read.
                    continue
                damage = error if isinstance(error, Corrupt) else Corrupt(str(error), field=name)
                self._store.note_damage(number, damage)
            if name not in self._state.damaged:
                _logger.error("scrubbing has found damage in %s: %s", name, error)
                damaged = (*self._state.damaged, name)
                self._state = msgspec.structs.replace(self._state, damaged=damaged)

    # --- On the lane ----------------------------------------------------------------------------

    def _walk(self, numbers: list[int], generations: list[int]) -> Iterator[int]:
        """Everything there is, one piece after the other; yields the bytes that were read."""
        for number in numbers:
            name = file_name(number)
            try:
                yield from walk_rows(self._disk, number)
            except (Corrupt, DiskFailed, NotFound) as error:
                self._found.append((name, number, detached(error)))
            self._remember(after=number)
            yield 0
        for generation in generations:
            try:
                for _, payload in self._log.records(generation) or ():
                    yield len(payload)
            except (Corrupt, DiskFailed) as error:
                name = error.field or f"generation {generation} of the log"
                self._found.append((name, None, detached(error)))
                yield 0
        self._remember(after=0)

    def _remember(self, *, after: int) -> None:
        ended = self._state.ended_ms if after else self._now_ms()
        self._state = msgspec.structs.replace(self._state, after=after, ended_ms=ended)
        # What was just found would be forgotten with the process, and is not read again for long.
        names = (*self._state.damaged, *(name for name, _, _ in self._found))
        known = msgspec.structs.replace(self._state, damaged=tuple(sorted(set(names))))
        write_whole(self._disk, SCRUB, checksummed_json.encode(known))


def _read(disk: Disk) -> _State:
    """What an earlier engine knew; a damaged file only means that a pass begins anew."""
    if not disk.exists(SCRUB):
        return _State()
    try:
        return checksummed_json.read(disk, SCRUB, _State, hint="a pass begins anew")
    except Corrupt as error:
        _logger.warning("%s", error)
        return _State()
