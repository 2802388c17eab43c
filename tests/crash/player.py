"""What the program under test can do, each time announcing it first and telling the answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TypeVar

from millrace import Cursor, Lease, Message, Millrace, Queue, Snapshot, errors
from millrace.core.commands import ProducerMode
from tests.crash.events import (
    LIFE_SHIFT,
    TAG_HEADER,
    AnyAttempt,
    Commit,
    Done,
    Duty,
    End,
    Ended,
    Event,
    Extend,
    Read,
    Refused,
    Send,
    SendStage,
    Sent,
    Showed,
    Take,
    Took,
    Transact,
    body_of,
    say,
    tag_of,
    turn_of,
)
from tests.crash.scene import FOLLOWER, TURNS

T = TypeVar("T")

Held = Sequence[tuple[Lease | str, int, int]]
"""Leases or receipts, with the seq and the lease call of each."""


class Player:
    """One life of the process."""

    def __init__(self, opened: Millrace, duty: Duty, out: int) -> None:
        self.millrace = opened
        self.duty = duty
        self.queues: dict[str, Queue] = {}
        self.cursors: dict[str, Cursor] = {}
        self.numbers = dict(duty.numbers)
        """`queue/producer` → the last number that was tried."""
        self.is_stopping = False
        self._out = out
        self._op = 0
        self._tag = duty.life << LIFE_SHIFT
        self._progress = asyncio.Event()

    # --- Telling ---------------------------------------------------------------------------------

    def say(self, event: Event) -> None:
        """Tell the ledger; when this returns, it knows."""
        say(self._out, event)

    def op(self) -> int:
        """A number for an attempt."""
        self._op += 1
        if self.duty.operations and self._op >= self.duty.operations:
            self.is_stopping = True
        return self._op

    def tags(self, count: int) -> list[int]:
        """Names for new messages."""
        self._tag += count
        return list(range(self._tag - count + 1, self._tag + 1))

    def chance(self, name: str) -> random.Random:
        """The dice of one task, the same for the same seed and life."""
        return random.Random(f"{self.duty.seed}/{self.duty.life}/{name}")

    def number(self, queue: str, producer: str, *, step: int = 1) -> int:
        """The next number of a producer."""
        path = f"{queue}/{producer}"
        self.numbers[path] = self.numbers.get(path, 0) + step
        return self.numbers[path]

    def give_back(self, queue: str, producer: str) -> None:
        """The last number was refused: the next one is the same."""
        self.numbers[f"{queue}/{producer}"] -= 1

    async def attempt(self, attempt: AnyAttempt, call: Awaitable[T]) -> T | None:
        """Announce it, do it; None if it was refused, which is told."""
        self.say(attempt)
        try:
            return await call
        except errors.Closed as error:
            self.is_stopping = True
            self.say(Refused(attempt.op, error.code, error.message))
        except errors.Retry as error:
            self.say(Refused(attempt.op, error.code, error.message))
            await asyncio.sleep(error.after_ms / 1000)
        except errors.Refused as error:
            self.say(Refused(attempt.op, error.code, error.message))
        return None

    async def do(self, attempt: AnyAttempt, call: Awaitable[object]) -> None:
        """Announce and do something whose answer says nothing but that it was done."""
        if await self.attempt(attempt, _answered(call)):
            self.say(Done(attempt.op))

    def progress(self) -> None:
        """Something was settled or purged."""
        self._progress.set()

    async def room(self, queue: str, most: int) -> None:
        """Wait while there is too much in a queue, a short time at most."""
        if (await self.queues[queue].stats())["live"] > most:
            self._progress.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._progress.wait()

    # --- Publishing ------------------------------------------------------------------------------

    async def send(self, send: Send) -> bool:
        """Publish, in the way that its producer's name asks for; whether it was not refused."""
        return self._sent(send.op, await self.attempt(send, self._publish(send)))

    def _sent(self, op: int, seqs: Sequence[int] | None) -> bool:
        if seqs is None:
            return False
        self.say(Sent(op, seqs[0] if seqs else 0, len(seqs)))
        return True

    async def _publish(self, send: Send) -> Sequence[int]:
        queue = self.queues[send.queue]
        rows = messages_of(send)
        mode: ProducerMode = "rising" if send.producer.startswith("rising") else "dense"
        producer, number = send.producer or None, send.number or None
        if len(rows) > 1:
            return await queue.publish_many(rows, producer=producer, number=number, mode=mode)
        [row] = rows
        seq = await queue.publish(
            row.body,
            key=row.key,
            headers=row.headers,
            priority=row.priority,
            delay=row.delay,
            producer=producer,
            number=number,
            mode=mode,
        )
        return range(seq, seq + 1) if seq else range(0)

    async def send_stage(self, send: SendStage) -> bool:
        """Publish a stage under its range of numbers; whether it was not refused."""
        call = self.queues[send.queue].publish_staged(
            [send.stage],
            producer=send.producer,
            number=send.number,
            mode="range",
            after=send.number - 1,
        )
        return self._sent(send.op, await self.attempt(send, call))

    # --- Work ------------------------------------------------------------------------------------

    async def take(self, name: str, count: int, seconds: float, *, wait: float) -> list[Lease]:
        """Lease messages."""
        take = Take(self.op(), name, now_ms(), round(seconds * 1000))
        call = self.queues[name].lease(count, seconds=seconds, wait=wait)
        leases = await self.attempt(take, call)
        if leases is None:
            return []
        rows = [
            (lease.seq, tag_of(lease.body, lease.headers), lease.deliveries) for lease in leases
        ]
        version = leases[0].version if leases else 0
        receipts = [lease.receipt for lease in leases]
        early = _early(leases, take.lease_ms) if name == TURNS else []
        self.say(Took(take.op, version, now_ms(), rows, receipts, early))
        return leases

    async def hold(
        self, name: str, count: int, seconds: float, *, wait: float
    ) -> list[tuple[Lease | str, int, int]]:
        """Lease messages; what is needed to end them."""
        leases = await self.take(name, count, seconds, wait=wait)
        return [(lease, lease.seq, lease.version) for lease in leases]

    async def end(self, name: str, held: Held, *, is_settle: bool) -> None:
        """Settle or give back what was leased, or what receipts name."""
        calls = [(seq, version) for _, seq, version in held]
        end = End(self.op(), name, calls, is_settle)
        codes = await self.attempt(end, self._end(name, held, is_settle=is_settle))
        if codes is not None:
            self.say(Ended(end.op, now_ms(), codes))
            self.progress()

    async def _end(self, name: str, held: Held, *, is_settle: bool) -> dict[int, str]:
        queue, leases = self.queues[name], [lease for lease, _, _ in held]
        refused = await (queue.settle(leases) if is_settle else queue.release(leases))
        return {seq: error.code for seq, error in refused.items()}

    async def extend(self, name: str, held: Held, seconds: float) -> None:
        """Hold longer what was leased."""
        calls = [(seq, version) for _, seq, version in held]
        extend = Extend(self.op(), name, calls, now_ms(), round(seconds * 1000))
        codes = await self.attempt(extend, self._extend(name, held, seconds))
        if codes is not None:
            self.say(Ended(extend.op, now_ms(), codes))

    async def _extend(self, name: str, held: Held, seconds: float) -> dict[int, str]:
        leases = [lease for lease, _, _ in held]
        refused = await self.queues[name].extend(leases, seconds)
        return {seq: error.code for seq, error in refused.items()}

    async def transact(self, held: Held, send: Send, snapshot: Snapshot | None = None) -> bool:
        """Settle messages of `input`, or move the cursor of `keyed`, and publish, all at once.

        Returns whether it was not refused.
        """
        self.say(Transact(send.op))
        if held:
            calls = [(seq, version) for _, seq, version in held]
            self.say(End(send.op, "input", calls, is_settle=True))
        if snapshot is not None:
            self.say(Commit(send.op, "keyed", snapshot.boundary))
        seqs = await self.attempt(send, self._transact(held, send, snapshot))
        self.progress()
        return self._sent(send.op, seqs)

    async def _transact(self, held: Held, send: Send, snapshot: Snapshot | None) -> Sequence[int]:
        async with self.millrace.transaction() as transaction:
            if held:
                transaction.settle([lease for lease, _, _ in held])
            if snapshot is not None:
                transaction.commit(snapshot)
            later = transaction.publish_many(
                send.queue,
                messages_of(send),
                producer=send.producer or None,
                number=send.number or None,
            )
        return later.value

    # --- Following -------------------------------------------------------------------------------

    async def read(self, name: str, *, wait: float) -> Snapshot | None:
        """The next snapshot of a cursor, read whole."""
        read = Read(self.op(), name)
        found = await self.attempt(read, _listed(self._next(name, wait)))
        if found is None:
            return None
        for snapshot in found:
            rows = await tags_in(snapshot)
            self.say(Showed(read.op, snapshot.after, snapshot.boundary, rows))
            return snapshot
        self.say(Showed(read.op, 0, 0, []))
        return None

    async def _next(self, name: str, wait: float) -> Snapshot | None:
        try:
            return await self.cursors[name].next(wait=wait)
        except errors.Fenced:
            # Another client follows by the same cursor: it is taken back.
            self.cursors[name] = await self.queues[name].cursor(FOLLOWER, retain=True)
            return await self.cursors[name].next(wait=wait)


def now_ms() -> int:
    """The engine's own clock."""
    return time.time_ns() // 1_000_000


def messages_of(send: Send) -> list[Message]:
    """The messages that are to be sent."""
    if send.queue == TURNS:
        return [
            Message(body_of(tag), priority=priority, delay=delay_ms / 1000)
            for tag in send.tags
            for priority, delay_ms in [turn_of(tag)]
        ]
    if not send.keys:
        return [Message(body_of(tag)) for tag in send.tags]
    return [
        Message(
            None if tag in send.deletes else body_of(tag),
            f"key-{key}",
            {TAG_HEADER: b"%d" % tag},
        )
        for tag, key in zip(send.tags, send.keys, strict=True)
    ]


def _early(leases: Sequence[Lease], lease_ms: int) -> list[tuple[int, int]]:
    """Which of these, handed out just now for so long, should have waited, and how long."""
    found: list[tuple[int, int]] = []
    for lease in leases:
        _, delay_ms = turn_of(tag_of(lease.body, lease.headers))
        left_ms = lease.time_ms + delay_ms - (lease.deadline_ms - lease_ms)
        if left_ms > 0:
            found.append((lease.seq, left_ms))
    return found


async def tags_in(snapshot: Snapshot) -> list[tuple[int, int]]:
    """Seqs and tags of a snapshot's rows; a tag of 0 where a row is not as it was sent."""
    return [(row.seq, tag_of(row.body, row.headers)) async for row in snapshot.rows()]


async def _answered(call: Awaitable[object]) -> bool:
    await call
    return True


async def _listed(call: Awaitable[T | None]) -> list[T]:
    found = await call
    return [] if found is None else [found]
