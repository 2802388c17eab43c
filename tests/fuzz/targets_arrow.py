"""Fuzz targets of Arrow: streams over the network and tables of programs, into queues of each kind.

Rows are refused as `Invalid` or `TooLarge`, or they are stored, and read back whole. The engine is
real, in a folder of its own, and opened again now and then: what was taken has to be readable.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa

import millrace
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.client.topic import Topic
from millrace.errors import Invalid, TooLarge
from millrace.server.rest.arrow_stream import read_table
from tests.fuzz import arrow_tables
from tests.fuzz.mutate import mutated

Rows = pa.Table | pa.RecordBatch

SETTINGS = millrace.Settings(segment_bytes=8 * 1024 * 1024)
REOPENED_EVERY = 400
"""Publishes after which the folder is closed and opened."""


Row = tuple[bytes | None, bytes | None, tuple[tuple[bytes, bytes], ...]]
"""Body, key and headers, but for those that carry group, priority and delay."""


def _row(row: dict[str, Any]) -> Row:
    pairs = row.get("headers") or ()
    named = [one if isinstance(one, tuple) else (one["name"], one["value"]) for one in pairs]
    headers = tuple((_data(name) or b"", _data(value) or b"") for name, value in named)
    kept = tuple(pair for pair in headers if not pair[0].startswith(b"millrace-"))
    return _data(row["value"]), _data(row.get("key")), kept


def _data(value: object) -> bytes | None:
    if isinstance(value, UUID):
        return value.bytes
    assert value is None or isinstance(value, str | bytes)
    return value.encode() if isinstance(value, str) else value


class Rig:
    """An engine with queues of each kind, used from outside of a loop until the process ends."""

    def __init__(self) -> None:
        atexit.register(self.close)
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-arrow-"))
        self._loop = asyncio.new_event_loop()
        self._millrace: Millrace | None = None
        self._queues: list[Queue] = []
        self._keyed: list[Queue] = []
        self._topic: Topic | None = None
        self._count = 0

    def close(self) -> None:
        """Close the engine and remove its folder."""
        if self._millrace is not None:
            self._loop.run_until_complete(self._millrace.close())
            self._millrace = None
        self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def publish(self, rng: Random, rows: Rows) -> bool:
        """Publish the rows, and read back what is stored of them; False where they are refused."""
        return self._loop.run_until_complete(self._publish(rng, rows))

    async def _open(self) -> None:
        m = await millrace.open(self._folder, settings=SETTINGS)
        self._millrace = m
        self._queues = [
            await m.queue("plain"),
            await m.queue("wide", shards=3),
            await m.queue("keyed", keyed=True),
            await m.queue("keyed-wide", keyed=True, shards=2),
            await m.queue("group", order="group"),
            await m.queue("group-wide", order="group", shards=2, route="group"),
            await m.queue("strict", order="strict"),
            await m.queue("log", retention="log"),
            await m.queue("packed", compressed="zstd"),
        ]
        self._keyed = self._queues[2:4]
        self._topic = await m.topic("topic")
        for queue in self._queues[:4]:
            await self._topic.subscribe(queue)

    async def _publish(self, rng: Random, rows: Rows) -> bool:
        self._count += 1
        if self._millrace is None:
            await self._open()
        elif self._count % REOPENED_EVERY == 0:
            await self._millrace.close()
            await self._open()
        assert self._topic is not None
        queue = rng.choice(self._queues)
        try:
            match rng.randrange(5):
                case 0:
                    await self._topic.publish_many(rows, until_arrived=True)
                case 1:
                    await queue.stage("s", rows)
                    await queue.publish_staged(["s"])
                case _:
                    seqs = await queue.publish_many(rows)
                    assert len(seqs) == rows.num_rows
        except (Invalid, TooLarge) as error:
            _check_named(error)
            if "s" in await queue.stages():
                await queue.drop_stage("s")
            return False
        wanted = Counter(map(_row, rows.to_pylist()))
        for each in self._queues:
            found = await self._read(rng, each)
            if each is queue and each not in self._keyed:
                assert not found or found == wanted, (queue.name, found - wanted, wanted - found)
        return True

    async def _read(self, rng: Random, queue: Queue) -> Counter[Row]:
        found: list[dict[str, object]] = []
        async with queue.snapshot() as snapshot:
            async for batch in snapshot.batches():
                batch.validate(full=True)
                found += batch.to_pylist()
        if not found:
            return Counter()
        assert len(await queue.peek(len(found))) == len(found)
        leases = await queue.lease(rng.choice((1, 10, 1000)))
        await queue.settle(leases)
        await queue.purge()
        return Counter(map(_row, found))


def _check_named(error: Invalid | TooLarge) -> None:
    if not error.field:
        raise AssertionError("a refusal names no field") from error


@cache
def rig() -> Rig:
    """The engine of this process, made with its first case."""
    return Rig()


def fuzz_arrow_stream(rng: Random) -> None:
    """A stream over the network, of any types, mostly with bytes that are not as they were."""
    rows = arrow_tables.table(rng, odd=rng.random() < 0.3)
    good = arrow_tables.stream(rng, rows)
    body = good
    match rng.randrange(5):
        case 0:
            body = mutated(good, [good], rng)
        case 1 | 2 | 3:
            body = arrow_tables.with_odd_numbers(rng, good)
        case _:
            pass
    # Wherever it lies in memory, and whatever lies behind it.
    place = rng.choice((0, 0, 1, 4))
    behind = rng.choice((b"", b"\xff" * 64, b"\x7f" * 64))
    data = memoryview(bytes(place) + body + behind)[place : place + len(body)]
    try:
        table = read_table(data)
    except (Invalid, TooLarge) as error:
        _check_named(error)
        return
    assert table.get_total_buffer_size() <= len(body)
    rig().publish(rng, table)


def fuzz_arrow_table(rng: Random) -> None:
    """A table of a program, of any types, or arrays over buffers that nobody has looked at."""
    made = arrow_tables.table(rng, odd=True)
    rows: Rows | None = made
    if rng.random() < 0.6:
        rows = arrow_tables.with_odd_buffers(rng, made)
    if rows is not None:
        rig().publish(rng, rows)
