"""Owners of queues: delete and create anew, purge, rewind, count, explain."""

from __future__ import annotations

from millrace.errors import Fatal, MillraceError
from tests.support.checkers.history import (
    Drop,
    Other,
    Peek,
    Purge,
    Rewind,
)
from tests.support.simulator.workload import (
    DEAD,
    MORTAL,
    ORDERED,
    REEL,
    TIDE,
    TURNED,
    Client,
    Over,
    Session,
    World,
    seen_of,
)

LASTING = [
    "plain",
    "keyed",
    "log",
    "table",
    "fragile",
    "fickle",
    REEL,
    TIDE,
    *TURNED,
    *ORDERED,
    *MORTAL,
]
"""Queues that nobody deletes."""


class Turner(Client):
    """Has a queue become fair, at some time; that may have to wait until little is there."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self._is_done = False

    def think(self) -> float:
        return self.chance.expovariate(1 / 0.5)

    async def act(self, session: Session) -> None:
        place = await session.queue(TIDE)
        if self._is_done or self.chance.random() < 0.7:
            return
        call = Other(shard=place.shard, what="configure")
        await self.ask(session, call, place.queue.configure(order="fair"), lambda c, spec: None)
        self._is_done = call.is_ok


class Owner(Client):
    """There is one of it, so that it knows which queue its deletion ends."""

    async def act(self, session: Session) -> None:
        actions = [self._drop, self._purge, self._look, self._rewind]
        action = self.chance.choices(actions, [2, 1, 6, 1])[0]
        await action(session)

    def think(self) -> float:
        return self.chance.expovariate(1 / 0.2)

    async def _drop(self, session: Session) -> None:
        place = await session.queue("churn")
        work = session.millrace.delete_queue("churn")
        await self.ask(session, Drop(shard=place.shard), work, lambda call, was: None)

    async def _purge(self, session: Session) -> None:
        place = await session.queue(self.chance.choice(LASTING))

        def note(call: Purge, upto: int) -> None:
            call.upto = upto

        await self.ask(session, Purge(shard=place.shard), place.queue.purge(), note)

    async def _rewind(self, session: Session) -> None:
        place = await session.queue(REEL)

        def note(call: Rewind, first: int) -> None:
            call.first = first

        starts: list[str | int] = ["beginning", "end", 1, 5, 20]
        work = place.queue.rewind(self.chance.choice(starts))
        await self.ask(session, Rewind(shard=place.shard), work, note)

    async def _look(self, session: Session) -> None:
        place = await session.queue(self.chance.choice([*LASTING, DEAD]))
        try:
            counts = await place.queue.stats()
            found = await place.queue.explain(self.chance.randint(1, counts["published"] + 1))
            call = self.history.begin(Peek(shard=place.shard, actor=self.name))
            rows = await place.queue.peek(self.chance.randint(1, 20))
        except Fatal as error:
            session.fail(error)
            raise Over from error
        except MillraceError as error:
            raise Over from error
        call.rows = tuple(
            seen_of(row.seq, row.body, row.key, row.headers, time_ms=row.time_ms) for row in rows
        )
        self.history.done(call)
        self.history.trace(f"{counts} {found} {[row.seq for row in rows]}")
