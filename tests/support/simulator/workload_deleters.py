"""Clients that delete messages by their ids, leased or not."""

from __future__ import annotations

from tests.support.checkers.history import Delete, Publish
from tests.support.simulator.workload import Client, Session, World

KNOWN_MAX = 20
"""Messages that it looks back to."""


class Deleter(Client):
    """Deletes some of the recently published messages, and some of them twice."""

    def __init__(self, name: str, world: World, queue: str) -> None:
        super().__init__(name, world)
        self._queue = queue
        self._gone: set[int] = set()

    async def act(self, session: Session) -> None:
        place = await session.queue(self._queue)
        if self.chance.random() < 0.85:
            return
        known = [
            (row.tag, id_)
            for call in self.history.of(Publish)[-KNOWN_MAX:]
            if call.shard == place.shard and call.is_ok and call.ids
            for row, id_ in zip(call.rows, call.ids, strict=True)
        ]
        if not known:
            return
        tag, id_ = self.chance.choice(known)
        call = Delete(shard=place.shard, tag=tag)
        count = await self.ask(session, call, place.queue.delete([id_]), lambda call, count: None)
        if count and id_ in self._gone:
            self.blame(f"D4: {tag} of {place.shard} was deleted twice")
        if count is not None:
            self._gone.add(id_)
