"""Work on the pools: publish, lease, settle, give back, forget, and have sessions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine

from millrace import Lease, Message, Millrace, Queue, errors
from millrace.core.state.partition_state import slice_of
from tests.crash.events import Draw, Drawn, LookPool, Lost, Pour, Spill, body_of, tag_of
from tests.crash.player import Player, now_ms
from tests.crash.pools import is_mortal
from tests.crash.scene import BRIEF, CROWD, DESK, LIFE_MS, PARTITIONS, POOLS, RANKS, SLICES

LIVE_MAX = 200
"""Messages beyond which no more are sent."""

WAIT_SECONDS = 0.02

LEASE_SECONDS = (0.2, 1.0)

SUSPECT_SECONDS = 0.2

GROUPS = 7


async def find_pools(opened: Millrace) -> None:
    """All pools, made if they are missing."""
    await opened.queue(CROWD, shards=3)
    await opened.queue(RANKS, order="group")
    await opened.queue(
        SLICES, delivery="partitions", partitions_min=PARTITIONS, partitions_max=PARTITIONS
    )
    await opened.queue(BRIEF)
    await opened.queue(DESK)


def use_pools(player: Player) -> list[Coroutine[None, None, None]]:
    """All that goes on at the pools."""
    names = [pool for pool in POOLS if pool != DESK]
    workers = [_work(player, name, player.chance(f"{name} 0")) for name in names]
    others = [_work(player, name, player.chance(f"{name} 1")) for name in (RANKS, SLICES)]
    return [*workers, *others, _consume(player, player.chance(DESK))]


async def look_at_pools(player: Player) -> None:
    """Show every pool as it is."""
    for name in POOLS:
        queue = await player.millrace.find(name)
        async with queue.snapshot() as snapshot:
            rows = [tag_of(row.body, row.headers) async for row in snapshot.rows()]
        player.say(LookPool(name, rows, await queue.stats()))


async def empty_pools(player: Player) -> None:
    """Settle everything that can still be had."""
    for name in POOLS:
        queue = await player.millrace.find(name)
        while (await queue.stats())["live"]:
            await _end(player, name, queue, await _draw(player, name, queue, 500, 1.0))


# --- Publishing ----------------------------------------------------------------------------------


async def _pour(player: Player, pool: str, queue: Queue, chance: random.Random) -> None:
    if (await queue.stats())["live"] >= LIVE_MAX:
        return
    tags = player.tags(chance.choice([1, 3, 20]))
    messages = [
        Message(
            body_of(tag),
            group=_group(tag) if pool == RANKS else None,
            ttl=LIFE_MS / 1000 if is_mortal(pool, tag) else None,
        )
        for tag in tags
    ]
    await player.do(Pour(player.op(), pool, tags), queue.publish_many(messages))


def _group(tag: int) -> str:
    return f"g{tag % GROUPS}"


def _lock_of(pool: str, lease: Lease) -> str:
    """What nobody else may have while this one is held."""
    tag = _tag(lease)
    if pool == RANKS:
        return _group(tag)
    return f"slice {slice_of(lease.id or 0, PARTITIONS)}" if pool == SLICES else f"message {tag}"


def _tag(lease: Lease) -> int:
    return tag_of(lease.body, lease.headers)


# --- Work ----------------------------------------------------------------------------------------


async def _work(player: Player, pool: str, chance: random.Random) -> None:
    queue = await player.millrace.find(pool)
    while not player.is_stopping:
        await _pour(player, pool, queue, chance)
        seconds = chance.choice(LEASE_SECONDS)
        leases = await _draw(player, pool, queue, chance.randint(1, 20), seconds)
        chance.shuffle(leases)
        # Some are given back, and the last ones of some calls are left to run out.
        quarter = len(leases) // 4
        kept = quarter if chance.random() < 0.3 else 0
        await _end(player, pool, queue, leases[:quarter], is_settle=False)
        await _end(player, pool, queue, leases[quarter : len(leases) - kept])
        await asyncio.sleep(chance.random() * 0.02)


async def _draw(player: Player, pool: str, queue: Queue, count: int, seconds: float) -> list[Lease]:
    draw = Draw(player.op(), pool, now_ms(), round(seconds * 1000))
    leases = await player.attempt(draw, queue.lease(count, seconds=seconds, wait=WAIT_SECONDS))
    if leases is None:
        return []
    late = [
        _tag(lease)
        for lease in leases
        if is_mortal(pool, _tag(lease))
        and lease.time_ms + LIFE_MS <= lease.deadline_ms - draw.lease_ms
    ]
    rows = [(_tag(lease), _lock_of(pool, lease)) for lease in leases]
    player.say(Drawn(draw.op, now_ms(), rows, late))
    return leases


async def _end(
    player: Player, pool: str, queue: Queue, leases: list[Lease], *, is_settle: bool = True
) -> None:
    if not leases:
        return
    tags = {lease.seq: _tag(lease) for lease in leases}
    call = queue.settle(leases) if is_settle else queue.release(leases)
    spill = Spill(player.op(), pool, list(tags.values()), is_settle)
    refused = await player.attempt(spill, call)
    if refused is not None:
        player.say(Lost(spill.op, [tags[seq] for seq in refused]))


# --- Sessions ------------------------------------------------------------------------------------


async def _consume(player: Player, chance: random.Random) -> None:
    """One session after another: some are closed, and some just left."""
    queue = await player.millrace.find(DESK)
    while not player.is_stopping:
        await _pour(player, DESK, queue, chance)
        session = queue.session(credit=chance.randint(1, 10), suspect=SUSPECT_SECONDS)
        held: list[Lease] = []
        try:
            await session.open()
            for _ in range(chance.randint(1, 30)):
                draw = Draw(player.op(), DESK, now_ms(), 0)
                player.say(draw)
                try:
                    lease = await asyncio.wait_for(anext(session), WAIT_SECONDS)
                except (TimeoutError, StopAsyncIteration):
                    player.say(Drawn(draw.op, now_ms(), []))
                    break
                rows = [(_tag(lease), _lock_of(DESK, lease))]
                player.say(Drawn(draw.op, now_ms(), rows))
                if chance.random() < 0.7:
                    await _end(player, DESK, queue, [lease])
                else:
                    held.append(lease)
        except errors.Retry as error:
            if isinstance(error, errors.Closed):
                raise
            await asyncio.sleep(error.after_ms / 1000)
        spill = Spill(player.op(), DESK, [_tag(lease) for lease in held], is_settle=False)
        if chance.random() < 0.7:
            await player.do(spill, session.close())
        else:
            player.say(spill)
            player.say(Lost(spill.op, []))
        await asyncio.sleep(chance.random() * 0.05)
