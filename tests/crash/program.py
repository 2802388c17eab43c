"""The program that is killed: it uses every queue in every way, and tells the ledger.

Run as `python -m tests.crash.program <folder>`, it waits for its duty on standard input, opens the
folder, shows all queues, does again what its predecessor was not answered, and then works until it
is killed, or until it has done what the duty says. What it tells goes to standard output.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import millrace
from millrace.lazy_pandas import spare_pandas
from tests.crash import acts
from tests.crash.events import Closed, Duty, Look, LookLetters, Others, Serving, duty_in, tag_of
from tests.crash.player import Player, tags_in
from tests.crash.pooling import find_pools, look_at_pools
from tests.crash.scene import (
    DEAD,
    FOLLOWER,
    FRAGILE,
    LASTING,
    MAX_FAILURES,
    QUEUES,
    REEL,
    SETTINGS,
    TRACED,
)
from tests.crash.telling import find_topic, look_at_topic
from tests.support.timeouts import scaled

DRAIN_SECONDS_MAX = scaled(20)
"""Leases that were lost run out well before."""


async def run(folder: Path, duty: Duty, out: int) -> None:
    """Live one life."""
    settings = TRACED if duty.operations else SETTINGS
    async with millrace.open(folder, settings=settings) as opened:
        player = Player(opened, duty, out)
        await find_queues(player)
        await look(player)
        player.say(Serving())
        await again(player)
        if duty.is_last:
            async with asyncio.timeout(DRAIN_SECONDS_MAX):
                await acts.drain(player)
            await look(player)
            player.say(Serving())
        else:
            await acts.play(player)
    player.say(Closed())


async def find_queues(player: Player) -> None:
    """Open every queue and cursor, and make what is missing."""
    for name, shape in QUEUES.items():
        queue = await player.millrace.queue(name, keyed=shape.keyed)
        player.queues[name] = queue
        if shape.followed:
            player.cursors[name] = await queue.cursor(FOLLOWER, retain=True)
    await player.millrace.queue(DEAD)
    await player.millrace.queue(REEL, retention="log")
    await player.millrace.queue(FRAGILE, max_failures=MAX_FAILURES, dead_letter=DEAD)
    await find_topic(player.millrace)
    await find_pools(player.millrace)


async def look(player: Player) -> None:
    """Show every queue as it is; nothing else may happen meanwhile."""
    await look_at_queues(player)
    await _look_at_letters(player)
    await look_at_topic(player)
    await look_at_pools(player)
    published = {}
    for name in await player.millrace.queues():
        if name not in LASTING:
            stats = await (await player.millrace.find(name)).stats()
            published[name] = stats["published"]
    player.say(Others(published))


async def look_at_queues(player: Player) -> None:
    """Show the queues whose every message the ledger knows."""
    for name, queue in player.queues.items():
        counters = await queue.stats()
        async with queue.snapshot() as snapshot:
            rows = await tags_in(snapshot)
        cursor = (await queue.cursors()).get(FOLLOWER, -1)
        known = [path.partition("/") for path in player.duty.numbers]
        producers = {
            producer: await queue.producer(producer) for at, _, producer in known if at == name
        }
        player.say(Look(name, counters, rows, cursor, producers, await queue.stages()))


async def _look_at_letters(player: Player) -> None:
    """Show both queues as of one moment: what is moved meanwhile is looked for again."""
    fragile, dead = await player.millrace.find(FRAGILE), await player.millrace.find(DEAD)
    while True:
        arrived = (await dead.stats())["published"]
        rows, letters = await _all_tags(fragile), await _all_tags(dead)
        counters = await fragile.stats()
        if (await dead.stats())["published"] == arrived:
            break
    player.say(LookLetters(rows, letters, counters, arrived))


async def _all_tags(queue: millrace.Queue) -> list[int]:
    async with queue.snapshot() as snapshot:
        return [tag_of(row.body, row.headers) async for row in snapshot.rows()]


async def again(player: Player) -> None:
    """Do what was not answered once more: it must not come about twice."""
    duty = player.duty
    for stage in duty.stages:
        stage.op = player.op()
        await player.send_stage(stage)
    for send in duty.sends:
        send.op = player.op()
        await player.send(send)
    for receipts, send in duty.transactions:
        send.op = player.op()
        held = [(text, seq, version) for text, seq, version in receipts]
        if not await player.transact(held, send):
            # A lease has run out since: it never came about, and the next one has its number.
            player.give_back(send.queue, send.producer)
    chance = player.chance("receipts")
    for name, text, seq, version, is_tried in duty.receipts:
        if is_tried or chance.random() < 0.6:
            is_settle = is_tried or chance.random() < 0.6
            await player.end(name, [(text, seq, version)], is_settle=is_settle)


def main() -> None:
    """Live one life, as the duty on standard input says."""
    duty = duty_in(sys.stdin.buffer.read())
    asyncio.run(run(Path(sys.argv[1]), duty, sys.stdout.fileno()))


if __name__ == "__main__":
    spare_pandas()
    main()
