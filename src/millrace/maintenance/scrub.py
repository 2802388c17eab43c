"""Scrubbing: periodically reads all data on the disk and verifies its checksums.

A pass covers the sealed files and all WAL segments except the one being written, at a limited rate.
Its position survives a restart.

Rule 1: damage in a sealed file affects only requests for its rows. Damage in the WAL is reported:
the next open will refuse the folder.
Rule 2: nothing is repaired or removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from millrace import limits
from millrace.errors import Corrupt, DiskFailed, MillraceError, NotFound, detached
from millrace.maintenance import checksummed_json
from millrace.maintenance.file_copy import replace_file
from millrace.maintenance.sealed_checksums import walk_rows
from millrace.store.disk_store import DiskStore
from millrace.store.sealed import FOLDER, file_name
from millrace.wal.disk import Disk
from millrace.wal.write_ahead_log import WriteAheadLog

SCRUB = "scrub"

_logger = logging.getLogger("millrace")


class _ScrubState(msgspec.Struct, frozen=True):
    """Persistent state of scrubbing passes."""

    began_ms: int = 0
    """Start of the current or last pass, in milliseconds."""
    ended_ms: int = 0
    """End of the last complete pass in milliseconds; 0 if there was none."""
    after: int = 0
    """Sealed files up to this number were read in the current pass."""
    damaged: tuple[str, ...] = ()
    """Damage that the last pass and the current one have found."""


@dataclass(frozen=True, slots=True)
class ScrubSchedule:
    """Rate and interval of passes."""

    bytes_per_second: int
    """0 disables scrubbing."""
    every_ms: int


class Scrubber:
    """Scrubs in small steps on request; only `step` runs on an I/O thread."""

    def __init__(
        self,
        disk: Disk,
        store: DiskStore,
        log: WriteAheadLog,
        now_ms: Callable[[], int],
        schedule: ScrubSchedule,
    ) -> None:
        self._disk = disk
        self._store = store
        self._log = log
        self._now_ms = now_ms
        self._schedule = schedule
        self._state = _read(disk)
        for number in store.file_numbers():
            name = file_name(number)
            if name in self._state.damaged:
                store.note_damage(number, Corrupt(f"{name} was found damaged", field=name))
        self._work: Iterator[int] | None = None
        self._findings: list[tuple[str, int | None, MillraceError]] = []
        self._budget = 0.0
        self._asked_ms = now_ms()

    @property
    def ended_ms(self) -> int:
        """End of the last complete pass in milliseconds; 0 if there was none."""
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

    def merge_damage(self) -> bool:
        """Take over damage that readers have found; return True if it must be saved."""
        damaged = {file_name(number) for number in self._store.damaged_files()}
        if damaged <= set(self._state.damaged):
            return False
        merged = tuple(sorted(damaged.union(self._state.damaged)))
        self._state = msgspec.structs.replace(self._state, damaged=merged)
        return True

    def save(self) -> None:
        """Save the state durably; runs on an I/O thread.

        A backup checks files that are known to be damaged, even if their queues were purged before
        the engine ended.
        """
        replace_file(self._disk, SCRUB, checksummed_json.encode(self._state))

    def due_bytes(self) -> int:
        """Return the number of bytes to read now; 0 if nothing is due."""
        now = self._now_ms()
        rate, since = self._schedule.bytes_per_second, max(now - self._asked_ms, 0)
        self._asked_ms = now
        if not rate:
            return 0
        if self._work is None:
            if now - self._state.began_ms < self._schedule.every_ms and not self._state.after:
                return 0
            if not self._begin(now):
                return 0
        self._budget = min(self._budget + rate * since / 1000, rate)
        if self._budget < limits.CARE_STEP_BYTES and self._budget < rate:
            return 0
        return int(self._budget)

    def _begin(self, now: int) -> bool:
        """Begin or resume a pass; return False if there is nothing to read."""
        state = self._state
        if not self._store.file_numbers():
            return False
        if not state.after:
            state = self._state = _ScrubState(now, state.ended_ms, 0, ())
        numbers = [number for number in self._store.file_numbers() if number > state.after]
        generations = [live.generation for live in self._log.segments()[:-1]]
        self._work = self._walk(numbers, generations)
        self._budget = 0.0
        return True

    def step(self, count: int) -> None:
        """Read about `count` bytes; runs on an I/O thread."""
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

    def publish_findings(self) -> None:
        """Publish the findings of a step to store and log; runs on the event loop."""
        findings, self._findings = self._findings, []
        for name, number, error in findings:
            if number is not None:
                if number not in self._store.file_numbers():
                    # The file was dropped while it was read.
                    continue
                damage = error if isinstance(error, Corrupt) else Corrupt(str(error), field=name)
                self._store.note_damage(number, damage)
            if name not in self._state.damaged:
                _logger.error("scrubbing has found damage in %s: %s", name, error)
                damaged = (*self._state.damaged, name)
                self._state = msgspec.structs.replace(self._state, damaged=damaged)

    # --- On the I/O thread ------------------------------------------------------------------------

    def _walk(self, numbers: list[int], generations: list[int]) -> Iterator[int]:
        """Read all files; yields the bytes read in each step."""
        for number in numbers:
            name = file_name(number)
            try:
                yield from walk_rows(self._disk, number)
            except (Corrupt, DiskFailed, NotFound) as error:
                self._findings.append((name, number, detached(error)))
            self._remember(after=number)
            yield 0
        for generation in generations:
            try:
                for _, payload in self._log.records(generation) or ():
                    yield len(payload)
            except (Corrupt, DiskFailed) as error:
                name = error.field or f"generation {generation} of the log"
                self._findings.append((name, None, detached(error)))
                yield 0
        self._remember(after=0)

    def _remember(self, *, after: int) -> None:
        ended = self._state.ended_ms if after else self._now_ms()
        self._state = msgspec.structs.replace(self._state, after=after, ended_ms=ended)
        # Otherwise the findings would be lost with the process, and not be found again for a long
        # time.
        names = (*self._state.damaged, *(name for name, _, _ in self._findings))
        state = msgspec.structs.replace(self._state, damaged=tuple(sorted(set(names))))
        replace_file(self._disk, SCRUB, checksummed_json.encode(state))


def _read(disk: Disk) -> _ScrubState:
    """Read the saved state; if it is damaged, a new pass begins."""
    if not disk.exists(SCRUB):
        return _ScrubState()
    try:
        return checksummed_json.read(disk, SCRUB, _ScrubState, hint="a pass begins anew")
    except Corrupt as error:
        _logger.warning("%s", error)
        return _ScrubState()
