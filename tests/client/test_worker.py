"""Workers: functions called with the messages of a queue."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import millrace
from millrace import errors, limits
from millrace.client.lease import Lease
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.client.transaction import Transaction
from millrace.client.worker import Verdict, Worker, WorkerStats
from millrace.node import Node
from tests.client.harness import Clock, embedded, eventually, opened, run, timed
from tests.simulation.harness import Bench
from tests.support.timeouts import scaled

ROOT = Path(__file__).resolve().parents[2]


async def work_off(queue: Queue, handle: Callable[..., object], **options: object) -> Worker:
    """Run a worker until nothing is left."""
    worker = Worker(queue, handle, idle=0, **options)  # type: ignore[arg-type]
    await worker.run()
    return worker


async def extended(lease: Lease) -> None:
    """Wait until the lease was extended."""
    before = lease.deadline_ms

    async def is_later() -> bool:
        return lease.deadline_ms > before

    await eventually(is_later)


async def state(queue: Queue, seq: int) -> str:
    return (await queue.explain(seq)).state


# --- Functions -----------------------------------------------------------------------------------


@embedded
async def test_an_asynchronous_function_is_called_with_every_message(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"%d" % n for n in range(100)])
    bodies: list[bytes] = []

    async def handle(message: Lease) -> None:
        await asyncio.sleep(0)
        bodies.append(message.body)

    worker = await work_off(queue, handle)
    assert sorted(bodies) == sorted(b"%d" % n for n in range(100))
    assert worker.stats == WorkerStats(handled=100)
    assert (await queue.stats())["settled"] == 100


@embedded
async def test_a_plain_function_runs_in_threads(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"x"] * 4)
    together = threading.Barrier(4)
    names: set[str] = set()

    def handle(message: Lease) -> None:
        # All four run at the same time, or none goes on.
        together.wait(timeout=scaled(30))
        names.add(threading.current_thread().name)

    worker = await work_off(queue, handle, concurrency=4)
    assert worker.stats.handled == 4
    assert len(names) == 4
    assert all(name.startswith("millrace-worker") for name in names)


@embedded
async def test_no_more_run_at_a_time_than_was_asked_for(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"x"] * 50)
    most: list[int] = []
    held: list[int] = []

    async def handle(message: Lease) -> None:
        await asyncio.sleep(0)
        most.append(worker.stats.running)
        states = [await state(queue, seq) for seq in range(1, 51)]
        held.append(states.count("leased"))

    worker = Worker(queue, handle, concurrency=3, prefetch=2, idle=0)
    await worker.run()
    assert max(most) == 3
    assert max(held) <= 5


@embedded
async def test_without_prefetch_nothing_is_leased_ahead(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"x"] * 3)

    async def handle(message: Lease) -> None:
        seqs = [seq for seq in (1, 2, 3) if await state(queue, seq) == "leased"]
        assert seqs == [message.seq]

    worker = await work_off(queue, handle, concurrency=1, prefetch=0)
    assert worker.stats == WorkerStats(handled=3)


class Asynchronous:
    async def __call__(self, message: Lease) -> None:
        await asyncio.sleep(0)


async def with_more(shop: str, message: Lease) -> None:
    assert shop == "corner"


async def any_number(*arguments: object) -> None:
    assert len(arguments) == 1


@pytest.mark.parametrize(
    "handle", [Asynchronous(), functools.partial(with_more, "corner"), any_number, repr]
)
def test_what_can_be_called_may_be_given(tmp_path: Path, handle: Callable[..., object]) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders")
            await queue.publish(b"x")
            assert (await work_off(queue, handle)).stats == WorkerStats(handled=1)

    run(main())


@embedded
async def test_wrong_functions_and_numbers_are_refused(m: Millrace) -> None:
    queue = await m.queue("orders")

    def three(message: Lease, transaction: Transaction, more: int) -> None: ...

    def named(message: Lease, *, more: int) -> None: ...

    def none() -> None: ...

    for handle in (three, named, none, 5):
        with pytest.raises(errors.Invalid) as refused:
            Worker(queue, handle)  # type: ignore[arg-type]
        assert refused.value.field == "handle"

    def fine(message: Lease, retries: int = 3) -> None: ...

    with pytest.raises(errors.Invalid, match="orders") as no_queue:
        Worker("orders", fine)  # type: ignore[arg-type]
    assert no_queue.value.field == "queue"

    wrong: list[tuple[str, object]] = [
        ("concurrency", 0),
        ("concurrency", limits.WORKER_CONCURRENCY_MAX + 1),
        ("prefetch", -1),
        ("lease_seconds", -1),
        ("idle", -1),
        ("max_failures", 0),
        ("on_poison", lambda message: None),
        ("grace_seconds", -1),
    ]
    for field, value in wrong:
        with pytest.raises(errors.Refused) as found:
            Worker(queue, fine, **{field: value})  # type: ignore[arg-type]
        assert found.value.field == field


@embedded
async def test_a_plain_function_that_returns_an_awaitable_has_done_nothing(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")

    async def later(message: Lease) -> None:
        raise AssertionError

    failed: list[BaseException] = []

    def on_poison(message: Lease, error: BaseException) -> Verdict:
        failed.append(error)
        return Verdict.SETTLE

    await work_off(queue, lambda message: later(message), max_failures=1, on_poison=on_poison)
    assert isinstance(failed[0], TypeError)


# --- Failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(), asyncio.CancelledError()])
@pytest.mark.parametrize("is_plain", [True, False])
def test_a_failed_message_comes_again(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    is_plain: bool,  # noqa: FBT001
) -> None:
    seen: list[tuple[int, int]] = []

    def plain(message: Lease) -> None:
        seen.append((message.deliveries, message.failures))
        if message.failures < 2:
            raise error

    async def asynchronous(message: Lease) -> None:
        plain(message)

    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders")
            await queue.publish(b"x")
            worker = await work_off(queue, plain if is_plain else asynchronous)
            assert worker.stats == WorkerStats(handled=1, failed=2)

    with caplog.at_level(logging.WARNING, "millrace.worker"):
        run(main())
    assert seen == [(1, 0), (2, 1), (3, 2)]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[1].startswith("message 1 of queue orders failed (failure 2): ")


@embedded
async def test_poison_is_released_again_unless_somebody_decides(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")
    judged: list[int] = []

    async def handle(message: Lease) -> None:
        if message.failures < 4:
            raise ValueError

    def on_poison(message: Lease, error: BaseException) -> Verdict:
        assert isinstance(error, ValueError)
        judged.append(message.failures)
        return Verdict.RELEASE

    worker = await work_off(queue, handle, max_failures=3, on_poison=on_poison)
    assert worker.stats == WorkerStats(handled=1, failed=4)
    # Its third failure and those after it.
    assert judged == [2, 3]


@embedded
async def test_poison_is_put_elsewhere_and_settled_at_once(m: Millrace) -> None:
    queue, bad = await m.queue("orders"), await m.queue("bad")
    await queue.publish(b"x")

    async def handle(message: Lease) -> None:
        raise ValueError("never")

    async def on_poison(message: Lease, error: BaseException, transaction: Transaction) -> Verdict:
        transaction.publish("bad", message.body, headers={"error": str(error)})
        return Verdict.SETTLE

    worker = await work_off(queue, handle, max_failures=2, on_poison=on_poison)
    assert worker.stats == WorkerStats(failed=2)
    rows = await bad.peek()
    assert [(row.body, row.headers) for row in rows] == [(b"x", (("error", b"never"),))]
    assert (await queue.stats())["settled"] == 1


@embedded
async def test_a_judge_that_fails_or_releases_settles_nothing(m: Millrace) -> None:
    queue, bad = await m.queue("orders"), await m.queue("bad")
    await queue.publish(b"x")

    async def handle(message: Lease) -> None:
        if message.failures < 2:
            raise ValueError

    async def on_poison(message: Lease, error: BaseException, transaction: Transaction) -> object:
        transaction.publish(bad, b"not done")
        if message.failures == 0:
            raise KeyError
        return None

    worker = await work_off(queue, handle, max_failures=1, on_poison=on_poison)
    assert worker.stats == WorkerStats(handled=1, failed=2)
    assert await bad.peek() == []


@embedded
async def test_poison_that_cannot_be_put_elsewhere_comes_again(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")
    asked: list[int] = []

    async def handle(message: Lease) -> None:
        raise ValueError

    async def on_poison(message: Lease, error: BaseException, transaction: Transaction) -> Verdict:
        asked.append(message.failures)
        transaction.publish("bad" if message.failures < 2 else queue, b"parked")
        return Verdict.SETTLE

    worker = Worker(queue, handle, max_failures=1, on_poison=on_poison, concurrency=1, prefetch=0)
    running = asyncio.create_task(worker.run())

    async def is_parked() -> bool:
        return (await queue.stats())["settled"] == 1

    await eventually(is_parked)
    worker.stop()
    await running
    assert asked[:3] == [0, 1, 2]


@embedded
async def test_a_limit_without_a_judge_changes_nothing(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")

    def handle(message: Lease) -> None:
        if message.failures < 3:
            raise ValueError

    worker = await work_off(queue, handle, max_failures=1)
    assert worker.stats == WorkerStats(handled=1, failed=3)


@embedded
async def test_a_function_may_end_its_message_itself(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"settle", b"release", b"fail"])

    async def handle(message: Lease) -> None:
        if message.deliveries > 1:
            return
        if message.body == b"settle":
            await message.settle()
        else:
            await message.release()
            assert message.body == b"release", "fail"

    worker = await work_off(queue, handle, concurrency=1)
    assert worker.stats == WorkerStats(handled=4, failed=1)
    assert (await queue.stats())["settled"] == 3


# --- Transactions --------------------------------------------------------------------------------


@embedded
async def test_what_is_published_is_settled_for(m: Millrace) -> None:
    orders, shipped = await m.queue("orders"), await m.queue("shipped")
    await orders.publish_many([b"%d" % n for n in range(20)])

    async def asynchronous(message: Lease, transaction: Transaction) -> None:
        transaction.publish("shipped", message.body)
        if message.failures == 0 and message.seq % 3 == 0:
            raise ValueError("after it was published, so that nothing was")

    worker = await work_off(orders, asynchronous)
    assert worker.stats == WorkerStats(handled=20, failed=6)
    bodies = [row.body for row in await shipped.peek(100)]
    assert sorted(bodies, key=int) == [b"%d" % n for n in range(20)]  # type: ignore[arg-type]

    def plain(message: Lease, transaction: Transaction) -> None:
        transaction.publish(orders, message.body)

    worker = await work_off(shipped, plain)
    assert worker.stats == WorkerStats(handled=20)
    assert (await orders.stats())["live"] == 20


def test_workers_that_lose_their_leases_publish_nothing_twice() -> None:
    bench = Bench()

    async def script(m: Millrace, _: Node) -> None:
        orders, shipped = await m.queue("orders"), await m.queue("shipped")
        await orders.publish_many([b"%d" % n for n in range(40)])

        async def handle(message: Lease, transaction: Transaction) -> None:
            transaction.publish(shipped, message.body)
            await asyncio.sleep(0)
            if message.deliveries < 3 and message.seq % 4 == 0:
                # It holds up the loop, so that nothing is extended in time.
                bench.clock.pass_to(bench.clock.seconds + 60)
            await asyncio.sleep(0)

        workers = [Worker(orders, handle, lease_seconds=30, idle=120) for _ in range(3)]
        await asyncio.gather(*(worker.run() for worker in workers))
        bodies = [row.body for row in await shipped.peek(1000)]
        assert sorted(bodies) == sorted(b"%d" % n for n in range(40))  # type: ignore[type-var]
        assert sum(worker.stats.handled for worker in workers) == 40
        assert sum(worker.stats.superseded for worker in workers) > 0

    bench.live(script)


CHAIN = """
import asyncio, sys
import millrace

async def ship(message, transaction):
    transaction.publish("shipped", message.body)
    print(message.seq, flush=True)

async def main():
    async with millrace.open(sys.argv[1]) as m:
        worker = millrace.Worker(await m.find("orders"), ship, lease_seconds=0.2)
        await worker.run()

asyncio.run(main())
"""


@pytest.mark.process
def test_a_killed_worker_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    count = 2000

    async def begin() -> None:
        async with millrace.open(tmp_path) as m:
            await m.queue("shipped")
            await (await m.queue("orders")).publish_many([b"%d" % n for n in range(count)])

    async def end() -> tuple[WorkerStats, list[bytes | None]]:
        async def ship(message: Lease, transaction: Transaction) -> None:
            transaction.publish("shipped", message.body)

        async with millrace.open(tmp_path) as m:
            # Until what the dead ones had leased has come back.
            worker = Worker(await m.find("orders"), ship, idle=0.5)
            await worker.run()
            shipped = await m.find("shipped")
            return worker.stats, [row.body for row in await shipped.peek(10_000)]

    run(begin())
    for lines in (1, 150):
        with subprocess.Popen(
            [sys.executable, "-c", CHAIN, str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            text=True,
        ) as program:
            assert program.stdout is not None
            for _ in range(lines):
                assert program.stdout.readline()
            program.kill()
    stats, bodies = run(end())
    assert 0 < stats.handled <= count
    assert len(bodies) == count
    assert set(bodies) == {b"%d" % n for n in range(count)}


@embedded
async def test_a_transaction_that_is_refused_is_a_failure(m: Millrace) -> None:
    orders = await m.queue("orders")
    await orders.publish(b"x")

    async def handle(message: Lease, transaction: Transaction) -> None:
        transaction.publish("shipped", b"y")
        if message.failures == 1:
            await m.queue("shipped")

    worker = await work_off(orders, handle)
    assert worker.stats == WorkerStats(handled=1, failed=1)
    assert len(await (await m.find("shipped")).peek()) == 1


@embedded
async def test_settling_and_committing_are_the_workers_affair(m: Millrace) -> None:
    orders = await m.queue("orders")
    await orders.publish_many([b"settles", b"ends"])

    async def handle(message: Lease, transaction: Transaction) -> None:
        if message.failures:
            return
        if message.body == b"settles":
            transaction.settle(message)
        elif message.body == b"ends":
            async with transaction:
                transaction.publish(orders, b"done all the same")

    worker = await work_off(orders, handle)
    assert worker.stats == WorkerStats(handled=3, failed=2)


# --- Lost messages -------------------------------------------------------------------------------


@timed
async def test_a_superseded_function_is_cancelled_and_settles_nothing(
    m: Millrace, clock: Clock
) -> None:
    clock.stop()
    prices = await m.queue("prices", keyed=True)
    await prices.publish(b"1", key="a")
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(message: Lease) -> None:
        if message.body == b"2":
            return
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with Worker(prices, handle, lease_seconds=0.05) as worker:
        await began.wait()
        await prices.publish(b"2", key="a")
        await cancelled.wait()

        async def is_handled() -> bool:
            return worker.stats == WorkerStats(handled=1, superseded=1)

        await eventually(is_handled)
    assert (await prices.stats())["settled"] == 1


@timed
async def test_who_swallows_the_cancellation_settles_nothing_either(
    m: Millrace, clock: Clock
) -> None:
    clock.stop()
    prices, seen = await m.queue("prices", keyed=True), await m.queue("seen")
    await prices.publish(b"1", key="a")

    async def handle(message: Lease, transaction: Transaction) -> None:
        transaction.publish("seen", message.body)
        if message.body == b"1":
            await prices.publish(b"2", key="a")
            with pytest.raises(asyncio.CancelledError):
                await asyncio.Event().wait()

    worker = await work_off(prices, handle, lease_seconds=0.05)
    assert worker.stats == WorkerStats(handled=1, superseded=1)
    assert [row.body for row in await seen.peek()] == [b"2"]


@timed
async def test_a_thread_learns_that_its_message_was_lost(m: Millrace, clock: Clock) -> None:
    clock.stop()
    prices = await m.queue("prices", keyed=True)
    await prices.publish(b"1", key="a")
    loop = asyncio.get_running_loop()

    def handle(message: Lease) -> None:
        if message.body == b"1":
            asyncio.run_coroutine_threadsafe(prices.publish(b"2", key="a"), loop).result(scaled(30))
            while message.lost is None:
                pass

    worker = await work_off(prices, handle, lease_seconds=0.05, concurrency=1)
    assert worker.stats == WorkerStats(handled=1, superseded=1)


@embedded
async def test_a_message_that_is_lost_at_the_very_end_is_not_a_failure(m: Millrace) -> None:
    prices, seen = await m.queue("prices", keyed=True), await m.queue("seen")
    await prices.publish(b"1", key="a")

    async def handle(message: Lease) -> None:
        if message.body == b"1":
            await prices.publish(b"2", key="a")

    async def both(message: Lease, transaction: Transaction) -> None:
        transaction.publish(seen, message.body)
        if message.body == b"3":
            await prices.publish(b"4", key="a")

    worker = await work_off(prices, handle)
    assert worker.stats == WorkerStats(handled=1, superseded=1)
    await prices.publish(b"3", key="a")
    worker = await work_off(prices, both)
    assert worker.stats == WorkerStats(handled=1, superseded=1)
    assert [row.body for row in await seen.peek()] == [b"4"]


@timed
async def test_what_was_lost_while_it_waited_is_not_worked_on(m: Millrace, clock: Clock) -> None:
    clock.stop()
    prices = await m.queue("prices", keyed=True)
    await prices.publish(b"first", key="a")
    await prices.publish(b"old", key="b")
    began: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
    goes_on = asyncio.Event()
    seen: list[bytes] = []

    async def handle(message: Lease) -> None:
        seen.append(message.body)
        if message.body == b"first":
            began.set_result(message)
            await goes_on.wait()

    options = {"concurrency": 1, "prefetch": 1, "lease_seconds": 0.1}
    async with Worker(prices, handle, **options) as worker:  # type: ignore[arg-type]
        first = await began
        await prices.publish(b"new", key="b")
        for _ in range(2):
            # The one that waits is extended with it; the first time may have begun before.
            clock.forward(seconds=0.01)
            await extended(first)
        goes_on.set()

        async def are_handled() -> bool:
            return worker.stats.handled == 2

        await eventually(are_handled)
    assert seen == [b"first", b"new"]
    assert worker.stats.superseded == 1


@timed
async def test_what_is_held_is_extended(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("orders")
    await queue.publish_many([b"1", b"2"])
    goes_on = asyncio.Event()
    seen: list[Lease] = []

    async def handle(message: Lease) -> None:
        seen.append(message)
        await goes_on.wait()

    # One is worked on, the other one waits ahead.
    async with Worker(queue, handle, concurrency=1, prefetch=1, lease_seconds=0.2) as worker:

        async def is_extended() -> bool:
            held = [(await queue.explain(seq)).until_ms for seq in (1, 2)]
            return all(until is not None and until >= clock() + 200 for until in held)

        await eventually(is_extended)
        for _ in range(3):
            clock.forward(seconds=0.19)
            await eventually(is_extended)
            assert await queue.lease(2) == []
        goes_on.set()

        async def are_handled() -> bool:
            return worker.stats.handled == 2

        await eventually(are_handled)
    assert [message.deliveries for message in seen] == [1, 1]


# --- Replaced messages ---------------------------------------------------------------------------


@embedded
async def test_5_3_a_replaced_message_is_settled_by_its_successor(m: Millrace) -> None:
    jobs, done = await m.queue("jobs"), await m.queue("done")
    await jobs.publish_many([b"plain", b"transaction"])
    bodies: list[bytes] = []

    async def handle(message: Lease, transaction: Transaction) -> None:
        bodies.append(message.body)
        new = await message.replace(b"half of " + message.body)
        new = await new.replace(b"most of " + message.body)
        assert (message.lost, new.lost) == (None, None)
        if message.body == b"transaction":
            transaction.publish(done, b"done")

    worker = await work_off(jobs, handle)
    assert sorted(bodies) == [b"plain", b"transaction"]
    assert worker.stats == WorkerStats(handled=2)
    stats = await jobs.stats()
    assert (stats["settled"], stats["live"]) == (6, 0)
    assert [row.body for row in await done.peek()] == [b"done"]


@embedded
async def test_5_3_a_message_that_is_replaced_by_its_receipt_is_settled(m: Millrace) -> None:
    jobs = await m.queue("jobs")
    await jobs.publish(b"page 1")
    bodies: list[bytes] = []

    async def handle(message: Lease) -> None:
        bodies.append(message.body)
        new = await (await m.find("jobs")).replace(message.receipt, b"page 2")
        await jobs.replace(new.receipt, b"page 3")

    worker = await work_off(jobs, handle)
    assert (bodies, worker.stats) == ([b"page 1"], WorkerStats(handled=1))
    stats = await jobs.stats()
    assert (stats["settled"], stats["live"]) == (3, 0)


@embedded
async def test_5_3_a_successor_that_the_function_ended_is_left_alone(m: Millrace) -> None:
    jobs = await m.queue("jobs")
    await jobs.publish_many([b"settle", b"discard", b"release"])

    async def handle(message: Lease) -> None:
        if message.failures:
            return
        new = await message.replace(message.body)
        if message.body == b"release":
            await new.release(failed=True)
        else:
            await getattr(new, message.body.decode())()

    worker = await work_off(jobs, handle)
    assert worker.stats == WorkerStats(handled=4)
    stats = await jobs.stats()
    assert (stats["settled"], stats["dropped"], stats["live"]) == (5, 1, 0)


def test_5_3_a_function_in_a_thread_may_replace_its_message(tmp_path: Path) -> None:
    with millrace.sync.open(tmp_path) as m:
        jobs = m.queue("jobs")
        jobs.publish(b"page 1")
        bodies: list[bytes] = []

        def handle(message: millrace.sync.Lease) -> None:
            bodies.append(message.body)
            message.replace(b"page 2").replace(b"page 3")

        worker = millrace.sync.Worker(jobs, handle, idle=0)
        worker.run()
        assert (bodies, worker.stats) == ([b"page 1"], WorkerStats(handled=1))
        assert jobs.stats()["live"] == 0


@embedded
async def test_5_3_a_failure_goes_to_the_successor(m: Millrace) -> None:
    jobs = await m.queue("jobs")
    await jobs.publish(b"page 1")
    seen: list[tuple[bytes, int]] = []
    judged: list[tuple[bytes, int]] = []

    async def handle(message: Lease) -> None:
        seen.append((message.body, message.failures))
        await message.replace(b"page %d" % (len(seen) + 1))
        raise ValueError("jam")

    async def judge(message: Lease, error: BaseException) -> Verdict:
        judged.append((message.body, message.failures))
        return Verdict.SETTLE

    worker = await work_off(jobs, handle, max_failures=2, on_poison=judge)
    assert seen == [(b"page 1", 0), (b"page 2", 1)]
    assert judged == [(b"page 3", 1)]
    assert worker.stats == WorkerStats(failed=2)
    assert (await jobs.stats())["live"] == 0


@embedded
async def test_5_3_settling_the_old_receipt_is_a_failure_of_the_successor(m: Millrace) -> None:
    jobs = await m.queue("jobs")
    await jobs.publish(b"page 1")

    async def handle(message: Lease, transaction: Transaction) -> None:
        if not message.failures:
            transaction.settle(message)
            await message.replace(b"page 2")

    worker = await work_off(jobs, handle)
    assert worker.stats == WorkerStats(handled=1, failed=1)
    assert (await jobs.stats())["live"] == 0


@embedded
async def test_5_3_a_stop_gives_back_the_successor(m: Millrace) -> None:
    jobs = await m.queue("jobs")
    await jobs.publish(b"page 1")
    replaced = asyncio.Event()

    async def handle(message: Lease) -> None:
        await message.replace(b"page 2")
        replaced.set()
        await asyncio.Event().wait()

    async with Worker(jobs, handle, grace_seconds=0):
        await replaced.wait()
    [again] = await jobs.lease()
    assert (again.body, again.deliveries, again.failures) == (b"page 2", 2, 0)


def test_5_3_a_successor_is_extended() -> None:
    async def script(m: Millrace, node: Node) -> None:
        jobs = await m.queue("jobs")
        await jobs.publish(b"page 1")
        states: list[str] = []
        lasting: list[bool] = []

        async def handle(message: Lease) -> None:
            # For as long as the worker leases, for a shorter and for a longer time.
            for seconds in (None, 2, 200):
                message = await message.replace(b"next", seconds=seconds)
                until = message.deadline_ms
                await asyncio.sleep(100)
                states.append(await state(jobs, message.seq))
                lasting.append(message.deadline_ms == until)

        worker = await work_off(jobs, handle)
        assert states == ["leased"] * 3
        assert lasting == [False, False, True]
        assert worker.stats == WorkerStats(handled=1)
        assert (await jobs.stats())["live"] == 0

    Bench().live(script)


@timed
async def test_5_3_a_lost_successor_cancels_the_function(m: Millrace, clock: Clock) -> None:
    clock.stop()
    prices = await m.queue("prices", keyed=True)
    await prices.publish(b"1", key="a")
    cancelled: list[bytes] = []

    async def handle(message: Lease) -> None:
        if message.body != b"1":
            return
        await message.replace(b"2")
        await prices.publish(b"3", key="a")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(message.body)
            raise

    worker = await work_off(prices, handle, lease_seconds=0.05)
    assert cancelled == [b"1"]
    assert worker.stats == WorkerStats(handled=1, superseded=1)


# --- The end -------------------------------------------------------------------------------------


@embedded
async def test_a_stop_lets_functions_end_and_gives_back_what_is_ahead(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"x"] * 10)
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def handle(message: Lease) -> None:
        began.set()
        await goes_on.wait()

    worker = Worker(queue, handle, concurrency=2, prefetch=4, lease_seconds=3600)
    running = asyncio.create_task(worker.run())
    await began.wait()
    worker.stop()

    async def is_back() -> bool:
        return await state(queue, 6) == "returned"

    await eventually(is_back)
    assert worker.stats.running == 2
    goes_on.set()
    await running
    assert worker.stats == WorkerStats(handled=2)
    again = await queue.lease(10)
    assert [(lease.seq, lease.failures) for lease in again] == [(seq, 0) for seq in range(3, 11)]


@pytest.mark.parametrize("at_once", [False, True])
def test_when_time_is_up_functions_are_cancelled(
    tmp_path: Path,
    at_once: bool,  # noqa: FBT001
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"x"] * 2)
            began = asyncio.Event()

            async def handle(message: Lease) -> None:
                began.set()
                await asyncio.Event().wait()

            grace = 3600 if at_once else 0.05
            worker = Worker(queue, handle, lease_seconds=3600, grace_seconds=grace)
            running = asyncio.create_task(worker.run())
            await began.wait()
            worker.stop()
            worker.stop(at_once=at_once)
            await running
            assert worker.stats == WorkerStats()
            again = await queue.lease(10)
            # Given back politely: nothing was wrong with them.
            assert [(lease.deliveries, lease.failures) for lease in again] == [(2, 0), (2, 0)]

    run(main())


@embedded
async def test_a_thread_that_does_not_end_is_left_behind(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")
    began, goes_on = threading.Event(), threading.Event()

    def handle(message: Lease) -> None:
        began.set()
        goes_on.wait(timeout=scaled(60))

    worker = Worker(queue, handle, lease_seconds=3600, grace_seconds=0)
    running = asyncio.create_task(worker.run())
    await asyncio.to_thread(began.wait)
    worker.stop()
    await running
    assert [lease.deliveries for lease in await queue.lease()] == [2]
    goes_on.set()


@embedded
async def test_a_cancelled_run_has_stopped(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"x"] * 20)
    began = asyncio.Event()

    async def handle(message: Lease) -> None:
        began.set()
        await asyncio.Event().wait()

    worker = Worker(queue, handle, lease_seconds=3600)
    running = asyncio.create_task(worker.run())
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert worker.stats.running == 0
    assert len(await queue.lease(20)) == 20


@embedded
async def test_a_worker_works_once(m: Millrace) -> None:
    queue = await m.queue("orders")
    worker = Worker(queue, repr)
    worker.stop()
    await worker.run()
    with pytest.raises(errors.Closed):
        await worker.run()
    with pytest.raises(errors.Closed):
        async with worker:
            pass
    assert repr(worker).startswith("<Worker of <Queue default/orders>")


@embedded
async def test_a_worker_waits_for_what_comes_and_for_what_still_runs(m: Millrace) -> None:
    queue = await m.queue("orders")
    seen: asyncio.Queue[bytes] = asyncio.Queue()
    async with Worker(queue, lambda message: seen.put_nowait(message.body)) as worker:
        for n in range(3):
            await queue.publish(b"%d" % n)
            assert await seen.get() == b"%d" % n
    assert worker.stats == WorkerStats(handled=3)

    # One that fails while nothing else comes is worked on again before an idle end.
    fails = asyncio.Event()

    async def handle(message: Lease) -> None:
        if message.failures == 0:
            await fails.wait()
            raise ValueError

    await queue.publish(b"x")
    async with Worker(queue, handle, idle=0) as worker:
        fails.set()
        await worker.run()
    assert worker.stats == WorkerStats(handled=1, failed=1)


# --- Errors of the engine ------------------------------------------------------------------------


@embedded
async def test_a_deleted_queue_ends_the_worker(m: Millrace) -> None:
    queue = await m.queue("orders")
    running = asyncio.create_task(Worker(queue, repr).run())
    await m.delete_queue("orders")
    with pytest.raises(errors.NotFound):
        await running


def test_an_engine_that_ends_ends_the_worker(tmp_path: Path) -> None:
    async def main() -> None:
        began = asyncio.Event()

        async def handle(message: Lease) -> None:
            began.set()
            await asyncio.Event().wait()

        async with opened(tmp_path) as m:
            queue = await m.queue("orders")
            await queue.publish(b"x")
            running = asyncio.create_task(Worker(queue, handle).run())
            await began.wait()
        with pytest.raises(errors.Closed):
            await running

    run(main())


def test_a_failed_disk_ends_the_worker(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders")
            await queue.publish(b"x")
            engine = m._engine

            async def handle(message: Lease) -> None:
                engine._node.commit_loop_of(0).fail(errors.DiskFailed("the disk failed"))  # type: ignore[attr-defined]

            with pytest.raises(errors.DiskFailed):
                async with Worker(queue, handle) as worker:
                    await worker.run()

    run(main())


def test_what_is_full_is_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "IN_FLIGHT_MAX", 2)

    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"x"] * 3)
            others = await queue.lease(2)
            async with Worker(queue, repr) as worker:

                async def is_refused() -> bool:
                    return "asking again" in caplog.text

                await eventually(is_refused)
                await queue.settle(others)

                async def is_handled() -> bool:
                    return worker.stats.handled == 1

                await eventually(is_handled)

    with caplog.at_level(logging.INFO, "millrace.worker"):
        run(main())


# --- Signals -------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, sys
import millrace

async def main():
    async with millrace.open(sys.argv[1]) as m:
        queue = await m.queue("orders")
        await queue.publish_many([b"x", b"y"])
        going = asyncio.Event()

        async def handle(message):
            print("works", flush=True)
            await going.wait()

        worker = millrace.Worker(queue, handle, concurrency=1, prefetch=1, grace_seconds=60)
        asyncio.get_running_loop().call_later(60, going.set)
        run = asyncio.create_task(worker.run(signals=True))
        while (await queue.explain(2)).state != "leased":
            await asyncio.sleep(0.001)
        print("ready", flush=True)
        while (await queue.explain(2)).state != "returned":
            await asyncio.sleep(0.001)
        print("stops", flush=True)
        if sys.argv[2] == "waits":
            going.set()
        await run
        print(worker.stats.handled, "handled", flush=True)

asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.parametrize("waits", ["waits", "hurries"])
def test_signals_stop_it(tmp_path: Path, waits: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "data"), waits],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        lines = [program.stdout.readline(), program.stdout.readline()]
        assert sorted(lines) == ["ready\n", "works\n"]
        program.send_signal(signal.SIGTERM)
        assert program.stdout.readline() == "stops\n"
        if waits == "hurries":
            program.send_signal(signal.SIGINT)
        # What was read along with an earlier line is in the buffer, where `communicate` would not
        # look.
        assert program.stderr is not None
        said, problems = program.stdout.read(), program.stderr.read()
    assert (said, problems) == (f"{1 if waits == 'waits' else 0} handled\n", "")


def test_signals_are_set_again_as_they_were(tmp_path: Path) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]

    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders")
            worker = Worker(queue, repr, idle=0)
            await worker.run(signals=True)

    run(main())
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before

    refused: list[errors.Invalid] = []

    def elsewhere() -> None:
        with pytest.raises(errors.Invalid) as found:
            run(main())
        refused.append(found.value)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert [error.field for error in refused] == ["signals"]


def test_it_is_part_of_the_package() -> None:
    assert (millrace.Worker, millrace.Verdict, millrace.WorkerStats) == (
        Worker,
        Verdict,
        WorkerStats,
    )
