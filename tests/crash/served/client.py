"""A client of the server that is killed: it goes on by itself, and tells the ledger.

Run as `python -m tests.crash.served.client`, with what it needs as JSON on the first line of its
standard input, and orders on those after it.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Coroutine

import msgspec

import millrace
from millrace import Lease, Worker
from millrace.lazy_pandas import spare_pandas
from tests.crash import acts
from tests.crash.events import Duty, Serving, body_of, tag_of
from tests.crash.player import now_ms, tags_in
from tests.crash.program import again, look_at_queues
from tests.crash.scene import FOLLOWER
from tests.crash.served.events import Assign, Assigned, LookChores, Order, Rested, Worked
from tests.crash.served.rest import RestPlayer
from tests.crash.served.scene import CHORE_SECONDS, CHORES, HOLD_SECONDS, QUEUES
from tests.crash.served.visitor import Visitor


class Post(msgspec.Struct):
    """Who a client is, and where the server is."""

    number: int
    """From 1 on; the first looks at everything."""
    seed: int
    port: int
    token: str
    out: int
    """Where to tell the ledger."""


class Client:
    """Follows orders."""

    def __init__(self, player: Visitor, post: Post) -> None:
        self._player = player
        self._post = post
        self._round = 0
        self._playing: asyncio.Task[None] | None = None

    async def obey(self, order: Order) -> None:
        """Do as told; tells when it is done, but of playing, which goes on."""
        player = self._player
        if order.do == "play":
            self._round += 1
            player.is_stopping = False
            # The dice of each round are others.
            life = self._post.number * 1_000_000 + self._round
            player.duty = Duty(life, self._post.seed, [], [], [], [], {})
            self._playing = asyncio.create_task(self._play())
            return
        player.is_stopping = True
        if self._playing is not None:
            await self._playing
            self._playing = None
        if order.duty is not None:
            player.duty = order.duty
        if order.do == "look":
            await _look(player)
            await again(player)
        elif order.do == "drain":
            await acts.drain_queues(player, QUEUES)
            await _drain_chores(player)
        player.say(Rested(self._post.number))

    async def _play(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for act in self._acts():
                tasks.create_task(act)

    def _acts(self) -> list[Coroutine[None, None, None]]:
        player, number = self._player, self._post.number
        dense, rising = f"dense-{number}", f"rising-{number}"
        common = [
            acts.publish(player, "plain", player.chance("plain")),
            acts.publish_numbered(player, "plain", dense),
            acts.publish_numbered(player, "plain", rising),
            acts.work(player, "plain", player.chance("worker")),
            _hold(player, player.chance("hold")),
        ]
        if number == 1:
            return [
                *common,
                acts.publish(player, "input", player.chance("input")),
                acts.transact(player, "numbered", dense),
                acts.work(player, "output", player.chance("output worker")),
                acts.follow(player, "plain"),
                acts.follow(player, "output"),
            ]
        if number == 2:
            return [
                acts.publish_keyed(player),
                acts.publish_numbered(player, "keyed", dense),
                acts.work(player, "keyed", player.chance("keyed worker")),
                acts.follow(player, "keyed"),
                _hold(player, player.chance("hold")),
                _assign(player),
                _work_off(player, player.chance("chores")),
            ]
        return [*common, acts.work(player, "plain", player.chance("another worker"))]


async def _hold(player: Visitor, chance: random.Random) -> None:
    """Hold messages for so long that a kill comes between; then they are settled all the same."""
    while not player.is_stopping:
        held = await player.hold("plain", chance.randint(1, 5), HOLD_SECONDS, wait=1)
        for _ in range(chance.randint(1, 20)):
            if not player.is_stopping:
                await asyncio.sleep(0.1)
        if held:
            await player.end("plain", held, is_settle=chance.random() < 0.9)


async def _assign(player: Visitor) -> None:
    queue = await player.millrace.find(CHORES)
    async with queue.publisher("chief", window=64) as publisher, asyncio.TaskGroup() as tasks:
        while not player.is_stopping:
            [tag] = player.tags(1)
            player.say(Assign(tag))
            confirmation = await publisher.send(body_of(tag))
            tasks.create_task(_confirmed(player, tag, confirmation))
            await asyncio.sleep(0.002)


async def _confirmed(player: Visitor, tag: int, confirmation: millrace.Confirmation) -> None:
    player.say(Assigned(tag, await confirmation or 0))


async def _work_off(player: Visitor, chance: random.Random) -> None:
    async def handle(lease: Lease) -> None:
        tag = tag_of(lease.body, lease.headers)
        player.say(Worked(tag, lease.seq, now_ms(), lease.deadline_ms))
        await asyncio.sleep(chance.random() ** 4)

    queue = await player.millrace.find(CHORES)
    async with Worker(queue, handle, concurrency=16, lease_seconds=CHORE_SECONDS):
        while not player.is_stopping:  # noqa: ASYNC110
            # Orders come from outside, whenever they do.
            await asyncio.sleep(0.05)


async def _drain_chores(player: Visitor) -> None:
    queue = await player.millrace.find(CHORES)
    while (await queue.stats())["live"]:
        for lease in await queue.lease(1_000, seconds=CHORE_SECONDS, wait=0.2):
            tag = tag_of(lease.body, lease.headers)
            player.say(Worked(tag, lease.seq, now_ms(), lease.deadline_ms))
            await queue.settle([lease])


async def _look(player: Visitor) -> None:
    await look_at_queues(player)
    queue = await player.millrace.find(CHORES)
    async with queue.snapshot() as snapshot:
        rows = await tags_in(snapshot)
    player.say(LookChores(now_ms(), rows, (await queue.stats())["published"]))
    player.say(Serving())


async def run(post: Post, orders: asyncio.StreamReader) -> None:
    """Obey until the end."""
    duty = Duty(post.number, post.seed, [], [], [], [], {})
    if post.number > 2:
        await _obey(Client(RestPlayer(post.port, post.token, duty, post.out), post), orders)
        return
    async with millrace.connect(f"http://127.0.0.1:{post.port}", token=post.token) as m:
        player = Visitor(m, duty, post.out)
        for name, shape in QUEUES.items():
            queue = player.queues[name] = await m.queue(name, keyed=shape.keyed)
            if shape.followed:
                player.cursors[name] = await queue.cursor(FOLLOWER, retain=True)
        await m.queue(CHORES)
        await _obey(Client(player, post), orders)


async def _obey(client: Client, orders: asyncio.StreamReader) -> None:
    while True:
        await client.obey(msgspec.json.decode(await orders.readline(), type=Order))


async def main() -> None:
    """Read who this is, and obey."""
    orders = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    await run(msgspec.json.decode(await orders.readline(), type=Post), orders)


if __name__ == "__main__":
    spare_pandas()
    asyncio.run(main())
