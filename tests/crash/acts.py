"""Everything that goes on at once in the program under test, until it is killed."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Coroutine, Iterable

from millrace import errors
from tests.crash.events import (
    Commit,
    Done,
    Drop,
    DropStage,
    Fill,
    Make,
    Purge,
    Send,
    SendStage,
    Stage,
    Staged,
    body_of,
)
from tests.crash.losing import lose, lose_all
from tests.crash.player import Player
from tests.crash.pooling import empty_pools, use_pools
from tests.crash.scene import KEYS, LASTING, TURNS
from tests.crash.telling import tell
from tests.crash.winding import wind

LIVE_MAX = 1_500
"""Messages of a queue beyond which publishers wait for the workers."""

ARCHIVE_MAX = 6_000
"""Rows after which the archive is purged: enough of them are sealed by then."""

ARCHIVE_MAX_SHORT = 600
"""The same for a program that does not run long."""

WAIT_SECONDS = 0.05
"""How long workers and followers wait for messages before they look up."""

LEASE_SECONDS = (0.3, 1.0, 3.0)

CLOSE_EARLY = 0.15
"""How many lives end by closing the engine while everything goes on."""


async def play(player: Player) -> None:
    """Do everything at once, until the player stops or is stopped."""
    acts = [
        *(publish(player, "plain", player.chance(f"plain {number}")) for number in range(2)),
        *(publish_numbered(player, "plain", f"dense-{number}") for number in range(2)),
        *(work(player, "plain", player.chance(f"worker {number}")) for number in range(2)),
        transact(player, "0", "dense-0"),
        transact(player, "1"),
        publish_numbered(player, "plain", "rising-0"),
        publish(player, TURNS, player.chance("turns")),
        publish_numbered(player, TURNS, "dense-0"),
        work(player, TURNS, player.chance("turns worker")),
        follow(player, TURNS),
        publish(player, "input", player.chance("input")),
        publish_keyed(player),
        publish_numbered(player, "keyed", "dense-0"),
        _stage(player),
        _archive(player),
        _make_and_drop(player),
        lose(player, player.chance("lose")),
        tell(player, player.chance("tell")),
        wind(player, player.chance("reel")),
        work(player, "keyed", player.chance("keyed worker")),
        work(player, "output", player.chance("output worker")),
        follow(player, "plain"),
        follow(player, "output"),
        _follow_keyed(player),
    ]
    if player.duty.life % 2 == 0:
        # In every other life, so that the others have their time.
        acts += use_pools(player)
    if player.chance("end").random() < CLOSE_EARLY:
        acts.append(_close_early(player))
    async with asyncio.TaskGroup() as tasks:
        for act in acts:
            tasks.create_task(_until_closed(player, act))


async def _until_closed(player: Player, act: Coroutine[None, None, None]) -> None:
    """An act ends when the engine was closed on purpose, in whatever it does."""
    try:
        await act
    except errors.Closed:
        if not player.is_stopping:
            raise


async def _close_early(player: Player) -> None:
    """Close the engine while everything goes on: it must finish or refuse each request."""
    await asyncio.sleep(player.chance("close").random())
    player.is_stopping = True
    await player.millrace.close()


# --- Publishing ----------------------------------------------------------------------------------


async def publish(player: Player, queue: str, chance: random.Random) -> None:
    while not player.is_stopping:
        await player.room(queue, LIVE_MAX)
        if chance.random() < 0.5:
            sends = [Send(player.op(), queue, player.tags(1)) for _ in range(chance.randint(1, 5))]
            await asyncio.gather(*(player.send(send) for send in sends))
        else:
            await player.send(Send(player.op(), queue, player.tags(chance.randint(2, 40))))


async def publish_numbered(player: Player, queue: str, producer: str) -> None:
    """Publish one number after another, and now and then an earlier one once more."""
    chance = player.chance(f"{queue} {producer}")
    recent: deque[Send] = deque(maxlen=20)
    while not player.is_stopping:
        await player.room(queue, LIVE_MAX)
        if recent and chance.random() < 0.2:
            send = chance.choice(recent)
            send.op = player.op()
            await player.send(send)
        else:
            step = chance.randint(1, 4) if producer.startswith("rising") else 1
            tags = player.tags(chance.choice([1, 1, 1, chance.randint(2, 30)]))
            send = Send(player.op(), queue, tags, *_keys(queue, tags, chance))
            send.producer = producer
            send.number = player.number(queue, producer, step=step)
            if await player.send(send):
                recent.append(send)
            else:
                player.give_back(queue, producer)


async def publish_keyed(player: Player) -> None:
    chance = player.chance("keyed")
    while not player.is_stopping:
        await player.room("keyed", LIVE_MAX)
        tags = player.tags(chance.choice([1, 1, 1, chance.randint(2, 30)]))
        await player.send(Send(player.op(), "keyed", tags, *_keys("keyed", tags, chance)))


def _keys(queue: str, tags: list[int], chance: random.Random) -> tuple[list[int], list[int]]:
    """Keys, and which of the messages delete theirs."""
    if queue != "keyed":
        return [], []
    keys = [chance.randrange(KEYS) for _ in tags]
    return keys, [tag for tag in tags if chance.random() < 0.1]


async def _stage(player: Player) -> None:
    chance = player.chance("stage")
    queue = player.queues["plain"]
    names = list(await queue.stages())
    while not player.is_stopping:
        await player.room("plain", LIVE_MAX)
        if names:
            # What an earlier life has left.
            name = names.pop()
        else:
            name = f"stage-{player.tags(1)[0]}"
            for _ in range(chance.randint(1, 3)):
                tags = player.tags(chance.randint(1, 30))
                stage = Stage(player.op(), "plain", name, tags)
                call = queue.stage(name, [body_of(tag) for tag in tags])
                rows = await player.attempt(stage, call)
                if rows is None:
                    break
                player.say(Staged(stage.op, rows))
        if chance.random() < 0.2:
            await player.do(DropStage(player.op(), "plain", name), queue.drop_stage(name))
        else:
            number = player.number("plain", "range-0")
            send = SendStage(player.op(), "plain", name, "range-0", number)
            if not await player.send_stage(send):
                player.give_back("plain", "range-0")


async def _archive(player: Player) -> None:
    chance = player.chance("archive")
    queue = player.queues["archive"]
    most = ARCHIVE_MAX_SHORT if player.duty.operations else ARCHIVE_MAX
    while not player.is_stopping:
        if (await queue.stats())["live"] > most:
            await player.do(Purge(player.op(), "archive"), queue.purge())
            player.progress()
        await player.send(Send(player.op(), "archive", player.tags(chance.randint(20, 200))))
        await asyncio.sleep(chance.random() * 0.02)


async def _make_and_drop(player: Player) -> None:
    """Make queues, fill and delete them; those of earlier lives, too."""
    chance = player.chance("make and drop")
    opened = player.millrace
    for name in await opened.queues():
        if name not in LASTING and chance.random() < 0.7:
            await player.do(Drop(player.op(), name), opened.delete_queue(name))
    while not player.is_stopping:
        name = f"other-{player.tags(1)[0]}"
        made = await player.attempt(Make(op := player.op(), name), opened.queue(name))
        if made is None:
            return
        player.say(Done(op))
        for _ in range(chance.randint(0, 3)):
            rows = [b"%d" % row * 20 for row in range(chance.randint(1, 60))]
            await player.do(Fill(player.op(), name, len(rows)), made.publish_many(rows))
        if chance.random() < 0.9:
            await player.do(Drop(player.op(), name), opened.delete_queue(name))
        await asyncio.sleep(chance.random() * 0.1)


# --- Work ----------------------------------------------------------------------------------------


async def work(player: Player, queue: str, chance: random.Random) -> None:
    while not player.is_stopping:
        count, seconds = chance.randint(1, 60), chance.choice(LEASE_SECONDS)
        held = await player.hold(queue, count, seconds, wait=WAIT_SECONDS)
        chance.shuffle(held)
        if held and chance.random() < 0.1:
            await player.extend(queue, held, chance.choice(LEASE_SECONDS))
        # Some are given back, and a few left to run out.
        returned, done = held[: len(held) // 10], held[len(held) // 10 :]
        if done and chance.random() < 0.2:
            done.pop()
        if returned:
            await player.end(queue, returned, is_settle=False)
        if done and chance.random() < 0.2:
            await asyncio.gather(*(player.end(queue, [one], is_settle=True) for one in done))
        elif done:
            await player.end(queue, done, is_settle=True)
        if done and chance.random() < 0.1:
            # Settled twice: it is answered as the first time.
            await player.end(queue, done, is_settle=True)


async def transact(player: Player, name: str, producer: str = "") -> None:
    """Settle input and publish output, together; under numbers, where there is a producer."""
    chance = player.chance(f"transact {name}")
    while not player.is_stopping:
        count, seconds = chance.randint(1, 20), chance.choice(LEASE_SECONDS)
        held = await player.hold("input", count, seconds, wait=WAIT_SECONDS)
        if not held:
            continue
        send = Send(player.op(), "output", player.tags(len(held)))
        if producer:
            send.producer = producer
            send.number = player.number("output", producer)
        if not await player.transact(held, send) and producer:
            player.give_back("output", producer)


# --- Following -----------------------------------------------------------------------------------


async def follow(player: Player, queue: str) -> None:
    chance = player.chance(f"follow {queue}")
    while not player.is_stopping:
        snapshot = await player.read(queue, wait=WAIT_SECONDS)
        if snapshot is None:
            continue
        if chance.random() < 0.3:
            middle = chance.randint(snapshot.after, snapshot.boundary)
            await player.do(Commit(player.op(), queue, middle), snapshot.commit(middle))
        boundary = snapshot.boundary
        await player.do(Commit(player.op(), queue, boundary), snapshot.commit())
        await asyncio.sleep(chance.random() * 0.03)


async def _follow_keyed(player: Player) -> None:
    """Move the cursor and publish, together."""
    chance = player.chance("follow keyed")
    while not player.is_stopping:
        snapshot = await player.read("keyed", wait=WAIT_SECONDS)
        if snapshot is None:
            continue
        send = Send(player.op(), "mirror", player.tags(1))
        await player.transact([], send, snapshot)
        await asyncio.sleep(chance.random() * 0.03)


# --- The end -------------------------------------------------------------------------------------


async def drain(player: Player) -> None:
    """Settle and read everything, whatever is still leased by those who were killed."""
    await drain_queues(player, ("plain", "keyed", "input", "output", TURNS))
    await lose_all(player)
    await empty_pools(player)


async def drain_queues(player: Player, queues: Iterable[str]) -> None:
    """Settle everything in these queues, and read all cursors to their ends."""
    for queue in queues:
        held = await player.hold(queue, 1_000, 3.0, wait=WAIT_SECONDS)
        # Others may have leased what is left. Deletes stay, and no worker gets them.
        while held or await _is_waiting(player, queue):
            if held:
                await player.end(queue, held, is_settle=True)
            held = await player.hold(queue, 1_000, 3.0, wait=WAIT_SECONDS)
    for queue in player.cursors:
        while (snapshot := await player.read(queue, wait=0)) is not None:
            await player.do(Commit(player.op(), queue, snapshot.boundary), snapshot.commit())


async def _is_waiting(player: Player, queue: str) -> bool:
    async with player.queues[queue].snapshot() as snapshot:
        return any([row.body is not None async for row in snapshot.rows()])
