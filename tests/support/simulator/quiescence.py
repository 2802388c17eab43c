"""The end of a run: no more faults, everyone finishes, and nothing may be left behind."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from millrace.client.queue import engine_and_shard
from millrace.errors import NotFound
from millrace.node import LOCAL, Node
from tests.support.checkers.history import Lease, Rewind
from tests.support.simulator.workload import (
    DEAD,
    QUEUES,
    REEL,
    Session,
    seen_of,
)
from tests.support.simulator.workload_workers import Worker

if TYPE_CHECKING:
    from tests.support.simulator.run import Run

DRAIN_ROUNDS_MAX = 200
"""Rounds of leasing and settling; forgotten leases run out in between."""

REST_SECONDS = 30.0
"""What the checkpointer gets to tidy up."""


async def make_peace(run: Run, node: Node, session: Session) -> None:
    """Let all clients finish, drain the queues, and check the remaining state."""
    for client in run.clients:
        client.is_patient = True
        await client.resume(session)
    # A shard's own time never falls: until the clock has caught up with it, no lease runs out.
    run.machine.clock.catch_up()
    await _drain(run, session)
    await _work_again(run, session)
    for client in run.clients:
        await client.finish(session)
    await asyncio.sleep(REST_SECONDS)
    await _check_mark(run)
    await _take_stock(run, session)
    run.violations += run.machine.ledger.compare(node.store)
    run.violations += await check_files(node)
    await _empty(run, session)
    # Pins and stages whose owners never heard of them go by age.
    run.machine.clock.jump(25 * 3600 * 1000)
    await asyncio.sleep(REST_SECONDS)
    run.violations += run.machine.ledger.compare(node.store)
    run.violations += check_space(run, node)


async def _check_mark(run: Run) -> None:
    """L3: an idle log has an end mark, unless messages of a queue end by age."""
    for _ in range(int(REST_SECONDS)):
        if run.machine.ledger.is_proven:
            return
        await asyncio.sleep(1.0)
    run.violations.append("L3: the log is quiet, and its end is not marked")


async def _drain(run: Run, session: Session) -> None:
    workers = [client for client in run.clients if isinstance(client, Worker)]
    quiet = 0
    for _ in range(DRAIN_ROUNDS_MAX):
        got = 0
        for worker in workers:
            got += await worker.drain(session)
        # Twenty seconds are the longest lease that anyone takes.
        quiet = 0 if got else quiet + 1
        if quiet > 25:
            return
        await asyncio.sleep(1.0)
    run.violations.append("liveness: the queues are never empty")


async def _work_again(run: Run, session: Session) -> None:
    """A rewound log is delivered once more, with all its remaining messages."""
    place = await session.queue(REEL)
    call = run.history.begin(Rewind(shard=place.shard, actor="peace"))
    call.first = await place.queue.rewind("beginning")
    run.history.done(call)
    await _drain(run, session)
    rows = {row.seq for row in await place.queue.peek(10_000)}
    again = {
        row.seq
        for lease in run.history.of(Lease)
        if lease.shard == place.shard and lease.number > call.number
        for row in lease.rows
    }
    if again != rows:
        run.violations.append(f"rewind: {sorted(rows)} are there, {sorted(again)} were handed out")


async def _take_stock(run: Run, session: Session) -> None:
    """Check the final state that clients see."""
    for name in QUEUES:
        try:
            queue = await session.millrace.find(name)
        except NotFound:
            continue
        _, number = engine_and_shard(queue)
        shard = run.history.shards.get(number)
        if shard is None:
            continue
        shard.seen_ms = run.machine.clock.now_ms()
        counts = await queue.stats()
        rows = await queue.peek(10_000)
        shard.counts = counts
        shard.live = {
            row.seq: seen_of(row.seq, row.body, row.key, row.headers, time_ms=row.time_ms)
            for row in rows
        }
        forgotten = [row.seq for row in rows if row.body is not None]
        if forgotten and shard.retention == "work" and name != DEAD:
            run.violations.append(f"liveness: {forgotten} of {name} were never handed out again")
        if counts["live"] != len(rows):
            run.violations.append(f"I12: {name} counts {counts['live']} live, has {len(rows)}")


async def _empty(run: Run, session: Session) -> None:
    for name in QUEUES:
        with suppress(NotFound):
            await (await session.millrace.find(name)).purge()


async def check_files(node: Node) -> list[str]:
    """I11: a sealed file goes when nobody wants any of its rows, without a purge."""
    left = node.store.unwanted_files()
    if left:
        # Of a log that ends its messages by age, one may have become so just now.
        await asyncio.sleep(REST_SECONDS)
        left = [file for file in node.store.unwanted_files() if file in left]
    return [f"I11: nobody wants any row of the sealed files {left}"] if left else []


def check_space(run: Run, node: Node) -> list[str]:
    """I11: nothing is wanted any more, so that next to nothing may be left on the disk."""
    found: list[str] = []
    settings = run.machine.settings
    segments = len(node.log.segments())
    if segments > settings.log_segments_unsealed + 2:
        found.append(f"I11: {segments} segments of the log are in use, and nothing is in them")
    files = run.machine.disk.names("sealed")
    if files:
        found.append(f"I11: sealed files are left, and nothing is in them: {files}")
    if node.store.applied(LOCAL) < 1:
        found.append("I9: nothing was ever committed")
    return found
