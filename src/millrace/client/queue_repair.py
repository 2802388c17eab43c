"""Repair of a quarantined queue or topic: export the readable rows, drop the unreadable ones.

All rows are read once more. The queue stays quarantined during that, so that no row is added.

Rule 1: nothing is dropped before the export is durable.
Rule 2: exactly the unreadable rows are dropped, in steps of one command each; the quarantine ends
after the last step. An interrupted repair is simply repeated.
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
from millrace.client.maintenance_results import Repaired
from millrace.core.cells import Kind
from millrace.core.commands import Command, EndQuarantine, Mend
from millrace.core.delivery.quarantine import STATE
from millrace.core.format.block import SCHEMA
from millrace.core.model import ShardId
from millrace.core.state.fold import Reader
from millrace.engine import quarantine_reports
from millrace.engine.command_request import CommandRequest
from millrace.errors import Exists, Invalid
from millrace.node import Node
from millrace.store.unreadable import Unreadable
from millrace.wal.disk import RealDisk


@dataclass(slots=True)
class _Shard:
    """Readable and unreadable rows of one shard."""

    id: ShardId
    readable: int = 0
    unreadable: list[Unreadable] = field(default_factory=list)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the first and last row of each unreadable range."""
        return [(error.first, error.last) for error in self.unreadable]


async def repair(
    node: Node, shards: Sequence[ShardId], export: Path | None, *, drop: bool
) -> Repaired:
    """Read all rows of the shards of one queue or topic; export, drop and reopen as requested."""
    if not any(node.store.cell(shard, Kind.QUARANTINE, STATE) for shard in shards):
        raise Invalid("the queue is not quarantined; there is nothing to repair", field="queue")
    folder = None if export is None else _Export(node, export)
    results: list[_Shard] = []
    for shard in shards:
        result = _Shard(shard)
        results.append(result)
        writer = None if folder is None else await folder.begin(shard)
        async for batch in _rows(node, result, 0, _last(node, shard)):
            result.readable += batch.num_rows
            if writer is not None:
                await node.read_thread.submit(partial(writer.write, batch))
        if folder is not None and writer is not None:
            await folder.end(result, writer)
    if folder is not None:
        await folder.close(results)
    dropped = 0
    for result in results:
        for ranges in _steps(result.ranges()) if drop else ():
            dropped += cast("int", await _ask(node, result.id, Mend(ranges)))
    lost_rows = sum(last - first + 1 for result in results for first, last in result.ranges())
    is_open = drop or not lost_rows
    if is_open:
        await _ask(node, shards[0], EndQuarantine())
    return Repaired(sum(result.readable for result in results), lost_rows, dropped, is_open)


async def _ask(node: Node, shard: ShardId, command: Command) -> object:
    request = CommandRequest(shard, command, asyncio.get_running_loop().create_future())
    node.commit_loop_of(shard).submit(request)
    return await request.future


def _last(node: Node, shard: ShardId) -> int:
    meta = node.store.meta(shard)
    return meta.last_seq if meta is not None else 0


async def _rows(node: Node, shard: _Shard, after: int, upto: int) -> AsyncIterator[pa.RecordBatch]:
    """Iterate over the readable rows within (after, upto], and record the unreadable ones."""
    while after < upto:
        # With settled rows that a cursor retains.
        scan = node.store.scan(shard.id, after, upto, Reader(retain=True))
        error: Unreadable | None = None
        try:
            while (part := scan.find(limits.READ_STEP_BYTES)) is not None:
                for batch in await node.read_thread.submit(part.load):
                    yield batch
                    after = batch.column("seq")[-1].as_py()
        except Unreadable as unreadable:
            error = unreadable
        if error is None:
            return
        if error.first > after + 1:
            # Read the rows before the damage again: the failed step returned none of them.
            async for batch in _rows(node, shard, after, error.first - 1):
                yield batch
        await quarantine_reports.wait_until_committed(
            node.commit_loop_of(shard.id).quarantine(error)
        )
        error.first = max(error.first, after + 1)
        shard.unreadable.append(error)
        after = error.last


def _steps(ranges: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], ...]]:
    """Split ranges into steps, each with as many rows as one command may end."""
    step_rows = limits.PUBLISH_MESSAGES_MAX
    steps: list[list[tuple[int, int]]] = []
    room = 0
    for low, last in ranges:
        first = low
        while first <= last:
            if not room:
                steps.append([])
                room = step_rows
            end = min(last, first + room - 1)
            steps[-1].append((first, end))
            room -= end - first + 1
            first = end + 1
    return [tuple(step) for step in steps]


class _Report(msgspec.Struct, frozen=True):
    """An unreadable range of rows, as listed in `unreadable.json`."""

    shard: int
    first: int
    last: int
    reason: str
    file: str | None
    """Export file with their bytes; null if the bytes are lost."""


_Writer = pa.ipc.RecordBatchStreamWriter


class _Export:
    """The export folder of a repair."""

    def __init__(self, node: Node, path: Path) -> None:
        self._node = node
        self._path = path
        self._disk: RealDisk | None = None
        self._reports: list[_Report] = []

    async def begin(self, shard: ShardId) -> _Writer:
        """Create the file for the readable rows of a shard."""
        return await self._node.read_thread.submit(lambda: self._begin(shard))

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
        """Finish the file of a shard, and export the bytes of its unreadable rows."""
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

        await self._node.read_thread.submit(finish)

    async def close(self, shards: Sequence[_Shard]) -> None:
        """Write the report and make everything durable."""

        def finish() -> None:
            assert self._disk is not None
            _write(self._disk, "unreadable.json", msgspec.json.encode(self._reports))
            for shard in shards:
                file = self._disk.open(f"rows-{shard.id}.arrow")
                file.sync_all()
                file.close()
            self._disk.sync_folder("")

        await self._node.read_thread.submit(finish)


def _write(disk: RealDisk, name: str, data: bytes) -> None:
    file = disk.create(name)
    try:
        file.write([data], 0)
        file.sync_all()
    finally:
        file.close()
