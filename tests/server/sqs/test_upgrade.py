"""Queues that an earlier version made get today's settings at a start: FIFO queues the rule of
message groups, and all of them the bound of messages that topics forward."""

from __future__ import annotations

from pathlib import Path

from millrace.client.millrace import Millrace
from millrace.client.queue import Queue, engine_and_shard
from millrace.core.commands import Quarantine
from millrace.server.aws.queue_info import PREFIX, SALT, SIZE
from millrace.server.process.upgrade import migrate_queues
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
    assert await migrate_queues(m) == 5
    assert await blocking_of(m, *names) == ["message"] * 5
    assert await blocking_of(m, "native.fifo", "standard") == ["lease", "lease"]
    changed = set()
    for name in names:
        engine, shard = engine_and_shard(await m.find(name))
        changed.add((await engine.meta(shard)).index)
    assert len(changed) == 1, "one entry of the log changes them all"
    assert await migrate_queues(m) == 0


@embedded
async def test_aws_c_old_queues_bound_what_topics_forward_to_them(m: Millrace) -> None:
    sizes = ("1024", "1023", "x", "1048577", "1" * 30)
    for at, size in enumerate(sizes):
        await m.queue(f"old-{at}", notes={SALT: "00", f"{PREFIX}{SIZE}": size})
    await m.queue("native", notes={f"{PREFIX}{SIZE}": "1024"})
    set_anew = {SALT: "00", f"{PREFIX}{SIZE}": "1024"}
    await m.queue("new", message_bytes_max=2048, notes=set_anew)
    assert await migrate_queues(m) == 1
    bounds = {
        name: (await (await m.find(name)).spec()).message_bytes_max for name in await m.queues()
    }
    others = {f"old-{at}": 0 for at in range(1, len(sizes))}
    assert bounds == {"old-0": 1024, **others, "native": 0, "new": 2048}
    assert await migrate_queues(m) == 0


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
            assert await migrate_queues(m) == 2
            assert await blocking_of(m, "bad.fifo", "good.fifo") == ["message", "message"]
            assert await migrate_queues(m) == 0

    run(main())
