"""A folder of an earlier version, in which one cell had all partitions of a queue.

`slices-1.tar.xz` was written by that version: 60 messages in 3 to 40 partitions, of which lease 1
holds 5, 12, 37 and 52; one was settled, 8 and 9 were deleted, and there were 37 partitions then.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from millrace import Millrace
from millrace.client.embedded import EmbeddedEngine
from millrace.core import bounds
from millrace.core.cells import Kind, PartitionCell, SlicesCell
from millrace.core.format.codec import decode_cell
from millrace.core.model import ShardId
from millrace.node import Node, real_ports
from tests.crash.small_folder import SETTINGS
from tests.formats.make_golden import unpack

WRITTEN_MS = 1_700_000_000_000
HELD = [5, 12, 37, 52]
JOBS = ShardId(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    unpack((Path(__file__).parent / "slices-1.tar.xz").read_bytes(), path)
    return path


def cells(node: Node) -> tuple[PartitionCell, list[SlicesCell]]:
    """The queue's cell, and its pages."""
    [whole] = [decode_cell(Kind.PARTITION, v) for _, _, v in node.store.cells(JOBS, Kind.PARTITION)]
    pages = [decode_cell(Kind.SLICES, v) for _, _, v in node.store.cells(JOBS, Kind.SLICES)]
    assert isinstance(whole, PartitionCell)
    return whole, [page for page in pages if isinstance(page, SlicesCell)]


async def drained(m: Millrace) -> list[int]:
    """The seqs of all that is handed out, until nothing is."""
    queue, found = await m.find("jobs"), list[int]()
    while leases := await queue.lease(5, seconds=60):
        found += [lease.seq for lease in leases]
        await queue.settle(leases)
    return found


def test_partitions_of_one_cell_are_read_and_become_pages(folder: Path) -> None:
    now_ms = WRITTEN_MS

    async def work() -> list[int]:
        ports = replace(real_ports(folder), now_ms=lambda: now_ms)
        node = await Node.open(ports, replace(SETTINGS, fork=True))
        async with Millrace(EmbeddedEngine(node, str(folder))) as m:
            queue = await m.find("jobs")
            before, pages = cells(node)
            assert await queue.partitions() >= 37
            if not pages:
                assert (len(before.slices), before.size, before.waiting) == (37, 37, 53)
            found = await drained(m)
            await node.checkpointer.checkpoint()
            after, pages = cells(node)
            assert after.slices == ()
            assert sum(len(page.slices) for page in pages) == after.count == 40
            assert all(len(page.slices) <= bounds.PARTITIONS_PAGE for page in pages)
            assert after.base == 37
        return found

    first = asyncio.run(work())
    assert not set(first) & {8, 9, *HELD}
    # The rest waits behind the lock of the lease of then, in slices that were cut over its own.
    now_ms += 3_600_000
    second = asyncio.run(work())
    everything = sorted(first + second)
    assert len(everything) == len(set(everything)) == 57
    assert set(HELD) <= set(second)


def test_the_first_change_keeps_all_partitions(folder: Path) -> None:
    """One that is of none of them: a message comes."""

    async def publish() -> list[SlicesCell]:
        ports = replace(real_ports(folder), now_ms=lambda: WRITTEN_MS)
        node = await Node.open(ports, replace(SETTINGS, fork=True))
        async with Millrace(EmbeddedEngine(node, str(folder))) as m:
            queue = await m.find("jobs")
            assert await queue.partitions() == 37
            await queue.publish(b"new")
            await node.checkpointer.checkpoint()
            return cells(node)[1]

    first = asyncio.run(publish())
    assert [len(page.slices) for page in first] == [32, 5]
    # Those that lease 1 held parts of are locked, and no others.
    assert {lease for page in first for one in page.slices for lease in one.leases} == {1}
    assert asyncio.run(publish()) == first
