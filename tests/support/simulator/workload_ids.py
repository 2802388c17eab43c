"""Clients with ids: publish entries in doubt again, and repeat lease calls.

That a repeat never doubles is seen by the usual checkers: the same message in two places is wrong
(I6), and so is a counter of more messages than were sent (I12).
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.client.lease import Lease as Leased
from millrace.client.message import Message
from tests.support.checkers.history import (
    Call,
    Other,
    Outcome,
    Publish,
    Settle,
)
from tests.support.simulator.workload import (
    ONCE,
    Client,
    Over,
    Place,
    Session,
    World,
    headers_of,
)
from tests.support.simulator.workload_workers import Held, Worker

SENT_MAX = 100
"""Messages that are kept for late repeats."""


class Sender(Client):
    """Publishes under de-duplication ids, and sends again what it does not know the outcome of."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self._doubtful: list[Publish] = []
        self._sent: list[Publish] = []

    async def resume(self, session: Session) -> None:
        place = await session.queue(ONCE)
        doubtful, self._doubtful = self._doubtful, []
        for at, call in enumerate(doubtful):
            # If the engine ends now, the others are still in doubt.
            self._doubtful = doubtful[at:]
            await self._send(session, place, call)
        self._doubtful = [call for call in self._doubtful if call not in doubtful]

    async def act(self, session: Session) -> None:
        await self.resume(session)
        place = await session.queue(ONCE)
        if self._sent and self.chance.random() < 0.4:
            await self._send(session, place, self.chance.choice(self._sent))
            return
        rows = self.make_rows(place, self.chance.choice([1, 1, 1, 4]))
        call = Publish(shard=place.shard, rows=rows)
        self._sent.append(call)
        del self._sent[:-SENT_MAX]
        await self._send(session, place, call)

    async def _send(self, session: Session, place: Place, given: Publish) -> None:
        """Send a message, or send it again; its id is its tag."""
        call = Publish(shard=place.shard, rows=given.rows, is_late=given.number > 0)
        given.number = given.number or 1
        messages = [Message(r.body, r.key, headers_of(r), dedup=r.tag) for r in given.rows]

        def note(call: Publish, seqs: Sequence[int]) -> None:
            call.first = seqs[0] if len(seqs) else None
            if list(seqs) != list(range(seqs[0], seqs[0] + len(call.rows))):
                self.blame(f"I6: {call.rows[0].tag} and its neighbours are {list(seqs)}")

        await self.ask(session, call, place.queue.publish_many(messages), note)
        if call.outcome is Outcome.OPEN:
            self._doubtful.append(given)


class Retrier(Worker):
    """Makes lease calls again as if it had not heard the answer, and replaces what it holds.

    It is alone on its queue: what another call of its own is given has run out.
    """

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world, ONCE, "plain")
        self._attempts = 0

    async def _lease(self, session: Session, place: Place) -> list[Leased]:
        self._attempts += 1
        self._attempt = f"{self.name}-{self._attempts}"
        leases = await super()._lease(session, place)
        if leases and self.chance.random() < 0.3:
            await self._lease_again(session, place, leases)
        return leases

    async def _lease_again(self, session: Session, place: Place, leases: list[Leased]) -> None:
        """The same messages under the same receipts, unless they have run out."""
        call = Other(shard=place.shard, what=f"lease again, as {self._attempt}")
        work = place.queue.lease(len(leases), seconds=1, attempt=self._attempt)
        again = await self.ask(session, call, work, lambda call, leases: None)
        if again is None:
            return
        if not again:
            self.blame(f"A4: {self._attempt} was given nothing when it came again")
        elif again[0].version == leases[0].version:
            if [one.receipt for one in again] != [one.receipt for one in leases]:
                self.blame(f"A4: {self._attempt} was given other messages when it came again")
        elif again[0].deadline_ms - 1000 < leases[0].deadline_ms:
            self.blame(f"A4: {self._attempt} was given another lease while its own was good")

    async def _work(self, session: Session, place: Place, lease: Leased) -> None:
        if self.chance.random() < 0.3:
            await self._replace(session, place, lease)
        else:
            await super()._work(session, place, lease)

    async def _replace(self, session: Session, place: Place, lease: Leased) -> None:
        """Settle the held message, publish its successor and hold that one, at once."""
        [made] = self.make_rows(place, 1)
        # Who names no key goes on under the same one.
        row = made._replace(key=made.key or lease.key)
        number = self.history.step
        publish = Publish(shard=place.shard, rows=(row,), transaction=number)
        settle = Settle(shard=place.shard, seq=lease.seq, version=lease.version, transaction=number)
        held = Held(place.shard, lease.seq, lease.version, lease.receipt, lease.failures)
        work = lease.replace(row.body or b"", key=made.key, headers=headers_of(row), seconds=2)

        def note(_: Sequence[Call], after: Leased) -> None:
            publish.first = after.seq
            if (after.deliveries, after.failures) != (lease.deliveries, lease.failures):
                self.blame(f"A8: {after.seq} has other counters than {lease.seq} had")

        # A client that leaves would return the successor as if it had never been delivered.
        patient, self.is_patient = self.is_patient, True
        try:
            [after] = await self.ask_together(session, [settle, publish], work, note)
        except Over:
            self._doubtful.append(held)
            raise
        finally:
            self.is_patient = patient
        if after is not None:
            new = Held(place.shard, after.seq, after.version, after.receipt, after.failures)
            if self.chance.random() < 0.5:
                await self._settle(session, place, new)
            else:
                self._keep(new)
