"""Several commands at once, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from pyroaring import BitMap64

from millrace import limits
from millrace.client.cursor import Snapshot
from millrace.client.engine import Engine
from millrace.client.lease import Grant, Lease
from millrace.client.queue import Queue, Rows
from millrace.core import check
from millrace.core.commands import (
    CommitCursor,
    Extend,
    Part,
    ProducerMode,
    Publish,
    PublishStaged,
    Release,
    Settle,
    Transaction,
)
from millrace.core.model import CursorCell, ShardId
from millrace.errors import Closed, Invalid, NotFound


class TransactionContext:
    """Collects what is to be done; it is done, whole, when the context ends without an error.

    `async with m.transaction() as t: t.settle(lease); t.publish("shipped", b"...")`. A worker that
    settles its input and publishes its output so is exactly once along the chain.
    """

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space
        self._parts: list[tuple[ShardId, Part]] = []
        self._after: list[Callable[[object], None] | None] = []
        self._ended = False
        self.answers: tuple[object, ...] = ()
        """What each part was answered, in their order, once the context has ended."""

    def publish(
        self,
        queue: Queue | str,
        body: bytes | None,
        *,
        key: bytes | str | None = None,
        headers: check.HeadersLike | None = None,
        producer: str | None = None,
        number: int | None = None,
        mode: ProducerMode = "dense",
    ) -> None:
        """Append a message to a queue of the same commit group."""
        message = check.message(body, key, headers)
        numbered = check.numbered(producer, number, mode, None) if producer or number else None
        self._add(self._shard(queue), Publish((message,), numbered))

    def publish_many(self, queue: Queue | str, rows: Rows) -> None:
        """Append messages to a queue of the same commit group."""
        self._add(self._shard(queue), Publish(check.rows(rows)))

    def publish_staged(self, queue: Queue | str, stages: list[str]) -> None:
        """Make stages of a queue visible."""
        names = tuple(check.name(stage, "stage") for stage in stages)
        self._add(self._shard(queue), PublishStaged(names))

    def settle(self, lease: Lease) -> None:
        """The message is done, if everything else is."""
        grant, seqs = lease.grant, BitMap64([lease.seq])
        self._add(grant.queue.shard, Settle(grant.lease, seqs, grant.history), _close(lease))

    def release(self, lease: Lease, *, failed: bool = False) -> None:
        """Give the message back."""
        grant, seqs = lease.grant, BitMap64([lease.seq])
        command = Release(grant.lease, seqs, grant.history, failed)
        self._add(grant.queue.shard, command, _close(lease))

    def extend(self, lease: Lease, seconds: float) -> None:
        """Hold the message for so many seconds from now."""
        grant, seqs = lease.grant, BitMap64([lease.seq])
        lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        self._add(grant.queue.shard, Extend(grant.lease, seqs, grant.history, lease_ms))

    def commit(self, snapshot: Snapshot, seq: int | None = None) -> None:
        """Move the snapshot's cursor."""
        cursor = snapshot.cursor
        if cursor is None:
            raise Invalid("a snapshot without a cursor has nothing to commit", field="cursor")

        def note(answer: object) -> None:
            if isinstance(answer, CursorCell):
                cursor.committed(answer)

        command = CommitCursor(cursor.name, cursor.id, snapshot.position(seq))
        self._add(cursor.shard, command, note)

    def _shard(self, queue: Queue | str) -> ShardId:
        if isinstance(queue, Queue):
            return queue.shard
        shards = self._engine.find_queue(self._space, check.name(queue, "queue"))
        if shards is None:
            raise NotFound(f"there is no queue {queue!r} in {self._space!r}", field="queue")
        return shards[0]

    def _add(
        self, shard: ShardId, part: Part, after: Callable[[object], None] | None = None
    ) -> None:
        if self._ended:
            raise Closed("the transaction has ended; begin another")
        self._parts.append((shard, part))
        self._after.append(after)

    async def __aenter__(self) -> TransactionContext:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended = True
        if error is not None or not self._parts:
            return
        self.answers = await self._engine.transact(Transaction(tuple(self._parts)))
        for answer, after in zip(self.answers, self._after, strict=True):
            if after is not None:
                after(answer)


def _close(lease: Lease) -> Callable[[object], None]:
    grant: Grant = lease.grant

    def note(answer: object) -> None:
        grant.open.discard(lease.seq)

    return note
