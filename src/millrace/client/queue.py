"""A queue, as a program uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.client.cursor import Cursor, Snapshot, Start, start_at
from millrace.client.engine import Engine
from millrace.client.lease import Grant, Lease, by_call, raise_refused
from millrace.client.work import Keepalive, Work
from millrace.core import check
from millrace.core.commands import (
    Configure,
    DropStage,
    Explain,
    Explanation,
    Extend,
    Leased,
    OpenCursor,
    Outcome,
    Pin,
    ProducerMode,
    Publish,
    Published,
    PublishStaged,
    Purge,
    Release,
    Settle,
    SnapshotRef,
    Stage,
)
from millrace.core.commands import Lease as LeaseCommand
from millrace.core.model import (
    CursorCell,
    Death,
    History,
    LeaseId,
    Message,
    QueueSpec,
    Row,
    Seq,
    ShardId,
)
from millrace.core.receipt import Receipt
from millrace.errors import Forged, Invalid, Refused

Rows = Sequence[bytes] | Sequence[Message] | pa.RecordBatch
_Make = Callable[[LeaseId, BitMap64, bytes], Settle | Release | Extend]


class Queue:
    """A named queue: publish, lease and settle, follow.

    Every call that changes something returns once that can no longer be lost, by the meaning of
    the queue's journal.
    """

    def __init__(
        self, engine: Engine, keepalive: Keepalive, space: str, name: str, shard: ShardId
    ) -> None:
        self.engine = engine
        self.space = space
        self.name = name
        self.shard = shard
        self._keepalive = keepalive

    def __repr__(self) -> str:
        return f"<Queue {self.space}/{self.name}>"

    # --- Publish ------------------------------------------------------------------------------

    async def publish(
        self,
        body: bytes | None,
        *,
        key: bytes | str | None = None,
        headers: check.HeadersLike | None = None,
        producer: str | None = None,
        number: int | None = None,
        mode: ProducerMode = "dense",
    ) -> int | None:
        """Append a message; returns its seq.

        On a keyed queue it replaces the key's older revision, and without a body it deletes the
        key. With producer and number a repeat changes nothing and is answered as before; None
        where the number was used so long ago that its seq is forgotten.
        """
        message = check.message(body, key, headers)
        numbered = check.numbered(producer, number, mode, None) if producer or number else None
        answer = await self.engine.ask(self.shard, Publish((message,), numbered), Published)
        return answer.first

    async def publish_many(
        self,
        rows: Rows,
        *,
        producer: str | None = None,
        number: int | None = None,
        mode: ProducerMode = "dense",
    ) -> range:
        """Append messages, all or nothing; returns their seqs, which follow each other.

        `rows` are messages, bodies as bytes, or an Arrow batch with the column `value` and, if
        need be, `key` and `headers`. No reader ever sees a part of them.
        """
        numbered = check.numbered(producer, number, mode, None) if producer or number else None
        command = Publish(check.rows(rows), numbered)
        answer = await self.engine.ask(self.shard, command, Published)
        return range(answer.first, answer.first + answer.count) if answer.first else range(0)

    async def stage(self, stage: str, rows: Rows) -> int:
        """Write rows that nobody sees until `publish_staged`; returns the stage's rows so far.

        So that more than a record holds becomes visible at once. Stages that nobody publishes go
        by age.
        """
        command = Stage(check.name(stage, "stage"), check.rows(rows))
        return await self.engine.ask(self.shard, command, int)

    async def publish_staged(
        self,
        stages: Sequence[str],
        *,
        producer: str | None = None,
        number: int | None = None,
        mode: ProducerMode = "dense",
        after: int | None = None,
    ) -> range:
        """Make these stages visible, in this order, all at once; returns their seqs.

        With `mode="range"`, `after` and `number` are the range of the producer's own source that
        the rows were made from: a repeat changes nothing, an overlap is refused.
        """
        numbered = check.numbered(producer, number, mode, after) if producer or number else None
        names = tuple(check.name(stage, "stage") for stage in stages)
        if not names:
            raise Invalid("stages are empty; there is nothing to publish", field="stages")
        answer = await self.engine.ask(self.shard, PublishStaged(names, numbered), Published)
        return range(answer.first, answer.first + answer.count) if answer.first else range(0)

    async def drop_stage(self, stage: str) -> bool:
        """Forget a stage; returns whether there was one."""
        return await self.engine.ask(self.shard, DropStage(check.name(stage, "stage")), bool)

    async def producer(self, name: str) -> int:
        """The last number of a producer; 0 if it is unknown here."""
        return self.engine.producer_number(self.shard, check.name(name, "producer"))

    # --- Work ---------------------------------------------------------------------------------

    async def lease(self, count: int = 1, *, seconds: float = 30, wait: float = 0) -> list[Lease]:
        """Lease up to `count` messages for `seconds`, waiting up to `wait` seconds for the first.

        What was given back comes first, in the order of seqs, then what was never handed out.
        """
        count = check.count(count, "count", limits.LEASE_MESSAGES_MAX)
        lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        wait_ms = check.millis(wait, "wait", limits.LEASE_WAIT_MS_MAX, least_ms=0)
        answer = await self.engine.ask(
            self.shard, LeaseCommand(count, lease_ms), Leased, wait_ms=wait_ms
        )
        if not answer.seqs:
            return []
        rows = await self.engine.rows(self.shard, answer.seqs)
        grant = Grant(self, answer, History(self.engine.meta(self.shard).history), lease_ms)
        return [Lease(grant, row) for row in rows]

    def work(self, *, batch: int = 10, seconds: float = 30) -> Work:
        """Messages as they come, each leased and extended by itself until settled or released.

        `async for lease in queue.work(): ...`; what is unsettled when the loop ends is released.
        """
        return Work(self, self._keepalive, batch=batch, seconds=seconds)

    async def settle(self, leases: Iterable[Lease | str]) -> dict[int, Refused]:
        """Settle many, by lease or receipt; returns the seqs that were refused, with the reason."""
        return await self._each(leases, lambda lease, seqs, history: Settle(lease, seqs, history))

    async def release(
        self, leases: Iterable[Lease | str], *, failed: bool = False
    ) -> dict[int, Refused]:
        """Give many back; returns the seqs that were refused, with the reason."""
        return await self._each(
            leases, lambda lease, seqs, history: Release(lease, seqs, history, failed)
        )

    async def extend(self, leases: Iterable[Lease | str], seconds: float) -> dict[int, Refused]:
        """Hold many for so many seconds from now; returns the refused seqs, with the reason."""
        lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        return await self._each(
            leases, lambda lease, seqs, history: Extend(lease, seqs, history, lease_ms)
        )

    async def _each(self, leases: Iterable[Lease | str], make: _Make) -> dict[int, Refused]:
        commands = [
            make(lease, seqs, history) for (lease, history), seqs in by_call(self, leases).items()
        ]
        if len(commands) == 1:
            return (await self._outcome(commands[0])).refused
        outcomes = await asyncio.gather(*(self._outcome(command) for command in commands))
        return {seq: error for outcome in outcomes for seq, error in outcome.refused.items()}

    async def _outcome(self, command: Settle | Release | Extend) -> Outcome:
        return await self.engine.ask(self.shard, command, Outcome)

    async def settle_one(self, lease: Lease) -> None:
        grant = lease.grant
        seqs = BitMap64([lease.seq])
        raise_refused(await self._outcome(Settle(grant.lease, seqs, grant.history)))
        grant.open.discard(lease.seq)

    async def release_one(self, lease: Lease, *, failed: bool) -> None:
        grant = lease.grant
        seqs = BitMap64([lease.seq])
        raise_refused(await self._outcome(Release(grant.lease, seqs, grant.history, failed)))
        grant.open.discard(lease.seq)

    async def extend_one(self, lease: Lease, seconds: float) -> None:
        grant = lease.grant
        lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        seqs = BitMap64([lease.seq])
        outcome = await self._outcome(Extend(grant.lease, seqs, grant.history, lease_ms))
        raise_refused(outcome)
        grant.deadline_ms = outcome.deadline_ms

    def receipt(self, text: str) -> Receipt:
        """The receipt behind the text; raises `Forged` if it is not one of this queue."""
        receipt = self.engine.unseal(text)
        if receipt.shard != self.shard:
            raise Forged("this receipt is of another queue", field="receipt")
        return receipt

    # --- Look ---------------------------------------------------------------------------------

    async def peek(self, count: int = 10, *, after: int = 0) -> list[Row]:
        """The first messages after a seq that are there, leased or not; nothing is leased."""
        count = check.count(count, "count", limits.PEEK_MESSAGES_MAX)
        return await self.engine.peek(self.shard, after, count)

    async def get(self, seq: int) -> Row | None:
        """The message with this seq, or None if it is not there (any more)."""
        rows = await self.engine.peek(self.shard, seq - 1, 1)
        return rows[0] if rows and rows[0].seq == seq else None

    async def explain(self, seq: int) -> Explanation:
        """Why a message is not to be had: leased until when, settled, replaced by which seq."""
        return await self.engine.ask(self.shard, Explain(Seq(seq)), Explanation)

    async def stats(self) -> dict[str, int]:
        """Durable counters: published = live + the sum of all the ways a message can end."""
        meta = self.engine.meta(self.shard)
        counts = {"published": meta.published, "live": meta.live}
        counts |= {death.name.lower(): meta.died[death] for death in Death}
        return counts

    @property
    def spec(self) -> QueueSpec:
        """The queue's settings."""
        return self.engine.spec(self.shard)

    # --- Follow -------------------------------------------------------------------------------

    async def cursor(
        self, name: str, *, start: Start = "beginning", retain: bool = False
    ) -> Cursor:
        """Open a follower's durable position, making it at `start` if it is new.

        `start` is "beginning", "end", a seq (the first to be read) or a datetime. A retaining
        cursor is shown what workers settle before it comes by; it is bounded in age.
        """
        checked = check.name(name, "name")
        cell = await self.engine.ask(
            self.shard,
            OpenCursor(checked, start_at(self.engine, self.shard, start), retain),
            CursorCell,
        )
        return Cursor(self.engine, self.shard, checked, cell)

    @asynccontextmanager
    async def snapshot(self, *, seconds: float = 3600) -> AsyncIterator[Snapshot]:
        """The queue as of now, pinned as long as the context lasts: always the same rows."""
        pin_ms = check.millis(seconds, "seconds", limits.PIN_MS_MAX)
        ref = await self.engine.ask(self.shard, Pin(pin_ms), SnapshotRef)
        snapshot = Snapshot(self.engine, self.shard, ref, None)
        try:
            yield snapshot
        finally:
            await snapshot.unpin()

    # --- Settings -----------------------------------------------------------------------------

    async def purge(self) -> int:
        """End every message that is there now, leased ones too; returns the last seq that went."""
        return await self.engine.ask(self.shard, Purge(), int)

    async def configure(
        self, *, retention: str | None = None, keep_deletes: float | None = None
    ) -> QueueSpec:
        """Change settings of the queue; those that are not named stay as they are."""
        spec = make_spec(self.spec, retention=retention, keep_deletes=keep_deletes)
        return await self.engine.ask(self.shard, Configure(spec), QueueSpec)


def make_spec(
    spec: QueueSpec,
    *,
    keyed: bool | None = None,
    retention: str | None = None,
    keep_deletes: float | None = None,
) -> QueueSpec:
    """The settings with some of them replaced."""
    if keyed is not None:
        spec = msgspec.structs.replace(spec, keyed=keyed)
    if retention is not None:
        if retention not in ("work", "log"):
            raise Invalid(f"retention is {retention!r}, not 'work' or 'log'", field="retention")
        spec = msgspec.structs.replace(spec, retention=retention)
    if keep_deletes is not None:
        keep_ms = check.millis(keep_deletes, "keep_deletes", 365 * 24 * 3600 * 1000, least_ms=0)
        spec = msgspec.structs.replace(spec, keep_deletes_ms=keep_ms)
    return spec
