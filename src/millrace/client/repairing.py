"""Repair of a quarantined queue or topic: what can be read is exported, what cannot is dropped.

All rows are read once more. While that goes on the queue is quarantined, so that none is added.

Rule 1: nothing is dropped before the export is durable.
Rule 2: exactly the rows that cannot be read are dropped, in steps of what one command takes; the
quarantine ends after the last step. Repair that was interrupted is simply done again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.client.repaired import Repaired
from millrace.core.block import SCHEMA
from millrace.core.commands import Command
from millrace.core.fold import Reader
from millrace.core.model import Kind, ShardId
from millrace.core.quarantine import STATE
from millrace.core.quarantine_commands import EndQuarantine, Mend
from millrace.engine import damage
from millrace.engine.request import Request
from millrace.errors import Exists, Invalid
from millrace.node import Node
from millrace.store.unreadable import Unreadable
from millrace.wal.files import RealDisk


@dataclass(slots=True)
class _Shard:
    """What was found in one shard."""

    id: ShardId
    readable: int = 0
    unreadable: list[Unreadable] = field(default_factory=list)

    def ranges(self) -> list[tuple[int, int]]:
        """First and last of the rows that cannot be read, place by place."""
        return [(error.first, error.last) for error in self.unreadable]


async def repair(
    node: Node, shards: Sequence[ShardId], export: Path | None, *, drop: bool
) -> Repaired:
    """Read all rows of the shards of one queue or topic, and do what is asked with them."""
    if not any(node.store.cell(shard, Kind.QUARANTINE, STATE) for shard in shards):
        raise Invalid("the queue is not quarantined; there is nothing to repair", field="queue")
    folder = None if export is None else _Export(node, export)
    found: list[_Shard] = []
    for shard in shards:
        one = _Shard(shard)
        found.append(one)
        writer = None if folder is None else await folder.begin(shard)
        async for batch in _rows(node, one, 0, _last(node, shard)):
            one.readable += batch.num_rows
            if writer is not None:
                await node.reading.submit(partial(writer.write, batch))
        if folder is not None and writer is not None:
            await folder.end(one, writer)
    if folder is not None:
        await folder.close(found)
    ended = 0
    for one in found:
        for ranges in _steps(one.ranges()) if drop else ():
            ended += cast("int", await _ask(node, one.id, Mend(ranges)))
    lost = sum(last - first + 1 for one in found for first, last in one.ranges())
    is_open = drop or not lost
    if is_open:
        await _ask(node, shards[0], EndQuarantine())
    return Repaired(sum(one.readable for one in found), lost, ended, is_open)


async def _ask(node: Node, shard: ShardId, command: Command) -> object:
    request = Request(shard, command, asyncio.get_running_loop().create_future())
    node.host_of(shard).submit(request)
    return await request.future


def _last(node: Node, shard: ShardId) -> int:
    meta = node.store.meta(shard)
    return meta.last_seq if meta is not None else 0


async def _rows(node: Node, shard: _Shard, after: int, upto: int) -> AsyncIterator[pa.RecordBatch]:
    """The rows within (after, upto] that can be read; what cannot is noted."""
    while after < upto:
        # Settled rows that a cursor retains belong to it.
        scan = node.store.scan(shard.id, after, upto, Reader(retain=True))
        error: Unreadable | None = None
        try:
            while (part := scan.find(limits.READ_STEP_BYTES)) is not None:
                for batch in await node.reading.submit(part.load):
                    yield batch
                    after = batch.column("seq")[-1].as_py()
        except Unreadable as found:
            error = found
        if error is None:
            return
        if error.first > after + 1:
            # What comes before was lost with the step that has failed.
            async for batch in _rows(node, shard, after, error.first - 1):
                yield batch
        await damage.committed(node.host_of(shard.id).quarantine(error))
        error.first = max(error.first, after + 1)
        shard.unreadable.append(error)
        after = error.last


def _steps(ranges: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], ...]]:
    """The ranges, as many rows at once as one command ends."""
    most = limits.PUBLISH_MESSAGES_MAX
    steps: list[list[tuple[int, int]]] = []
    room = 0
    for low, last in ranges:
        first = low
        while first <= last:
            if not room:
                steps.append([])
                room = most
            end = min(last, first + room - 1)
            steps[-1].append((first, end))
            room -= end - first + 1
            first = end + 1
    return [tuple(step) for step in steps]


class _Report(msgspec.Struct, frozen=True):
    """One range of rows that cannot be read, as `unreadable.json` lists it."""

    shard: int
    first: int
    last: int
    reason: str
    file: str | None
    """The file of the export with their bytes; null: the bytes are gone."""


_Writer = pa.ipc.RecordBatchStreamWriter


class _Export:
    """The folder that a repair writes to."""

    def __init__(self, node: Node, path: Path) -> None:
        self._node = node
        self._path = path
        self._disk: RealDisk | None = None
        self._reports: list[_Report] = []

    async def begin(self, shard: ShardId) -> _Writer:
        """The file that takes the readable rows of a shard."""
        return await self._node.reading.submit(lambda: self._begin(shard))

    def _begin(self, shard: ShardId) -> _Writer:
        if self._disk is None:
            if self._path.exists() and (not self._path.is_dir() or any(self._path.iterdir())):
                raise Exists(f"{self._path} is there and not empty", field="into")
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._disk = RealDisk(self._path)
        path = self._path / f"rows-{shard}.arrow"
        path.touch(mode=0o600)
        return pa.ipc.new_stream(pa.OSFile(str(path), "wb"), SCHEMA)

    async def end(self, shard: _Shard, writer: _Writer) -> None:
        """All rows of the shard were written; its unreadable bytes are as well."""
        finders = [
            (error, self._node.store.raw_bytes(shard.id, error.first)) for error in shard.unreadable
        ]

        def finish() -> None:
            assert self._disk is not None
            writer.close()
            for error, find in finders:
                data = find()
                name = None
                if data is not None:
                    name = f"unreadable-{shard.id}-{error.first}.bin"
                    _write(self._disk, name, data)
                report = _Report(shard.id, error.first, error.last, error.message, name)
                self._reports.append(report)

        await self._node.reading.submit(finish)

    async def close(self, shards: Sequence[_Shard]) -> None:
        """Make all of it durable."""

        def finish() -> None:
            assert self._disk is not None
            _write(self._disk, "unreadable.json", msgspec.json.encode(self._reports))
            for shard in shards:
                file = self._disk.open(f"rows-{shard.id}.arrow")
                file.sync_all()
                file.close()
            self._disk.sync_folder("")

        await self._node.reading.submit(finish)


def _write(disk: RealDisk, name: str, data: bytes) -> None:
    file = disk.create(name)
    try:
        file.write([data], 0)
        file.sync_all()
    finally:
        file.close()
