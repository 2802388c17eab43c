"""Publishers: with and without numbers, one and many, staged, in transactions, and late."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import pyarrow as pa

from millrace.client.message import Message
from millrace.client.transaction import Later, Transaction
from millrace.core.commands import ProducerMode
from millrace.core.format.block import SCHEMA
from tests.support.checkers.history import (
    Call,
    Other,
    Outcome,
    Publish,
    Sent,
)
from tests.support.simulator.workload import (
    QUEUES,
    Client,
    Place,
    Session,
    World,
    headers_of,
)

REPEATS_MAX = 200
"""Answered numbers that are kept for late repeats."""


class Publisher(Client):
    """Publishes to one queue, one thing after another."""

    def __init__(self, name: str, world: World, queue: str) -> None:
        super().__init__(name, world)
        self._queue = queue
        self._mode: ProducerMode = self.chance.choice(["dense", "dense", "rising"])
        self._numbers: dict[int, int] = {}
        """Shard → the last number that counts."""
        self._open: dict[int, Publish] = {}
        """Shard → the numbered publish whose outcome is not known."""
        self._done: list[Publish] = []
        self._stages = 0

    async def resume(self, session: Session) -> None:
        place = await session.queue(self._queue)
        call = self._open.get(place.shard)
        if call is not None:
            await self._publish_numbered(session, place, call)

    async def act(self, session: Session) -> None:
        await self.resume(session)
        place = await session.queue(self._queue)
        if place.shard in self._open:
            # The next entry would overtake it.
            return
        # What a queue has that waits to be moved counts no longer, and cannot be told apart.
        shape = QUEUES[place.name]
        looks = 1 if shape.max_messages and not shape.dead_letter else 0
        action = self.chance.choices(
            [
                *(self._plain, self._many, self._numbered, self._late, self._staged, self._both),
                self._look,
            ],
            [3, 2, 4, 1, 1, 1, looks],
        )[0]
        await action(session, place)

    async def _plain(self, session: Session, place: Place) -> None:
        [row] = rows = self.make_rows(place, 1)
        call = Publish(shard=place.shard, rows=rows)
        priority, delay, group = self.turn(row)
        work = place.queue.publish(
            row.body,
            key=row.key,
            headers=headers_of(row),
            group=group,
            priority=priority,
            delay=delay,
            ttl=self.life(row),
        )
        await self.ask(session, call, work, self._note_first)

    async def _many(self, session: Session, place: Place) -> None:
        rows = self.make_rows(place, self.chance.randint(1, 12))
        call = Publish(shard=place.shard, rows=rows)
        work = place.queue.publish_many(self._many_rows(rows))
        await self.ask(session, call, work, self._note_range)

    def _many_rows(self, rows: tuple[Sent, ...]) -> list[Message] | pa.RecordBatch:
        if self.chance.random() < 0.7 or any(map(self._is_special, rows)):
            return [self.message(row) for row in rows]
        headers = [
            [{"name": name, "value": value} for name, value in headers_of(row)] for row in rows
        ]
        return pa.RecordBatch.from_pydict(
            {
                "key": pa.array([row.key for row in rows], pa.binary()),
                "headers": pa.array(headers, SCHEMA.field("headers").type),
                "value": pa.array([row.body for row in rows], pa.binary()),
            }
        )

    def _is_special(self, row: Sent) -> bool:
        return row.tag in self.history.turns or row.tag in self.history.lives

    async def _look(self, session: Session, place: Place) -> None:
        """Ask how many there are."""
        call = Other(shard=place.shard, what="count")
        most = QUEUES[place.name].max_messages
        counts = await self.ask(session, call, place.queue.stats(), lambda call, counts: None)
        if counts is not None and counts["live"] > most:
            self.blame(f"M1: {place.name} has {counts['live']} messages, of {most}")

    # --- Numbers -------------------------------------------------------------------------------

    async def _numbered(self, session: Session, place: Place) -> None:
        number = self._numbers.get(place.shard, 0) + 1
        if self._mode == "rising":
            number += self.chance.randint(0, 3)
        call = Publish(
            shard=place.shard,
            rows=self.make_rows(place, self.chance.choice([1, 1, 3])),
            producer=self.name,
            sequence=number,
        )
        await self._publish_numbered(session, place, call)

    async def _publish_numbered(self, session: Session, place: Place, given: Publish) -> None:
        """Publish under a number; until the outcome is known, nothing else has this number."""
        call = _again(given)
        was_open = place.shard in self._open
        self._open[place.shard] = call
        await self.ask(session, call, self._send(place, call), self._note_range)
        if call.is_ok or (call.outcome is Outcome.REFUSED and not was_open):
            # A repeat that is refused says nothing about the first attempt.
            del self._open[place.shard]
        if call.is_ok:
            self._numbers[place.shard] = call.sequence or 0
            self._done.append(call)
            del self._done[:-REPEATS_MAX]
        elif "OutOfOrder" in call.error:
            self.blame(f"I6: {call.producer}/{call.sequence} of {call.shard}: {call.error}")

    def _send(self, place: Place, call: Publish) -> Awaitable[Sequence[int]]:
        return place.queue.publish_many(
            [self.message(row) for row in call.rows],
            producer=call.producer,
            number=call.sequence,
            mode=self._mode,
        )

    async def _late(self, session: Session, place: Place) -> None:
        """Somebody's network was slow: an old publish comes again, and must change nothing."""
        old = [call for call in self._done if call.shard == place.shard]
        if not old:
            return
        call = _again(self.chance.choice(old))
        call.is_late = True
        await self.ask(session, call, self._send(place, call), self._note_range)
        excuses = ("Full", "Closed", "NotFound", "TooLarge")
        if call.outcome is Outcome.REFUSED and not call.error.startswith(excuses):
            self.blame(f"I6: a repeat of {call.producer}/{call.sequence}: {call.error}")

    # --- Stages --------------------------------------------------------------------------------

    async def _staged(self, session: Session, place: Place) -> None:
        """Write rows in parts, and make them visible at once."""
        self._stages += 1
        stage = f"{self.name}-{self._stages}"
        parts = [
            self.make_rows(place, self.chance.randint(1, 5))
            for _ in range(self.chance.randint(1, 3))
        ]
        for number, rows in enumerate(parts, 1):
            written = Other(shard=place.shard, what=f"stage {len(rows)} rows in {stage}")
            work = place.queue.stage(stage, [self.message(row) for row in rows], number=number)
            if await self.ask(session, written, work, lambda call, count: None) is None:
                return
        if self.chance.random() < 0.2:
            dropped = Other(shard=place.shard, what=f"drop stage {stage}")
            await self.ask(session, dropped, place.queue.drop_stage(stage), lambda call, was: None)
            return
        call = Publish(shard=place.shard, rows=tuple(row for rows in parts for row in rows))
        await self.ask(session, call, place.queue.publish_staged([stage]), self._note_range)

    # --- Transactions --------------------------------------------------------------------------

    async def _both(self, session: Session, place: Place) -> None:
        """Publish to two queues at once."""
        other = await session.queue(self.chance.choice(["plain", "keyed", "log", "table"]))
        if other.shard == place.shard:
            return
        number = self.history.step
        calls = [
            Publish(shard=each.shard, rows=self.make_rows(each, 1), transaction=number)
            for each in (place, other)
        ]

        async def work() -> list[Later[int | None]]:
            async with session.millrace.transaction() as transaction:
                return [
                    publish_in(self, transaction, each, call)
                    for each, call in zip((place, other), calls, strict=True)
                ]

        def note(_: Sequence[Call], answers: list[Later[int | None]]) -> None:
            for call, answer in zip(calls, answers, strict=True):
                self._note_first(call, answer.value)

        await self.ask_together(session, calls, work(), note)

    # --- Answers -------------------------------------------------------------------------------

    def _note_first(self, call: Publish, first: int | None) -> None:
        self._note_range(call, () if first is None else (first,))

    def _note_range(self, call: Publish, told: Sequence[int]) -> None:
        """Return seqs or ids, as the queue returns them."""
        if self.history.shards[call.shard].partitions[1]:
            call.ids = tuple(told)
        else:
            call.first = told[0] if len(told) else None


def publish_in(
    client: Client, transaction: Transaction, place: Place, call: Publish
) -> Later[int | None]:
    """Make the one row of a call part of a transaction."""
    [row] = call.rows
    priority, delay, group = client.turn(row)
    return transaction.publish(
        place.queue,
        row.body,
        key=row.key,
        headers=headers_of(row),
        group=group,
        priority=priority,
        delay=delay,
        ttl=client.life(row),
    )


def _again(call: Publish) -> Publish:
    """The same call once more."""
    return Publish(shard=call.shard, rows=call.rows, producer=call.producer, sequence=call.sequence)
