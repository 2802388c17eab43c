"""A client whose blocks nobody can read: its own queue is quarantined, and nothing else.

It publishes past the checks of the API, as a defect there would. The other clients of the run know
nothing of it: whatever they miss is found by their own checkers.
"""

from __future__ import annotations

import struct

from millrace.client.millrace import engine_of
from millrace.client.queue import Queue, engine_and_shards
from millrace.core.commands import Publish
from millrace.core.format.block import Block
from millrace.core.format.column import Column
from millrace.errors import Fatal, MillraceError, Quarantined
from tests.support.simulator.workload import (
    TAG,
    Client,
    Over,
    Session,
    World,
)

SPOILED = "spoiled"

ROWS = 3
"""Of each block that cannot be read."""


def unreadable(size: int) -> Block:
    """A block whose offsets fall."""
    offsets = struct.pack("<4i", 0, size, size - 1, size)
    return Block(ROWS, Column(offsets, memoryview(bytes(size))))


class Spoiler(Client):
    """Spoils a queue of its own, and repairs, purges or deletes it."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self._lost = 0
        """Rows that are surely there, and that nobody can read."""
        self._is_unsure = False
        """There may be more, or none any more: an engine ended before it answered."""

    async def act(self, session: Session) -> None:
        deed = self.chance.random()
        try:
            queue = await session.millrace.queue(SPOILED, shards=2, route="key")
            if deed < 0.3:
                body = b"sound" * self.chance.choice([1, 2_000])
                await queue.publish(body, key=b"%f" % deed, headers={TAG: b"sound"})
            elif deed < 0.4:
                await self._spoil(session, queue)
            elif deed < 0.8:
                await self._read(queue)
            elif deed < 0.9:
                await self._repair(session)
            else:
                await self._end(session, queue)
        except Quarantined as error:
            if not (self._lost or self._is_unsure):
                self.blame(f"nothing is unreadable: {error}")
        except Fatal as error:
            session.fail(error)
            raise Over from error
        except MillraceError:
            # There is no room, or the engine was closed.
            return

    async def _spoil(self, session: Session, queue: Queue) -> None:
        _, shards = engine_and_shards(queue)
        before, self._is_unsure = self._is_unsure, True
        block = unreadable(self.chance.choice([10, 20_000]))
        shard = self.chance.choice(shards.ids)
        try:
            await engine_of(session.millrace).ask(shard, Publish(block), object)
        except Quarantined:
            self._is_unsure = before
            raise
        self._is_unsure = before
        self._lost += ROWS

    async def _read(self, queue: Queue) -> None:
        rows = await queue.peek(10_000)
        if self._lost:
            self.blame(f"{self._lost} rows were passed over in silence, and {len(rows)} read")
        await queue.settle(await queue.lease(self.chance.choice([1, 100])))

    async def _repair(self, session: Session) -> None:
        lost, unsure = self._lost, self._is_unsure
        if not lost:
            return
        self._lost, self._is_unsure = 0, True
        # Nobody may have met the damage yet; then there is nothing to repair.
        try:
            done = await session.millrace.repair(SPOILED, drop=True)
        except MillraceError:
            self._lost, self._is_unsure = lost, unsure
            raise
        self._is_unsure = False
        if not unsure and done.dropped != lost:
            self.blame(f"{done.dropped} rows were dropped, and {lost} could not be read")

    async def _end(self, session: Session, queue: Queue) -> None:
        self._lost, self._is_unsure = 0, True
        if self.chance.random() < 0.5:
            await queue.purge()
        else:
            await session.millrace.delete_queue(SPOILED)
        self._is_unsure = False

    async def finish(self, session: Session) -> None:
        """Whatever state it is in, the queue can be deleted."""
        await session.millrace.delete_queue(SPOILED)
