"""Consumers with sessions: take, settle, release, ask again, grant, close, drop and resume them.

Rule 1: in one life of the engine no two sessions hold a message at the same time.
Rule 2: the numbers of a session have no gaps, and each is the same message's for ever.
Rule 3: a settled message is never delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from millrace.client.lease import Lease
from millrace.client.session import Session as Consumption
from millrace.errors import Closed, Fatal, MillraceError, NotFound, Retry
from tests.support.checkers.history import Other, Outcome, Settle
from tests.support.simulator.workload import (
    DESK,
    Over,
    Place,
    Session,
    World,
)
from tests.support.simulator.workload_workers import Held, Worker

SUSPECT_SECONDS = 2.0


class Consumer(Worker):
    """One consumer with one session at a time, which it resumes now and then."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world, DESK, DESK)
        self._life: Session | None = None
        self._session: Consumption | None = None
        self._refill = True
        self._id = ""
        """Of the newest session, open or not."""
        self._numbers: dict[int, int] = {}
        """Delivery number → seq, of that session."""
        self._mine: dict[int, Held] = {}
        """By seq: neither settled nor released."""
        self._done: set[tuple[int, int]] = set()
        """Shards and seqs of settled messages."""
        self._let_go_since: set[int] = set()
        """Seqs that were settled or released since the last redelivery was asked for."""

    async def resume(self, session: Session) -> None:
        await super().resume(session)
        if self._life is not session:
            # With the engine everything went that was not written down.
            self._life, self._session = session, None
            self._mine.clear()

    async def act(self, session: Session) -> None:
        await self.resume(session)
        place = await session.queue(DESK)
        if self._session is None:
            await self._open(session, place)
            return
        chance = self.chance
        action = chance.choices(
            ["take", "settle", "release", "redeliver", "grant", "close", "drop", "cancel"],
            [10, 8, 2, 2, 4, 1, 1, 1],
        )[0]
        match action:
            case "take":
                await self._take(session, place, chance.randint(1, 5))
            case "settle" | "release" if self._mine:
                held = self._mine[chance.choice(sorted(self._mine))]
                self._let_go(session, held)
                self._let_go_since.add(held.seq)
                if action == "settle":
                    await self._finish(session, place, held)
                else:
                    await self._release(session, place, held)
            case "redeliver":
                self._let_go_since.clear()
                await self._do(session, place, "redeliver", self._session.redeliver())
            case "grant" if not self._refill:
                drain = chance.random() < 0.3
                work = self._session.grant(chance.randint(0, 3), drain=drain)
                await self._do(session, place, "grant", work)
            case "cancel":
                # The session delivers nothing more, even if the answer is lost.
                self._id = ""
                await self._do(session, place, "cancel", self._session.cancel())
                await self._take(session, place, 10)
                await self._close(session, place)
            case "close":
                await self._close(session, place)
            case "drop":
                self._forget(session)

    async def _open(self, session: Session, place: Place) -> None:
        chance = self.chance
        self._let_go_since.clear()
        if self._id and chance.random() < 0.6:
            consumption = place.queue.session(resume=self._id)
        else:
            self._id, self._numbers = "", {}
            self._refill = chance.random() < 0.5
            consumption = place.queue.session(
                credit=chance.randint(1, 5), refill=self._refill, suspect=SUSPECT_SECONDS
            )
        if await self._do(session, place, "open", consumption.open()):
            self._session, self._id = consumption, consumption.id

    async def _take(self, session: Session, place: Place, count: int) -> None:
        for _ in range(count):
            if self._session is None:
                return
            try:
                lease = await asyncio.wait_for(anext(self._session), 0.05)
            except (TimeoutError, StopAsyncIteration):
                return
            except MillraceError as error:
                self._judge(session, error)
                return
            self._hold(session, place, lease)

    def _hold(self, session: Session, place: Place, lease: Lease) -> None:
        assert lease.number is not None
        at = (place.shard, lease.seq)
        if lease.number in self._numbers and lease.seq in self._let_go_since:
            # A redelivery that was on its way when the message was settled or released.
            return
        if session.holders.setdefault(at, self._session) is not self._session:
            self.blame(f"R7: {lease.seq} of {place.shard} is held by two sessions")
        if at in self._done and lease.number not in self._numbers:
            self.blame(f"I5: {lease.seq} of {place.shard} was settled, and handed out again")
        if self._numbers.setdefault(lease.number, lease.seq) != lease.seq:
            self.blame(f"R4: delivery {lease.number} was {self._numbers[lease.number]}")
        if lease.number > 0 and lease.number - 1 not in self._numbers:
            self.blame(f"R4: delivery {lease.number} came, and none before it")
        receipt = lease.receipt
        self._mine[lease.seq] = Held(place.shard, lease.seq, lease.version, receipt, lease.failures)

    def _let_go(self, session: Session, held: Held) -> None:
        del self._mine[held.seq]
        session.holders.pop((held.shard, held.seq), None)

    async def _finish(self, session: Session, place: Place, held: Held) -> None:
        call = Settle(shard=held.shard, seq=held.seq, version=held.version)
        await self._end(session, call, held, place.queue.settle([held.receipt]))
        if call.is_ok:
            self._done.add((held.shard, held.seq))

    def _forget(self, session: Session) -> None:
        """Drop the session without a word; what it holds comes back, to it or to others."""
        for held in list(self._mine.values()):
            self._let_go(session, held)
        self._session = None

    async def _close(self, session: Session, place: Place) -> None:
        consumption = self._session
        self._forget(session)
        if consumption is not None:
            await self._do(session, place, "close", consumption.close())

    async def _do(
        self,
        session: Session,
        place: Place,
        what: str,
        work: Awaitable[object],
    ) -> bool:
        """Do something with the session; whether it was done."""
        call = Other(shard=place.shard, what=f"session {what}")
        answers: list[object] = []
        await self.ask(session, call, work, lambda _, answer: answers.append(answer))
        is_refused = call.outcome is Outcome.REFUSED
        if is_refused and what == "open":
            self._id = ""
        elif is_refused and not call.error.startswith(("Full", "Closed")):
            self.blame(f"R7: {what}: {call.error}")
        if not answers and what in ("redeliver", "cancel", "grant"):
            # It may have been done: nothing of it can be relied on.
            self._forget(session)
        return bool(answers)

    def _judge(self, session: Session, error: MillraceError) -> None:
        """The session said that it has ended."""
        if isinstance(error, Fatal):
            session.fail(error)
            raise Over from error
        if isinstance(error, Closed):
            raise Over from error
        if not isinstance(error, Retry | NotFound):
            self.blame(f"R7: a session that nobody has left: {type(error).__name__}: {error}")
        self._forget(session)

    # --- The end -------------------------------------------------------------------------------

    async def drain(self, session: Session) -> int:
        """Settle whatever there is now; returns how much that was."""
        await self.resume(session)
        place = await session.queue(DESK)
        if self._session is not None:
            await self._close(session, place)
        got = 0
        async with place.queue.session(credit=50, suspect=SUSPECT_SECONDS) as consumption:
            self._session, self._numbers, self._id = consumption, {}, ""
            await self._take(session, place, 50)
            for held in list(self._mine.values()):
                self._let_go(session, held)
                await self._finish(session, place, held)
                got += 1
        self._session = None
        return got
