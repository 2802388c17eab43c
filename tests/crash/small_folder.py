"""A small folder with everything in it, and everything that can be read from a folder.

It is opened as the engine opens it (`Node._start`), without the threads and the event loop: the
cells, the log and the store are the real ones.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from datetime import datetime
from enum import Enum
from pathlib import Path

import msgspec
import pyarrow as pa

import millrace
from millrace import Message, Settings
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.core.cells import Kind
from millrace.core.format.block import SCHEMA
from millrace.core.format.codec import decode_entries
from millrace.core.model import ShardId
from millrace.core.state.fold import Reader
from millrace.journal.recovery import Recovery
from millrace.node import LOCAL, Node
from millrace.store.disk_store import DiskStore
from millrace.store.lmdb_cells import LmdbCells
from millrace.wal.disk import RealDisk
from millrace.wal.replay import Replay
from millrace.wal.segment import LogShape
from millrace.wal.write_ahead_log import WriteAheadLog

SETTINGS = Settings(
    segment_bytes=192 * 1024,
    log_segments_max=6,
    log_segments_free=1,
    log_segments_unsealed=0,
    scrub_bytes_per_second=0,
)

SHAPE = LogShape(
    segment_bytes=SETTINGS.segment_bytes,
    segments_max=SETTINGS.log_segments_max,
    segments_free=SETTINGS.log_segments_free,
)

LEFT_OUT = ("lock", "index/lock.mdb", "index/ballast")
"""Files that hold nothing, and are made anew by every open."""

Everything = dict[str, object]
"""What a folder holds, by what it is."""


def build(folder: Path) -> dict[str, bytes]:
    """Write a folder that holds a little of everything, close it, and return its files."""
    asyncio.run(_write(folder))
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).as_posix() not in LEFT_OUT
    }
    kinds = {name.partition("/")[0] for name in files}
    assert kinds == {"identity", "index", "log", "sealed"}, kinds
    return files


async def _write(folder: Path) -> None:
    async with millrace.open(folder, settings=SETTINGS) as opened:
        await _fill(opened, 1)
        await _node(opened).checkpointer.seal_all()
    async with millrace.open(folder, settings=SETTINGS) as opened:
        # By now everything above lies in a full segment, and is sealed.
        await _node(opened).checkpointer.seal_all()
        await _fill(opened, 2)
        await _node(opened).checkpointer.checkpoint()
        await _fill(opened, 3)


def _node(opened: Millrace) -> Node:
    engine = opened._engine
    assert isinstance(engine, EmbeddedEngine)
    return engine._node


async def _fill(opened: Millrace, round_number: int) -> None:
    """Publish, lease, settle, follow, stage: something of each."""
    plain = await opened.queue("plain")
    keyed = await opened.queue("keyed", keyed=True)
    cursor = await plain.cursor("follower", retain=True)
    for number in range(1, 4):
        await plain.publish_many(
            [b"round %d, row %d. " % (round_number, row) * 3 for row in range(8)],
            producer="producer",
            number=(round_number - 1) * 3 + number,
        )
        rows = [
            Message(b"revision %d" % round_number, f"key-{(number * 5 + row) % 9}", {"a": b"b"})
            for row in range(5)
        ]
        await keyed.publish_many(rows)
    await keyed.publish(None, key=f"key-{round_number}")
    leases = await plain.lease(6, seconds=1000)
    await plain.settle(leases[:4])
    await plain.release(leases[4:5])
    snapshot = await cursor.next()
    assert snapshot is not None
    await snapshot.commit(snapshot.after + 5)
    await plain.stage(f"stage-{round_number}", [b"staged %d" % row for row in range(3)])
    await keyed.lease(2, seconds=1000)


def open_cells(folder: Path) -> LmdbCells:
    """The index, with a ballast that costs nothing."""
    return LmdbCells(folder / "index", ballast_bytes=4096, spare_bytes=4096)


def read_everything(folder: Path, refused: set[ShardId] | None = None) -> Everything:
    """Open the folder and read all there is.

    Shards that cannot be read as a whole are left out and put into `refused`, if that is given.

    Raises:
        Corrupt: it is damaged.
    """
    disk = RealDisk(folder)
    with ExitStack() as opened:
        cells = open_cells(folder)
        opened.callback(cells.close)
        store = DiskStore.open(disk, cells)
        replay = Replay(disk, start=store.replay_mark(), needed_from=store.needed_from())
        opened.callback(replay.close)
        entries = [
            (entry, position) for position, payload in replay for entry in decode_entries(payload)
        ]
        log = WriteAheadLog.open(replay, SHAPE, chance=os.urandom)
        opened.callback(log.close)
        store.attach(log)
        recovery = Recovery(
            store.applied, store.facts(), store.fold, commits_when_synced=lambda _: True
        )
        for entry, position in entries:
            recovery.read(entry, position)
        found: Everything = {"applied": store.applied(LOCAL), "facts": recovery.facts}
        for shard in sorted(store.shards()):
            try:
                found |= _read_shard(store, shard)
            except millrace.errors.Corrupt:
                if refused is None:
                    raise
                refused.add(shard)
    return found


def _read_shard(store: DiskStore, shard: ShardId) -> Everything:
    meta = store.meta(shard)
    assert meta is not None
    readers = [Reader(), Reader(retain=True)]
    readers += [Reader(interval.pin, retain=True) for interval in meta.intervals if interval.pin]
    found: Everything = {
        f"{shard} meta": meta,
        f"{shard} cells": sorted(store.cells(shard)),
    }
    for reader in readers:
        batches = list(store.scan(shard, 0, meta.last_seq, reader))
        # Comparing tables takes a fraction of the time that comparing rows would.
        found[f"{shard} rows for {reader}"] = pa.Table.from_batches(batches, SCHEMA)
    for name in [key.decode() for kind, key, _ in store.cells(shard) if kind is Kind.STAGE]:
        facts = store.stage(shard, name, grouped=False)
        found[f"{shard} stage {name}"] = {"keys": facts.keys, "deletes": facts.deletes}
    keys = [b"key-%d" % number for number in range(10)]
    found[f"{shard} keys"] = store.find(shard, keys)
    return found


def shown(value: object) -> object:
    """The value as JSON can hold it: bytes as hexadecimal digits."""
    match value:
        case bytes():
            return value.hex()
        case pa.Table():
            return [list(map(shown, row.values())) for row in value.to_pylist()]
        case Enum():
            return value.name
        case datetime():
            return value.isoformat()
        case dict():
            return {str(key): shown(one) for key, one in value.items()}
        case list() | tuple():
            return [shown(one) for one in value]
        case msgspec.Struct():
            return shown(msgspec.structs.asdict(value))
        case _:
            return value


def find_fault(folder: Path) -> list[str]:
    """What a full walk over the index finds.

    Raises:
        Nothing; what cannot be opened is a fault as well.
    """
    try:
        cells = open_cells(folder)
    except millrace.errors.Fatal as error:
        return [error.message]
    try:
        return cells.check()
    finally:
        cells.close()
