"""The bare baseline: the same bytes by `pwritev` and fdatasync over recycled segments.

No header, no checksum, no classes: what the disk and two system calls cost, and nothing else. Run
as a program it shows how near `WriteAheadLog.append` comes to it, both in turns on the same disk.

Buffers begin at pages, for both. The kernel's copy of 1 MB takes 80 µs or 140 µs depending on the
low bits of the source address alone, and a large `bytes` object has the worst ones; that would be
measured instead of the program.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import tempfile
import time
from pathlib import Path

from millrace import limits
from millrace.wal.disk import RealDisk
from millrace.wal.replay import Replay
from millrace.wal.segment import LogShape
from millrace.wal.write_ahead_log import WriteAheadLog

SEGMENTS = 3
"""As few as show recycling: one is written while the others wait."""

ROUNDS = 5
"""Bare and log take turns, so that a slow minute of the disk meets both."""


class BareSegments:
    """Files that were filled with zeros and synced once, and are then overwritten in turn."""

    def __init__(
        self, folder: Path, *, segment_bytes: int = limits.SEGMENT_BYTES, segments: int = SEGMENTS
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._segment_bytes = segment_bytes
        self._descriptors = [
            _filled(folder / f"bare-{number}", segment_bytes) for number in range(segments)
        ]
        self._place = 0
        self._offset = 0

    def commit(self, buffer: memoryview) -> float:
        """Write and sync the buffer; return the seconds that it took."""
        if self._offset + len(buffer) > self._segment_bytes:
            self._place = (self._place + 1) % len(self._descriptors)
            self._offset = 0
        descriptor = self._descriptors[self._place]
        began = time.perf_counter()
        os.pwritev(descriptor, [buffer], self._offset)
        os.fdatasync(descriptor)
        took = time.perf_counter() - began
        self._offset += len(buffer)
        return took

    def commit_many(self, buffers: list[bytes]) -> None:
        """Write and sync the buffers, which add up to whole sectors, in one call each."""
        size = sum(map(len, buffers))
        if self._offset + size > self._segment_bytes:
            self._place = (self._place + 1) % len(self._descriptors)
            self._offset = 0
        descriptor = self._descriptors[self._place]
        os.pwritev(descriptor, buffers, self._offset)
        os.fdatasync(descriptor)
        self._offset += size

    def close(self) -> None:
        """Close the files; they stay where they are."""
        for descriptor in self._descriptors:
            os.close(descriptor)


def bare(folder: Path, size: int, count: int) -> list[float]:
    """Return the seconds of `count` commits of `size` bytes each, in whole sectors.

    The segments are made first, in `folder`, outside of what is measured.
    """
    sectors = -(-size // limits.SECTOR_BYTES)
    buffer = random_page_aligned(sectors * limits.SECTOR_BYTES)
    segments = BareSegments(folder)
    try:
        return [segments.commit(buffer) for _ in range(count)]
    finally:
        segments.close()


def random_page_aligned(size: int) -> memoryview:
    """Return so many random bytes that begin at a page."""
    memory = mmap.mmap(-1, size)
    memory.write(os.urandom(size))
    return memoryview(memory)


def appends(log: WriteAheadLog, payload: memoryview, count: int) -> list[float]:
    """Return the seconds of `count` appends; segments are released in between, unmeasured."""
    seconds = []
    generation = log.mark().generation
    for _ in range(count):
        began = time.perf_counter()
        position = log.append([payload])
        seconds.append(time.perf_counter() - began)
        if position.generation != generation:
            generation = position.generation
            log.release_before(generation)
    return seconds


def compare(folder: Path, payload_bytes: int, count: int) -> tuple[list[float], list[float]]:
    """Return seconds of bare commits of as many sectors, and of appends, taken in turns."""
    payload = random_page_aligned(payload_bytes)
    shape = LogShape(segments_max=SEGMENTS, segments_free=1, segments_reserve=1)
    log = WriteAheadLog.open(Replay(RealDisk(folder)), shape, chance=os.urandom)
    while log.prepare():
        pass
    before = log.statistics().written_bytes
    log.append([payload])
    span = log.statistics().written_bytes - before
    buffer = random_page_aligned(span)
    segments = BareSegments(folder)
    raw: list[float] = []
    logged: list[float] = []
    for _ in range(ROUNDS):
        raw += [segments.commit(buffer) for _ in range(count // ROUNDS)]
        logged += appends(log, payload, count // ROUNDS)
    segments.close()
    log.close()
    return raw, logged


def _filled(path: Path, size: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    zeros = bytes(limits.PREPARE_STEP_BYTES)
    for offset in range(0, size, len(zeros)):
        os.pwrite(descriptor, zeros[: size - offset], offset)
    os.fsync(descriptor)
    return descriptor


def main() -> None:
    """Print bare commits beside appends of the same sectors."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be measured")
    arguments = parser.parse_args()
    print(f"{'payload':>10} {'bare µs':>9} {'append µs':>10} {'+µs':>6} {'speed':>6}  (medians)")
    for payload_bytes, count in ((100, 20_000), (4032, 20_000), (4096, 20_000), (1 << 20, 2_000)):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            raw, logged = compare(Path(folder), payload_bytes, count)
        one, other = statistics.median(raw) * 1e6, statistics.median(logged) * 1e6
        row = f"{payload_bytes:>10} {one:>9.1f} {other:>10.1f} {other - one:>6.1f}"
        print(f"{row} {one / other:>6.2f}")


if __name__ == "__main__":
    main()
