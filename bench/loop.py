"""The loop baseline: the same asyncio program with encode, checksum and append only.

Publishers hand over bodies and wait; all that waits is encoded into one record (offsets, bytes),
checksummed and written with one `pwritev` and one fdatasync by a thread. No decider, no store, no
headers beyond a length and a checksum: what an asyncio program in Python can do at best.
"""

from __future__ import annotations

import asyncio
import queue
import struct
import threading
from itertools import accumulate
from pathlib import Path

import numpy as np
from crc32c import crc32c

from bench.bare import BareSegments
from millrace import limits


class LoopProgram:
    """Publishes durably, in the simplest way."""

    def __init__(self, folder: Path, *, segments: int) -> None:
        self._segments = BareSegments(folder, segments=segments)
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[list[bytes], asyncio.Future[None]]] = []
        self._busy = False
        self._work: queue.SimpleQueue[tuple[list[bytes], list[asyncio.Future[None]]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    async def publish(self, bodies: list[bytes]) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((bodies, future))
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self._flush)
        await future

    def _flush(self) -> None:
        taken, self._waiting = self._waiting, []
        if not taken:
            self._busy = False
            return
        self._busy = True
        bodies = taken[0][0] if len(taken) == 1 else [b for part, _ in taken for b in part]
        offsets = np.fromiter(
            accumulate(map(len, bodies), initial=0), np.int32, len(bodies) + 1
        ).tobytes()
        self._work.put(([offsets, b"".join(bodies)], [future for _, future in taken]))

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            buffers, futures = job
            crc = 0
            for buffer in buffers:
                crc = crc32c(buffer, crc)
            size = sum(map(len, buffers))
            pad = -(size + 8) % limits.SECTOR_BYTES
            self._segments.commit_many([struct.pack("<II", size, crc), *buffers, bytes(pad)])
            self._loop.call_soon_threadsafe(self._done, futures)

    def _done(self, futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            future.set_result(None)
        self._flush()

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()
        self._segments.close()


def sync_seconds(folder: Path, *, size: int, count: int) -> list[float]:
    """The seconds of bare commits of `size` bytes, from a page of zeros."""
    segments = BareSegments(folder)
    buffer = memoryview(bytes(size))
    try:
        return [segments.commit(buffer) for _ in range(count)]
    finally:
        segments.close()
