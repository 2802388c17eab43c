"""Work on the fragile queue: much of it fails, and some is discarded."""

from __future__ import annotations

import asyncio
import random
from typing import Literal

from millrace import Lease, Queue
from tests.crash.events import Ask, Give, Got, Lose, Lost, body_of, tag_of
from tests.crash.player import Player
from tests.crash.scene import FRAGILE

LIVE_MAX = 300
"""Messages beyond which no more are sent."""

WAIT_SECONDS = 0.05

LEASE_SECONDS = (0.3, 1.0)


async def lose(player: Player, chance: random.Random) -> None:
    """Send, lease, and settle, discard, fail or forget, until the player stops."""
    queue = await player.millrace.find(FRAGILE)
    while not player.is_stopping:
        if (await queue.stats())["live"] < LIVE_MAX:
            tags = player.tags(chance.randint(1, 20))
            await player.do(
                Give(player.op(), tags), queue.publish_many([body_of(tag) for tag in tags])
            )
        leases = await _take(player, queue, chance.randint(1, 30), chance.choice(LEASE_SECONDS))
        chance.shuffle(leases)
        quarter = len(leases) // 4
        await _end(player, queue, "settle", leases[:quarter])
        await _end(player, queue, "discard", leases[quarter : 2 * quarter])
        # The others are left to run out, which is a failure as well.
        await _end(player, queue, "fail", leases[2 * quarter : 3 * quarter])
        await asyncio.sleep(chance.random() * 0.02)


async def lose_all(player: Player) -> None:
    """Settle everything that can still be had."""
    queue = await player.millrace.find(FRAGILE)
    while (await queue.stats())["live"]:
        await _end(player, queue, "settle", await _take(player, queue, 1_000, 3.0))


async def _take(player: Player, queue: Queue, count: int, seconds: float) -> list[Lease]:
    ask = Ask(player.op())
    leases = await player.attempt(ask, queue.lease(count, seconds=seconds, wait=WAIT_SECONDS))
    if leases is None:
        return []
    player.say(Got(ask.op, [_tag(lease) for lease in leases]))
    return leases


async def _end(
    player: Player, queue: Queue, how: Literal["settle", "discard", "fail"], leases: list[Lease]
) -> None:
    if not leases:
        return
    if how == "settle":
        call = queue.settle(leases)
    elif how == "discard":
        call = queue.discard(leases)
    else:
        call = queue.release(leases, failed=True)
    tags = {lease.seq: _tag(lease) for lease in leases}
    attempt = Lose(player.op(), list(tags.values()), how)
    refused = await player.attempt(attempt, call)
    if refused is not None:
        player.say(Lost(attempt.op, [tags[seq] for seq in refused]))
        player.progress()


def _tag(lease: Lease) -> int:
    return tag_of(lease.body, lease.headers)
