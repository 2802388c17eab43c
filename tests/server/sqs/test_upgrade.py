"""FIFO queues that an earlier version made get today's rule of message groups at a start."""

from __future__ import annotations

from pathlib import Path

from millrace.client.millrace import Millrace
from millrace.client.queue import Queue, engine_and_shard
from millrace.core.quarantine_commands import Quarantine
from millrace.server.aws.known import SALT
from millrace.server.sqs.upgrade import block_by_message
from tests.client.harness import embedded, opened, run


async def made_before(m: Millrace, name: str) -> Queue:
    """A FIFO queue of SQS, as earlier versions made it."""
    return await m.queue(name, order="group", notes={SALT: "00"})


async def blocking_of(m: Millrace, *names: str) -> list[str]:
    return [(await (await m.find(name)).spec()).group_blocking for name in names]


@embedded
async def test_aws_01_old_queues_change_in_one_batch_and_only_once(m: Millrace) -> None:
    names = [f"old-{at}.fifo" for at in range(5)]
    for name in names:
        await made_before(m, name)
    await m.queue("native.fifo", order="group")
    await m.queue("standard", notes={SALT: "00"})
    assert await block_by_message(m) == 5
    assert await blocking_of(m, *names) == ["message"] * 5
    assert await blocking_of(m, "native.fifo", "standard") == ["lease", "lease"]
    changed = set()
    for name in names:
        engine, shard = engine_and_shard(await m.find(name))
        changed.add((await engine.meta(shard)).index)
    assert len(changed) == 1, "one entry of the log changes them all"
    assert await block_by_message(m) == 0


def test_aws_01_a_quarantined_queue_keeps_no_server_from_its_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            bad = await made_before(m, "bad.fifo")
            await made_before(m, "good.fifo")
            await bad.publish(b"unreadable", group="g")
            engine, shard = engine_and_shard(bad)
            assert await engine.ask(shard, Quarantine(1, 1, "a test"), bool)
        async with opened(tmp_path / "data") as m:
            # Settings need no row.
            assert await block_by_message(m) == 2
            assert await blocking_of(m, "bad.fifo", "good.fifo") == ["message", "message"]
            assert await block_by_message(m) == 0

    run(main())
