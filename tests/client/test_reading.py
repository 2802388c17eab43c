"""Reading rows from files, in other threads, until the engine ends or the disk fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from millrace import errors, limits
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.core.model import NewMessage, ShardId
from millrace.node import LOCAL, Node, real_ports
from millrace.store.row_location import RowLocation
from millrace.store.scan import Scan, ScanPart
from millrace.store.sealed import SealedFile
from tests.client.harness import SMALL, Clock, embedded, opened, run
from tests.support.timeouts import scaled


async def filled(m: Millrace, name: str = "orders") -> Queue:
    queue = await m.queue(name)
    for n in range(12):
        await queue.publish_many([b"%s %d" % (name.encode(), n) + bytes(1000)] * 300)
    return queue


# --- Rows in files -------------------------------------------------------------------------------


async def seal(path: Path, names: list[str]) -> list[Path]:
    """Fill queues whose rows then are in sealed files, one set per queue."""
    for name in names:
        node = await Node.open(real_ports(path), SMALL)
        async with Millrace(EmbeddedEngine(node)) as m:
            await filled(m, name)
            await (await m.queue("last")).publish_many([bytes(1000)] * 900)
            await node.checkpointer.seal_all()
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
    """Cold rows are read in another thread, while the call waits."""

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
            with pytest.raises(errors.Quarantined, match=r"\.arrow"):
                await orders.lease(3600, seconds=3600)
            with pytest.raises(errors.Quarantined, match=r"\.arrow"):
                async with orders.snapshot():
                    pass
            assert len(await others.lease(3600)) == 3600
            # What could not be read is nobody's, and comes again when the file was mended.
            assert (await orders.explain(1)).state == "returned"
            assert (await orders.stats())["live"] == 3600

    run(main())


# --- Cold rows (Y2) ------------------------------------------------------------------------------


def watch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the threads that read record batches for the first time, or blocks of an earlier
    process."""
    threads: list[int] = []
    verify = SealedFile.verify

    def watched(file: SealedFile, place: RowLocation, shard: int) -> None:
        threads.append(threading.get_ident())
        verify(file, place, shard)

    monkeypatch.setattr(SealedFile, "verify", watched)
    return threads


async def prepare(path: Path) -> datetime:
    """Make a folder whose rows are all sealed; return a time within a record batch of `orders`."""
    clock = Clock()
    clock.stop()
    ports = replace(real_ports(path), now_ms=clock)
    node = await Node.open(ports, SMALL)
    async with Millrace(EmbeddedEngine(node)) as m:
        orders = await m.queue("orders")
        times: list[int] = []
        for n in range(12):
            clock.forward(seconds=1)
            times.append(clock())
            await orders.publish_many([b"orders %d" % n + bytes(1000)] * 300)
        keyed = await m.queue("keyed", keyed=True)
        await keyed.publish(b"old", key="k")
        # Without a pin, the old revision would be left out when it is sealed.
        await keyed.snapshot().__aenter__()
        await keyed.publish(b"new", key="k")
        await keyed.stage("s", [NewMessage(b"staged", b"k")] * 3)
        await node.checkpointer.seal_all()
    return datetime.fromtimestamp(times[1] / 1000, UTC)


async def lease(m: Millrace, _: datetime) -> None:
    assert len(await (await m.find("orders")).lease(500)) == 500


async def peek(m: Millrace, _: datetime) -> None:
    assert len(await (await m.find("orders")).peek(700)) == 700


async def get(m: Millrace, _: datetime) -> None:
    assert await (await m.find("orders")).get(3_000) is not None


async def batches(m: Millrace, _: datetime) -> None:
    async with (await m.find("orders")).snapshot() as snapshot:
        assert sum([batch.num_rows async for batch in snapshot.batches()]) == 3_600


async def rows(m: Millrace, _: datetime) -> None:
    async with (await m.find("orders")).snapshot() as snapshot:
        assert [row.seq async for row in snapshot.rows()] == list(range(1, 3_601))


async def explain(m: Millrace, _: datetime) -> None:
    found = await (await m.find("keyed")).explain(1)
    assert (found.state, found.superseded_by) == ("dead", 2)


async def publish_staged(m: Millrace, _: datetime) -> None:
    assert len(await (await m.find("keyed")).publish_staged(["s"])) == 3


async def transaction(m: Millrace, _: datetime) -> None:
    async with m.transaction() as t:
        later = t.publish_staged("keyed", ["s"])
    assert len(later.value) == 3


async def start_at_a_time(m: Millrace, when: datetime) -> None:
    cursor = await (await m.find("orders")).cursor("c", start=when)
    assert cursor.position.seq == 300


CALLS = [
    lease,
    peek,
    get,
    batches,
    rows,
    explain,
    publish_staged,
    transaction,
    start_at_a_time,
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_cold_rows_are_not_read_on_the_event_loop(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Millrace, datetime], Awaitable[None]],
) -> None:
    """A page fault in its thread would delay every commit."""

    async def main() -> None:
        when = await prepare(tmp_path)
        async with opened(tmp_path) as m:
            threads = watch(monkeypatch)
            await call(m, when)
            assert threads
            assert threading.get_ident() not in threads
            before = len(threads)
            if call not in (publish_staged, transaction, start_at_a_time):
                await call(m, when)
            assert call is lease or len(threads) == before, "what was read is hot"

    run(main())


def test_workers_that_wait_for_the_same_rows_go_on_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If they continued one by one, they would settle one by one, in as many commits."""

    async def work(queue: Queue) -> None:
        leases = await queue.lease(10)
        assert len(leases) == 10
        await queue.settle(leases)

    async def main() -> None:
        await prepare(tmp_path)
        node = await Node.open(real_ports(tmp_path), SMALL)
        async with Millrace(EmbeddedEngine(node)) as m:
            queue = await m.find("orders")
            before = node.store.applied(LOCAL)
            looked: list[bool] = []
            hot = node.store.hot

            def watched(shard: ShardId, seqs: BitMap64) -> bool:
                looked.append(hot(shard, seqs))
                return looked[-1]

            monkeypatch.setattr(node.store, "hot", watched)
            may_read = threading.Event()
            node.read_thread.submit(may_read.wait)
            workers = [asyncio.create_task(work(queue)) for _ in range(8)]
            for _ in iter(lambda: len(looked) == 8, True):
                await asyncio.sleep(0)
            assert looked == [False] * 8, "all of them wait"
            may_read.set()
            await asyncio.gather(*workers)
            assert node.store.applied(LOCAL) == before + 2, "one of leases, one of settles"

    run(main())


@embedded
async def test_rows_of_a_queue_that_has_ended_are_not_found(m: Millrace) -> None:
    """A queue may be deleted between the answer of a lease call and the read of its rows."""
    queue = await m.queue("jobs")
    await queue.publish_many([b"a", b"b"])
    engine, shard = m._engine, queue.shards.first
    assert isinstance(engine, EmbeddedEngine)
    await m.delete_queue("jobs")
    for seqs in ([1], [1, 2]):
        with pytest.raises(errors.NotFound):
            engine.rows_in_memory(shard, BitMap64(seqs), 1 << 20)


@pytest.mark.parametrize("attempt", [None, "x"])
def test_a_lease_call_that_is_cancelled_while_its_rows_are_read(
    tmp_path: Path, attempt: str | None
) -> None:
    """The messages are released, except with an attempt id: its caller repeats the call, or holds
    them already."""

    async def main() -> None:
        await prepare(tmp_path)
        node = await Node.open(real_ports(tmp_path), SMALL)
        async with Millrace(EmbeddedEngine(node)) as m:
            queue = await m.find("orders")
            may_read = threading.Event()
            node.read_thread.submit(may_read.wait)
            call = asyncio.create_task(queue.lease(10, seconds=600, attempt=attempt))
            while (await queue.holders()).held_by_workers < 10:
                assert not call.done()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            may_read.set()
            held = (await queue.holders()).held_by_workers
            again = await queue.lease(10, attempt=attempt)
            assert [lease.seq for lease in again] == list(range(1, 11))
            assert held == (10 if attempt else 0)

    run(main())


def test_who_pulls_a_reader_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If each step ran on the event loop, a scan in another thread would delay every commit."""

    async def main() -> None:
        await prepare(tmp_path)
        async with opened(tmp_path) as m:
            threads = watch(monkeypatch)
            found: list[int] = []
            find = Scan.find

            def watched(scan: Scan, bytes_max: int = limits.SCAN_STEP_BYTES) -> ScanPart | None:
                found.append(threading.get_ident())
                return find(scan, bytes_max)

            monkeypatch.setattr(Scan, "find", watched)
            async with (await m.find("orders")).snapshot() as snapshot:

                def read() -> int:
                    assert snapshot.arrow().read_all().num_rows == 3_600
                    return threading.get_ident()

                reader = await asyncio.to_thread(read)
                assert set(threads) == {reader}
                assert len(threads) > 2
                assert found == [threading.get_ident()] * 2, "once for all rows, once for the end"
                # On the loop's own thread nobody else can.
                assert snapshot.arrow().read_all().num_rows == 3_600

    run(main())


@embedded
async def test_a_reader_in_a_thread_beside_sealing(m: Millrace) -> None:
    """Locations found on the loop are read later: rows may have moved, or their pin expired."""
    engine = m._engine
    assert isinstance(engine, EmbeddedEngine)
    checkpointer = engine._node.checkpointer
    queue = await filled(m)
    async with queue.snapshot() as snapshot:
        reader = snapshot.arrow()
        first = await asyncio.to_thread(reader.read_next_batch)
        await queue.purge()
        await checkpointer.seal_all()
        rest = await asyncio.to_thread(reader.read_all)
        assert first.num_rows + rest.num_rows == 3_600
        seqs = first.column("seq").to_pylist() + rest.column("seq").to_pylist()
        assert seqs == list(range(1, 3_601))
        late = snapshot.arrow()
        await asyncio.to_thread(late.read_next_batch)
    with pytest.raises(errors.SnapshotExpired):
        await asyncio.to_thread(late.read_next_batch)
    reader = await asyncio.to_thread(snapshot.arrow)
    with pytest.raises(errors.SnapshotExpired):
        await asyncio.to_thread(reader.read_next_batch)


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
                        reading.result(timeout=scaled(30))
                assert snapshot.arrow().read_all().num_rows == 3600

    run(main())
