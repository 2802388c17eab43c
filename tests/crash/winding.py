"""Work on the reel: publish, lease in order, and go back now and then."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from millrace.errors import Refused
from tests.crash.events import GoBack, Pull, Pulled, Sent, WentBack, Wind
from tests.crash.player import Player
from tests.crash.scene import REEL

ROWS_MAX = 2_000
"""Rows after which no more are published."""

LEASE_SECONDS = 3_600
"""Longer than any run: nothing comes back by itself."""


async def wind(player: Player, chance: random.Random) -> None:
    """One after another, so that it is known where the worker stands."""
    queue = await player.millrace.find(REEL)
    while not player.is_stopping:
        published = (await queue.stats())["published"]
        if published < ROWS_MAX:
            wound = Wind(player.op(), chance.randint(1, 40))
            seqs = await player.attempt(wound, queue.publish_many([b"film"] * wound.rows))
            if seqs is not None:
                player.say(Sent(wound.op, seqs[0], len(seqs)))
        for _ in range(chance.randint(0, 3)):
            pull = Pull(player.op(), chance.randint(1, 60))
            leases = await player.attempt(pull, queue.lease(pull.count, seconds=LEASE_SECONDS))
            if leases is None:
                continue
            player.say(Pulled(pull.op, [lease.seq for lease in leases]))
            with suppress(Refused):
                await queue.settle(leases[: len(leases) // 2])
        if chance.random() < 0.4:
            start = chance.choice([1, chance.randint(1, published + 1)])
            back = GoBack(player.op(), start)
            first = await player.attempt(back, queue.rewind(start))
            if first is not None:
                player.say(WentBack(back.op, first))
        await asyncio.sleep(chance.random() * 0.02)
