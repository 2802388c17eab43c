"""Group `engine`, part three: snapshots as Arrow, from sealed files, checksums verified."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from bench.publish import BATCH
from bench.report import Result, Usage, at_least, median
from bench.scratch import engine, node_of, scratch
from millrace.client.queue import Queue


async def snapshots() -> list[Result]:
    return [
        *await _snapshot("snapshot_100", 100, 2_000_000),
        *await _snapshot("snapshot_1k", 1024, 500_000),
    ]


async def _snapshot(identity: str, size: int, count: int) -> list[Result]:
    rows = [os.urandom(size) for _ in range(BATCH)]
    ours: list[float] = []
    files: list[float] = []
    costs = ""
    with scratch() as folder:
        async with engine(folder / "data", megabytes=size * count // 1_000_000) as m:
            queue = await m.queue("bench")
            for _ in range(count // BATCH):
                await queue.publish_many(rows)
            await node_of(m).checkpointer.seal_all()
            await _write_file(queue, folder / "same.arrow")
        for turn in range(8):
            # A new engine each time: checksums are verified once per opening.
            async with engine(folder / "data") as m:
                queue = await m.queue("bench")
                files.append(_map_and_sum(folder / "same.arrow", count))
                usage = Usage(node_of(m).log)
                ours.append(await _read(queue, count))
                costs = usage.per_million(count)
            if not turn:
                files.clear()
                ours.clear()
    ratio = median([f / o for f, o in zip(files, ours, strict=True)])
    reach, judge = at_least(0.8)
    return [
        Result(
            identity,
            f"snapshot of {count:,} sealed rows of {size} B to Arrow, checksums verified",
            count / median(ours),
            "rows/s",
            f"mapping and summing an Arrow file: {count / median(files):,.0f} rows/s",
            ratio,
            reach,
            judge(ratio),
            f"{count * size / median(ours) / 1e6:,.0f} MB/s; {costs}",
        )
    ]


async def _write_file(queue: Queue, path: Path) -> None:
    async with queue.snapshot() as snapshot:
        reader = snapshot.arrow()
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)


async def _read(queue: Queue, count: int) -> float:
    began = time.perf_counter()
    async with queue.snapshot() as snapshot:
        rows = sum(batch.num_rows for batch in snapshot.arrow())
    took = time.perf_counter() - began
    if rows != count:
        raise AssertionError(f"{rows} rows instead of {count}")
    return took


def _map_and_sum(path: Path, count: int) -> float:
    began = time.perf_counter()
    with pa.memory_map(str(path)) as source:
        crc32c(memoryview(source.read_buffer(path.stat().st_size)))
        source.seek(0)
        rows = sum(batch.num_rows for batch in pa.ipc.open_stream(source))
    took = time.perf_counter() - began
    if rows != count:
        raise AssertionError(f"{rows} rows instead of {count}")
    return took
