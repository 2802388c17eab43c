"""Small logs, and a random life of one compared with a naive model.

The model is a list: the payloads whose append returned. Whatever happens to process or power, the
next open must give exactly that list, plus at most the one record that was in flight.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

from millrace import errors, limits
from millrace.wal.disk import Disk
from millrace.wal.record import LogMark
from millrace.wal.replay import Replay
from millrace.wal.segment import LogShape
from millrace.wal.write_ahead_log import WriteAheadLog
from tests.support.simulator.disk import Crashed, Effect, SimDisk

SECTOR = limits.SECTOR_BYTES

SHAPE = LogShape(
    segment_bytes=8 * SECTOR,
    segments_max=6,
    segments_free=1,
    segments_reserve=1,
    held_bytes_max=2 * 8 * SECTOR,
)
"""Seven sectors for records in each segment."""


def no_time() -> float:
    return 0.0


def new_disk(seed: int = 0) -> SimDisk:
    return SimDisk(random.Random(seed))


def read_log(disk: Disk, *, start: LogMark | None = None, needed_from: int = 0) -> list[bytes]:
    """Return the payloads that a replay gives, without opening the log for writing."""
    replay = Replay(disk, start=start, needed_from=needed_from)
    try:
        return [bytes(payload) for _, payload in replay]
    finally:
        replay.close()


def open_log(
    disk: Disk,
    *,
    start: LogMark | None = None,
    needed_from: int = 0,
    shape: LogShape = SHAPE,
    seed: int = 0,
) -> tuple[WriteAheadLog, list[bytes]]:
    """Open the log and return it with the payloads that its replay gave."""
    replay = Replay(disk, start=start, needed_from=needed_from)
    payloads = [bytes(payload) for _, payload in replay]
    # Nonces differ from open to open because the generation is mixed in.
    chance = random.Random(seed * 1_000_003 + replay.survey.generation)
    log = WriteAheadLog.open(replay, shape, chance=chance.randbytes, clock=no_time)
    return log, payloads


def payload_of(number: int, length: int) -> bytes:
    """Return bytes that differ for every number, so that no record is taken for another."""
    return (b"%08d:" % number).ljust(length, b"%c" % (65 + number % 26))[:length]


class Life:
    """One log through many processes and power failures."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = SimDisk(self.chance)
        self.known: list[bytes] = []
        """Payloads whose append returned, or that a replay has given."""
        self.start: LogMark | None = None
        self.folded = 0
        """How many of them the checkpoint has."""
        self.in_flight: bytes | None = None
        self.opens = 0
        self.made = 0
        self.log: WriteAheadLog | None = None
        self.boot()

    def boot(self) -> None:
        """Open until that succeeds, and compare what the replay gives with the model."""
        while self.log is None:
            self.opens += 1
            needed_from = self.start.generation if self.start is not None else 0
            with suppress(Crashed, errors.DiskFailed):
                log, found = open_log(
                    self.disk, start=self.start, needed_from=needed_from, seed=self.opens
                )
                self.judge(found)
                self.log = log
                return
            self.disk = self.disk.kill()

    def judge(self, found: Sequence[bytes]) -> None:
        expected = self.known[self.folded :]
        if self.in_flight is not None and len(found) == len(expected) + 1:
            # It was durable although it was not acknowledged; from now on it must stay.
            self.known.append(self.in_flight)
            expected = self.known[self.folded :]
        assert list(found) == expected
        self.in_flight = None

    def step(self, verb: str) -> None:
        try:
            self.do(verb)
        except Crashed:
            self.log = None
            self.disk = self.disk.crash() if self.chance.randrange(2) else self.disk.kill()
        except errors.DiskFailed:
            self.log = None
            self.disk = self.disk.kill()
        self.boot()

    def do(self, verb: str) -> None:
        log = self.log
        assert log is not None
        if verb == "append":
            self.append(log)
        elif verb == "mark_end":
            log.mark_end()
        elif verb == "close":
            log.close()
            self.log = None
        elif verb == "kill":
            self.log, self.disk = None, self.disk.kill()
        elif verb == "crash":
            self.log, self.disk = None, self.disk.crash()
        elif verb == "prepare":
            log.prepare()
        elif verb == "checkpoint":
            # The checkpoint is durable first, then the segments before it go.
            self.start, self.folded = log.mark(), len(self.known)
            log.release_before(self.start.generation)
        elif verb == "crash_soon":
            self.disk.hook = self.bomb(self.disk.effects + self.chance.randrange(8))
        elif verb == "fail_sync":
            self.disk.fail_sync_in = self.chance.randrange(1, 4)

    def append(self, log: WriteAheadLog) -> None:
        length = self.chance.choice((0, 1, 100, SECTOR - 64, SECTOR, 2 * SECTOR, 7 * SECTOR - 64))
        self.made += 1
        self.in_flight = payload_of(self.made, length)
        try:
            log.append([self.in_flight[: length // 2], self.in_flight[length // 2 :]])
        except errors.Full:
            self.in_flight = None
            return
        self.known.append(self.in_flight)
        self.in_flight = None

    @staticmethod
    def bomb(last: int) -> Bomb:
        return Bomb(last)


class Bomb:
    """Ends the machine before the effect with this number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, effect: Effect) -> None:
        if effect.number >= self._number:
            raise Crashed


VERBS = (
    *("append",) * 8,
    "mark_end",
    "close",
    "kill",
    "crash",
    "prepare",
    "prepare",
    "checkpoint",
    "crash_soon",
    "crash_soon",
    "fail_sync",
)
