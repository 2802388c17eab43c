"""Reading: rows from files, by other threads, to the end of the engine and of the disk."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from millrace import errors, limits
from millrace.client.engine import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.node import Node, real_ports
from tests.client.harness import SMALL, embedded, opened, run


async def filled(m: Millrace, name: str = "orders") -> Queue:
    queue = await m.queue(name)
    for n in range(12):
        await queue.publish_many([b"%s %d" % (name.encode(), n) + bytes(1000)] * 300)
    return queue


# --- Rows in files -------------------------------------------------------------------------------


async def seal(path: Path, names: list[str]) -> list[Path]:
    """Fill queues whose rows then lie in sealed files, those of each in files of its own."""
    for name in names:
        node = await Node.open(real_ports(path), SMALL)
        async with Millrace(EmbeddedEngine(node)) as m:
            await filled(m, name)
            await (await m.queue("last")).publish_many([bytes(1000)] * 900)
            await node.keeper.seal_all()
    return sorted((path / "sealed").iterdir())


def test_sealed_rows_are_leased_and_read(tmp_path: Path) -> None:
    async def main() -> None:
        assert await seal(tmp_path, ["orders"])
        async with opened(tmp_path) as m:
            queue = await m.find("orders")
            leases = await queue.lease(1000)
            assert [lease.seq for lease in leases] == list(range(1, 1001))
            assert leases[300].body.startswith(b"orders 1\x00")
            async with queue.snapshot() as snapshot:
                assert snapshot.arrow().read_all().num_rows == 3600
            row = await queue.get(3600)
            assert row is not None
            assert (row.body or b"").startswith(b"orders 11\x00")

    run(main())


def test_a_lease_is_given_back_if_reading_is_cancelled(tmp_path: Path) -> None:
    """Cold rows are read by another thread, for which the call waits."""

    async def main() -> None:
        await seal(tmp_path, ["orders"])
        for turns in range(1, 10):
            async with opened(tmp_path) as m:
                queue = await m.find("orders")
                task = asyncio.create_task(queue.lease(3600, seconds=3600))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                if task.cancelled():
                    again = await queue.lease(3600, seconds=3600, wait=30)
                    assert [lease.seq for lease in again] == list(range(1, 3601))
                    await queue.release(again)
                else:
                    await queue.release(task.result())

    run(main())


def test_a_damaged_file_refuses_its_rows_and_no_others(tmp_path: Path) -> None:
    async def main() -> None:
        await seal(tmp_path, ["orders", "others"])
        damaged = 0
        for file in sorted((tmp_path / "sealed").iterdir()):
            data = bytearray(file.read_bytes())
            at = data.find(b"orders 5\x00")
            if at >= 0:
                data[at] ^= 1
                file.write_bytes(data)
                damaged += 1
        assert damaged
        async with opened(tmp_path) as m:
            orders, others = await m.find("orders"), await m.find("others")
            with pytest.raises(errors.Corrupt, match=r"\.arrow"):
                await orders.lease(3600, seconds=3600)
            async with orders.snapshot() as snapshot:
                reader = snapshot.arrow()
                with pytest.raises(errors.Corrupt, match=r"\.arrow"):
                    reader.read_all()
            assert len(await others.lease(3600)) == 3600
            # What could not be read is nobody's, and comes again when the file was mended.
            assert (await orders.explain(1)).state == "returned"
            assert (await orders.stats())["live"] == 3600

    run(main())


# --- Threads -------------------------------------------------------------------------------------


@embedded
async def test_a_reader_of_a_closed_engine_is_told(m: Millrace) -> None:
    queue = await filled(m)
    async with queue.snapshot() as snapshot:
        here, there = snapshot.arrow(), snapshot.arrow()
        first = here.read_next_batch()
        await asyncio.to_thread(there.read_next_batch)
    await m.close()
    with pytest.raises(errors.Closed):
        here.read_next_batch()
    with pytest.raises(errors.Closed):
        await asyncio.to_thread(there.read_next_batch)
    assert first.column("value")[0].as_py().startswith(b"orders 0")


def test_a_reader_outlives_its_event_loop(tmp_path: Path) -> None:
    async def main() -> pa.RecordBatchReader:
        async with opened(tmp_path) as m:
            queue = await filled(m)
            async with queue.snapshot() as snapshot:
                return await asyncio.to_thread(snapshot.arrow)

    reader = run(main())

    def read() -> None:
        with pytest.raises(errors.Closed):
            reader.read_all()

    asyncio.run(asyncio.to_thread(read))


def test_a_blocked_event_loop_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's own thread waits for another one, which waits for the loop."""
    monkeypatch.setattr(limits, "READ_SECONDS_MAX", 0.05)

    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await filled(m)
            async with queue.snapshot() as snapshot:
                with ThreadPoolExecutor(1) as pool:
                    reading = pool.submit(snapshot.arrow().read_all)
                    with pytest.raises(errors.Retry, match="to_thread"):
                        reading.result(timeout=30)
                assert snapshot.arrow().read_all().num_rows == 3600

    run(main())
