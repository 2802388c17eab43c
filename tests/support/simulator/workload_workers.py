"""Workers: lease, settle, settle late, release, discard, extend, crash and forget.

O1: who asks to be on time has settled nothing after its deadline, and is not late before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import NamedTuple

from millrace.client.lease import Lease as Leased
from millrace.client.queue import Queue, settle_any_delivery
from millrace.client.transaction import Later
from millrace.errors import Refused, Stale
from tests.support.checkers.abandoned import group_of
from tests.support.checkers.history import (
    Call,
    Discard,
    Extend,
    Lease,
    Outcome,
    Publish,
    Release,
    Settle,
)
from tests.support.simulator.workload import (
    QUEUES,
    SLICED,
    Client,
    Over,
    Place,
    Session,
    World,
    seen_of,
)
from tests.support.simulator.workload_publishers import publish_in

HELD_MAX = 30
"""Receipts that a worker keeps for later."""


class Held(NamedTuple):
    """A delivered message, as far as it survives the worker's engine."""

    shard: int
    seq: int
    version: int
    receipt: str
    failures: int = 0
    deadline_ms: int = 0
    """When its time is over, for sure, as long as nothing was asked of it; 0: not known."""


class Worker(Client):
    """Works on one queue; some of it passes its results on to another."""

    def __init__(self, name: str, world: World, queue: str, target: str) -> None:
        super().__init__(name, world)
        self._queue = queue
        self._target = target
        self._held: list[Held] = []
        """Neither settled nor released, as far as is known."""
        self._doubtful: list[Held] = []
        """Settled, with unknown outcome."""
        self._attempt: str | None = None
        """The id of the lease call that is made."""

    async def resume(self, session: Session) -> None:
        place = await session.queue(self._queue)
        doubtful, self._doubtful = self._doubtful, []
        for held in doubtful:
            if held.shard == place.shard:
                await self._settle(session, place, held)

    async def act(self, session: Session) -> None:
        await self.resume(session)
        place = await session.queue(self._queue)
        chance = self.chance
        if self._held and chance.random() < 0.3:
            # Late: perhaps the deadline has passed, perhaps another worker has it by now.
            held = self._held.pop(chance.randrange(len(self._held)))
            if held.shard == place.shard:
                await self._settle(session, place, held)
            return
        leases = await self._lease(session, place)
        for lease in leases:
            await self._work(session, place, lease)
            if chance.random() < 0.2:
                await asyncio.sleep(self.think())

    async def _lease(self, session: Session, place: Place) -> list[Leased]:
        chance = self.chance
        lease_ms = chance.choice([50, 300, 2000, 20_000])
        wait = chance.choice([0, 0, 0.05, 1.0])
        call = Lease(shard=place.shard, lease_ms=lease_ms, count=chance.randint(1, 8))
        work = place.queue.lease(
            call.count, seconds=lease_ms / 1000, wait=wait, attempt=self._attempt
        )
        leases = await self.ask(session, call, work, _note_leases) or []
        for row, lease in zip(call.rows, leases, strict=True):
            if lease.group != group_of(self.history, row):
                self.blame(f"I2: {row.tag} came back as one of group {lease.group!r}")
        return leases

    async def _work(self, session: Session, place: Place, lease: Leased) -> None:
        held = Held(
            place.shard, lease.seq, lease.version, lease.receipt, lease.failures, lease.deadline_ms
        )
        actions = {"settle": 8, "release": 2, "extend": 2, "pass on": 3, "keep": 2, "forget": 1}
        if QUEUES[place.name].dead_letter:
            actions |= {"release": 10, "forget": 3, "discard": 3}
        action = self.chance.choices(list(actions), list(actions.values()))[0]
        match action:
            case "settle":
                await self._settle(session, place, held)
            case "release":
                await self._release(session, place, held)
            case "discard":
                call = Discard(shard=held.shard, seq=held.seq, version=held.version)
                await self._end(session, call, held, place.queue.discard([held.receipt]))
            case "extend":
                await self._extend(session, lease, held)
            case "pass on":
                await self._pass_on(session, lease, held)
            case "keep":
                self._keep(held)

    def _keep(self, held: Held) -> None:
        self._held.append(held)
        del self._held[:-HELD_MAX]

    async def _settle(self, session: Session, place: Place, held: Held) -> None:
        on_time = bool(held.deadline_ms) and self.chance.random() < 0.3
        clock = self.world.clock
        asked_ms, jumps = clock.now_ms(), clock.jumps
        # Checkers of the other orders judge what a worker holds by the lease that it names.
        is_free = not on_time and QUEUES[place.name].order in ("none", "fair")
        is_any = is_free and self.chance.random() < 0.2
        call = Settle(shard=held.shard, seq=held.seq, version=held.version, any_delivery=is_any)
        work = (
            _settle_any(place.queue, held)
            if is_any
            else place.queue.settle([held.receipt], on_time=on_time)
        )
        await self._end(session, call, held, work)
        # A message deleted by its id counts as settled by its holder.
        if on_time and clock.jumps == jumps and place.name not in SLICED:
            self._judge_time(call, held, asked_ms)
        if call.is_ok and not is_any and self.chance.random() < 0.1:
            # Once more, as if the answer had been lost: it is answered as before.
            again = Settle(shard=held.shard, seq=held.seq, version=held.version)
            await self._end(session, again, held, place.queue.settle([held.receipt]))
            excuses = ("Gone", "NotFound", "Full", "Closed")
            if again.outcome is Outcome.REFUSED and not again.error.startswith(excuses):
                self.blame(f"I5: a repeated settle of {held.seq}: {again.error}")

    def _judge_time(self, call: Settle, held: Held, asked_ms: int) -> None:
        """Who asked to be on time, and was not, has settled nothing."""
        if call.is_ok and asked_ms >= held.deadline_ms:
            self.blame(f"O1: {held.seq} was settled at {asked_ms}, late by {held.deadline_ms}")
        clock = self.world.clock
        is_late = call.error.startswith("Late") and not clock.jumps
        if is_late and clock.now_ms() < held.deadline_ms:
            self.blame(f"O1: {held.seq} was late before {held.deadline_ms}: {call.error}")

    async def _release(self, session: Session, place: Place, held: Held) -> None:
        failed = self.chance.random() < 0.5
        delay = self.chance.choice([0, 0, 0.1, 1.0, 5.0])
        call = Release(
            shard=held.shard,
            seq=held.seq,
            version=held.version,
            failed=failed,
            failures=held.failures + failed,
            delay_ms=round(delay * 1000),
        )
        clock = self.world.clock
        asked_ms, jumps = clock.now_ms(), clock.jumps
        work = place.queue.release([held.receipt], failed=failed, delay=delay)
        await self._end(session, call, held, work)
        if clock.jumps == jumps:
            call.since_ms = asked_ms

    async def _end(
        self,
        session: Session,
        call: Settle | Release | Discard,
        held: Held,
        work: Awaitable[dict[int, Refused]],
    ) -> None:
        def note(call: Settle | Release | Discard, refused: dict[int, Refused]) -> None:
            if held.seq in refused:
                self.history.refused(call, refused[held.seq])

        try:
            await self.ask(session, call, work, note)
        except Over:
            if isinstance(call, Settle):
                self._doubtful.append(held._replace(deadline_ms=0))
            raise
        if call.outcome is Outcome.OPEN and isinstance(call, Settle):
            self._doubtful.append(held._replace(deadline_ms=0))
        if _is_passing(call) or call.error.startswith("Late"):
            # The first deadline alone does not determine its outcome any more.
            self._keep(held._replace(deadline_ms=0))

    async def _extend(self, session: Session, lease: Leased, held: Held) -> None:
        call = Extend(shard=held.shard, seq=held.seq, version=held.version)

        def note(call: Extend, nothing: None) -> None:
            call.deadline_ms = lease.deadline_ms

        await self.ask(session, call, lease.extend(self.chance.choice([0.1, 1, 10])), note)
        self._keep(held._replace(deadline_ms=0))

    async def _pass_on(self, session: Session, lease: Leased, held: Held) -> None:
        """Settle the input and publish the output, at once."""
        target = await session.queue(self._target)
        number = self.history.step
        publish = Publish(shard=target.shard, rows=self.make_rows(target, 1), transaction=number)
        settle = Settle(shard=held.shard, seq=held.seq, version=held.version, transaction=number)

        async def work() -> Later[int | None]:
            async with session.millrace.transaction() as transaction:
                transaction.settle(lease)
                return publish_in(self, transaction, target, publish)

        def note(_: Sequence[Call], answer: Later[int | None]) -> None:
            publish.first = answer.value

        try:
            await self.ask_together(session, [settle, publish], work(), note)
        except Over:
            self._doubtful.append(held._replace(deadline_ms=0))
            raise
        if settle.outcome is Outcome.OPEN:
            self._doubtful.append(held._replace(deadline_ms=0))

    # --- The end -------------------------------------------------------------------------------

    async def drain(self, session: Session) -> int:
        """Settle whatever there is now; returns how much that was."""
        place = await session.queue(self._queue)
        call = Lease(shard=place.shard, lease_ms=1000, count=50)
        work = place.queue.lease(call.count, seconds=1)
        leases = await self.ask(session, call, work, _note_leases) or []
        for lease in leases:
            held = Held(place.shard, lease.seq, lease.version, lease.receipt)
            await self._settle(session, place, held)
        return len(leases)


def _is_passing(call: Call) -> bool:
    """Return True if it was refused for a temporary reason."""
    return call.error.startswith(("Full", "Closed"))


async def _settle_any(queue: Queue, held: Held) -> dict[int, Refused]:
    """Settle a message also if it was leased again since."""
    try:
        await settle_any_delivery(queue, held.receipt)
    except Stale as error:
        return {held.seq: error}
    return {}


def _note_leases(call: Lease, leases: list[Leased]) -> None:
    if leases:
        call.version = leases[0].version
        call.deadline_ms = leases[0].deadline_ms
    call.rows = tuple(
        seen_of(
            lease.seq,
            lease.body,
            lease.key,
            lease.headers,
            time_ms=lease.time_ms,
            deliveries=lease.deliveries,
            failures=lease.failures,
            id_=lease.id,
        )
        for lease in leases
    )
