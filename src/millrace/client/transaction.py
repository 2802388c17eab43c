"""`Transaction`: several operations, committed atomically."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import islice
from types import TracebackType
from typing import Generic, TypeVar

from millrace import limits
from millrace.client.cursor import Snapshot, commit_parts, engine_of, unpin_parts
from millrace.client.engine import Engine
from millrace.client.lease import LeaseCall, Leases, lease_calls_of
from millrace.client.message import Body, Rows, publish_one, publish_rows
from millrace.client.queue import Queue, engine_and_shards
from millrace.client.shards import ShardedPart, Shards
from millrace.client.topic import Topic, engine_and_topic
from millrace.client.trace_headers import with_headers
from millrace.core import validate
from millrace.core.answers import Outcome
from millrace.core.commands import ApplyTransaction as Transact
from millrace.core.commands import (
    Discard,
    Extend,
    Part,
    ProducerMode,
    Publish,
    PublishStaged,
    Release,
    Settle,
)
from millrace.core.model import ShardId
from millrace.core.publishing import life_headers
from millrace.errors import Closed, Forged, Invalid, NotFound

T = TypeVar("T")

Note = Callable[[object], None]
"""Callback for the answer of a part."""


class _Stage:
    """State of a transaction, shared with its results, which must not keep its messages alive."""

    __slots__ = ("has_ended",)

    def __init__(self) -> None:
        self.has_ended = False


class Later(Generic[T]):
    """Result of an operation in a transaction, available after the transaction is committed."""

    def __init__(self, stage: _Stage) -> None:
        self._stage = stage
        self._value: list[T] = []

    @property
    def value(self) -> T:
        """Result of the operation.

        Raises:
            Closed: the transaction has not ended yet, or was not committed.
        """
        if not self._value:
            if not self._stage.has_ended:
                raise Closed("there is no answer yet: ask for it after the transaction's context")
            raise Closed("there is no answer: the transaction was not done, none of its parts")
        return self._value[0]

    def __repr__(self) -> str:
        return f"<Later: {self._value[0]!r}>" if self._value else "<Later: not yet>"


class Transaction:
    """Collects operations, and commits them atomically when the context ends without an error.

    `async with m.transaction() as t: t.settle(lease); t.publish("shipped", b"...")`. A worker that
    settles its input and publishes its output this way processes exactly once along the chain. If
    an operation is refused, the end of the context raises the reason, and nothing was done.
    """

    def __init__(self, engine: Engine, space: str, *, needs_context: bool = False) -> None:
        self._needs_context = needs_context
        """True until its context is entered; without a context nothing commits it."""
        self._engine = engine
        self._space = space
        self._parts: list[tuple[Shards | ShardId | str, Part, Note | None]] = []
        self._stage = _Stage()
        self._is_once = False
        """True after `once_only`: committing it twice is refused."""

    def publish(
        self,
        queue: Queue | Topic | str,
        body: Body | None,
        *,
        key: bytes | str | None = None,
        headers: validate.HeadersLike | None = None,
        group: bytes | str | None = None,
        priority: int | None = None,
        delay: float | None = None,
        dedup: str | None = None,
        ttl: float | None = None,
        producer: str | None = None,
        number: int | None = None,
        mode: ProducerMode = "dense",
    ) -> Later[int | None]:
        """Publish a message to a queue or topic of the same commit group; see `Queue.publish`.

        A topic forwards it after the commit.
        """
        message = validate.message(body, key, headers, group)
        later: Later[int | None] = Later(self._stage)

        def note(places: object) -> None:
            later._value = [places[0] if isinstance(places, Sequence) and places else None]

        numbered = validate.numbered(producer, number, mode, None)
        command = publish_one(message, numbered, priority, delay, dedup, ttl)
        self._add(self._shards(queue), self._carried(queue, command), note)
        return later

    def publish_many(
        self,
        queue: Queue | Topic | str,
        rows: Rows,
        *,
        priority: int | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        producer: str | None = None,
        number: int | None = None,
        mode: ProducerMode = "dense",
        after: int | None = None,
    ) -> Later[Sequence[int]]:
        """Publish messages to a queue or topic of the same commit group; see `publish`."""
        numbered = validate.numbered(producer, number, mode, after)
        command = publish_rows(rows, numbered, priority, delay, ttl)
        return self._add_rows(queue, self._carried(queue, command))

    def publish_staged(
        self,
        queue: Queue | str,
        stages: Sequence[str],
        *,
        producer: str | None = None,
        number: int | None = None,
        mode: ProducerMode = "dense",
        after: int | None = None,
        spans: Sequence[tuple[int, int]] | None = None,
    ) -> Later[Sequence[int]]:
        """Publish stages of a queue; see `Queue.publish_staged`."""
        numbered = validate.numbered(producer, number, mode, after, spans)
        return self._add_rows(queue, PublishStaged(validate.stages(stages, numbered), numbered))

    def _carried(self, queue: object, command: Publish) -> Publish:
        """Add the trace headers; pack the command if it is for a topic."""
        if self._engine.telemetry is not None:
            command = with_headers(command, self._engine.telemetry.carried())
        return life_headers.pack(command) if isinstance(queue, Topic) else command

    def _add_rows(
        self, queue: Queue | Topic | str, part: Publish | PublishStaged
    ) -> Later[Sequence[int]]:
        later: Later[Sequence[int]] = Later(self._stage)

        def note(places: object) -> None:
            later._value = [places if isinstance(places, Sequence) else range(0)]

        self._add(self._shards(queue), part, note)
        return later

    def settle(self, leases: Leases) -> None:
        """Settle messages with the commit; takes a lease, a receipt, or several. See
        `Lease.settle`."""
        for call in lease_calls_of(self._engine, leases):
            self._add(call.shard, Settle(call.lease, call.seqs, call.history), _end(call))

    def release(self, leases: Leases, *, failed: bool = False, delay: float = 0) -> None:
        """Release messages with the commit; takes a lease, a receipt, or several. See
        `Lease.release`."""
        failed = validate.flag(failed, "failed")
        delay_ms = validate.millis(delay, "delay", limits.DELAY_MS_MAX, least_ms=0)
        for call in lease_calls_of(self._engine, leases):
            command = Release(call.lease, call.seqs, call.history, failed, delay_ms)
            self._add(call.shard, command, _end(call))

    def discard(self, leases: Leases) -> None:
        """Turn messages into dead letters with the commit; takes a lease, a receipt, or several."""
        for call in lease_calls_of(self._engine, leases):
            self._add(call.shard, Discard(call.lease, call.seqs, call.history), _end(call))

    def extend(self, leases: Leases, seconds: float) -> None:
        """Extend leases to `seconds` from the commit; takes a lease, a receipt, or several."""
        lease_ms = validate.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        for call in lease_calls_of(self._engine, leases):
            command = Extend(call.lease, call.seqs, call.history, lease_ms)
            self._add(call.shard, command, _extend(call))

    def commit(self, snapshot: Snapshot, seq: int | None = None) -> None:
        """Move the snapshot's cursor with the commit; see `Snapshot.commit`."""
        self._check_snapshot(snapshot)
        for shard, command, note in commit_parts(snapshot, seq):
            self._add(shard, command, note)

    def unpin(self, snapshot: Snapshot) -> None:
        """Unpin a snapshot with the commit."""
        self._check_snapshot(snapshot)
        for shard, command in unpin_parts(snapshot):
            self._add(shard, command)

    def _shards(self, queue: Queue | Topic | str) -> Shards | str:
        if isinstance(queue, Topic):
            owner, shard = engine_and_topic(queue)
            self._check_own(owner, "topic")
            return Shards((shard,), "key")
        if not isinstance(queue, Queue):
            return validate.name(queue, "queue")
        engine, shards = engine_and_shards(queue)
        self._check_own(engine, "queue")
        return shards

    def _check_snapshot(self, snapshot: object) -> None:
        if not isinstance(snapshot, Snapshot):
            raise Invalid(
                f"snapshot is {validate.shown(snapshot)}, not a snapshot", field="snapshot"
            )
        self._check_own(engine_of(snapshot), "snapshot")

    def _check_own(self, engine: Engine, field: str) -> None:
        if engine is not self._engine:
            raise Forged(f"the {field} is of another Millrace", field=field)

    def _add(self, shards: Shards | ShardId | str, part: Part, note: Note | None = None) -> None:
        if self._stage.has_ended:
            raise Closed("the transaction has ended; begin another")
        self._parts.append((shards, part, note))

    async def __aenter__(self) -> Transaction:
        self._needs_context = False
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stage.has_ended = True
        if error is not None or not self._parts:
            return
        sharded = [
            ShardedPart(await self._find(shards), part, self._engine.turn)
            for shards, part, _ in self._parts
        ]
        parts = tuple(part for item in sharded for part in item.parts)
        answers = iter(await self._engine.transact(Transact(parts)))
        for item, (_, _, note) in zip(sharded, self._parts, strict=True):
            own_answers = list(islice(answers, len(item.parts)))
            if note is not None:
                note(item.answer(own_answers))

    async def _find(self, shards: Shards | ShardId | str) -> Shards | ShardId:
        if not isinstance(shards, str):
            return shards
        queue_ref = await self._engine.find_queue(self._space, shards)
        if queue_ref is None:
            raise NotFound(f"there is no queue {shards!r} in {self._space!r}", field="queue")
        return Shards.of(queue_ref)

    def __del__(self) -> None:
        if self._needs_context and self._parts:
            warnings.warn(
                f"a transaction was dropped, and none of its {len(self._parts)} parts was done: "
                "use it as a context, `async with m.transaction() as t: ...`",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )

    def __repr__(self) -> str:
        return f"<Transaction of {len(self._parts)} parts>"


def once_only(transaction: Transaction, lease_ms: int) -> None:
    """Make the transaction safe to commit again: it is refused if its leases were settled before.

    Settling twice is idempotent, but a lease that has ended cannot be extended; so extensions are
    added.
    """
    if transaction._is_once:
        return
    transaction._is_once = True
    ended = [
        (shard, command)
        for shard, command, _ in transaction._parts
        if isinstance(command, Settle | Discard)
    ]
    transaction._parts[:0] = [
        (shard, Extend(command.lease, command.seqs, command.history, lease_ms), None)
        for shard, command in ended
    ]


def _end(call: LeaseCall) -> Callable[[object], None]:
    return lambda _: call.ended(call.seqs)


def _extend(call: LeaseCall) -> Callable[[object], None]:
    return lambda answer: call.extended(answer) if isinstance(answer, Outcome) else None
