"""Several commands at once, all or nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import islice
from types import TracebackType
from typing import Generic, TypeVar

from millrace import limits
from millrace.client.carried import carrying
from millrace.client.cursor import Snapshot, commit_parts, engine_of, unpin_parts
from millrace.client.engine import Engine
from millrace.client.lease import Call, Leases, by_call
from millrace.client.message import Body, Rows, publish_one, publish_rows
from millrace.client.queue import Queue, engine_and_shards
from millrace.client.shards import Placing, Shards
from millrace.client.topic import Topic, engine_and_topic
from millrace.core import carry, check
from millrace.core.answers import Outcome
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
from millrace.core.commands import Transaction as Transact
from millrace.core.model import ShardId
from millrace.errors import Closed, Forged, Invalid, NotFound

T = TypeVar("T")

Note = Callable[[object], None]
"""Takes note of what a part was answered."""


class _Stage:
    """Whether a transaction has ended, for its answers: they do not hold its messages."""

    __slots__ = ("has_ended",)

    def __init__(self) -> None:
        self.has_ended = False


class Later(Generic[T]):
    """What a part of a transaction was answered, once the transaction has been done."""

    def __init__(self, stage: _Stage) -> None:
        self._stage = stage
        self._value: list[T] = []

    @property
    def value(self) -> T:
        """The answer.

        Raises:
            Closed: the transaction has not ended yet, or was not done.
        """
        if not self._value:
            if not self._stage.has_ended:
                raise Closed("there is no answer yet: ask for it after the transaction's context")
            raise Closed("there is no answer: the transaction was not done, none of its parts")
        return self._value[0]

    def __repr__(self) -> str:
        return f"<Later: {self._value[0]!r}>" if self._value else "<Later: not yet>"


class Transaction:
    """Collects what is to be done; it is done, whole, when the context ends without an error.

    `async with m.transaction() as t: t.settle(lease); t.publish("shipped", b"...")`. A worker that
    settles its input and publishes its output so is exactly once along the chain. Where a part is
    refused, the end of the context raises why, and nothing was done.
    """

    def __init__(self, engine: Engine, space: str, *, needs_context: bool = False) -> None:
        self._needs_context = needs_context
        """Nobody but its own context will do what is in it."""
        self._engine = engine
        self._space = space
        self._parts: list[tuple[Shards | ShardId | str, Part, Note | None]] = []
        self._stage = _Stage()
        self._is_once = False
        """It was seen to that it is refused if it was done before."""

    def publish(
        self,
        queue: Queue | Topic | str,
        body: Body | None,
        *,
        key: bytes | str | None = None,
        headers: check.HeadersLike | None = None,
        group: bytes | str | None = None,
        priority: int | None = None,
        delay: float | None = None,
        dedup: str | None = None,
        ttl: float | None = None,
        producer: str | None = None,
        number: int | None = None,
        mode: ProducerMode = "dense",
    ) -> Later[int | None]:
        """Append a message to a queue or topic of the same commit group; see `Queue.publish`.

        A topic forwards it once the transaction is done.
        """
        message = check.message(body, key, headers, group)
        later: Later[int | None] = Later(self._stage)

        def note(places: object) -> None:
            later._value = [places[0] if isinstance(places, Sequence) and places else None]

        numbered = check.numbered(producer, number, mode, None)
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
        """Append messages to a queue or topic of the same commit group; see `publish`."""
        numbered = check.numbered(producer, number, mode, after)
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
        """Make stages of a queue visible; see `Queue.publish_staged`."""
        numbered = check.numbered(producer, number, mode, after, spans)
        return self._add_rows(queue, PublishStaged(check.stages(stages, numbered), numbered))

    def _carried(self, queue: object, command: Publish) -> Publish:
        """The trace goes on behind it; a topic is asked otherwise."""
        if self._engine.telemetry is not None:
            command = carrying(command, self._engine.telemetry.carried())
        return carry.pack(command) if isinstance(queue, Topic) else command

    def _add_rows(
        self, queue: Queue | Topic | str, part: Publish | PublishStaged
    ) -> Later[Sequence[int]]:
        later: Later[Sequence[int]] = Later(self._stage)

        def note(places: object) -> None:
            later._value = [places if isinstance(places, Sequence) else range(0)]

        self._add(self._shards(queue), part, note)
        return later

    def settle(self, leases: Leases) -> None:
        """The messages are done, if everything else is; a lease, a receipt, or several."""
        for call in by_call(self._engine, leases):
            self._add(call.shard, Settle(call.lease, call.seqs, call.history), _end(call))

    def release(self, leases: Leases, *, failed: bool = False, delay: float = 0) -> None:
        """Give messages back; a lease, a receipt, or several. See `Lease.release`."""
        failed = check.flag(failed, "failed")
        delay_ms = check.millis(delay, "delay", limits.DELAY_MS_MAX, least_ms=0)
        for call in by_call(self._engine, leases):
            command = Release(call.lease, call.seqs, call.history, failed, delay_ms)
            self._add(call.shard, command, _end(call))

    def discard(self, leases: Leases) -> None:
        """Make dead letters of messages; a lease, a receipt, or several."""
        for call in by_call(self._engine, leases):
            self._add(call.shard, Discard(call.lease, call.seqs, call.history), _end(call))

    def extend(self, leases: Leases, seconds: float) -> None:
        """Hold messages for so many seconds from now; a lease, a receipt, or several."""
        lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        for call in by_call(self._engine, leases):
            command = Extend(call.lease, call.seqs, call.history, lease_ms)
            self._add(call.shard, command, _extend(call))

    def commit(self, snapshot: Snapshot, seq: int | None = None) -> None:
        """Move the snapshot's cursor; see `Snapshot.commit`."""
        self._check_snapshot(snapshot)
        for shard, command, note in commit_parts(snapshot, seq):
            self._add(shard, command, note)

    def unpin(self, snapshot: Snapshot) -> None:
        """Let a snapshot go."""
        self._check_snapshot(snapshot)
        for shard, command in unpin_parts(snapshot):
            self._add(shard, command)

    def _shards(self, queue: Queue | Topic | str) -> Shards | str:
        if isinstance(queue, Topic):
            owner, shard = engine_and_topic(queue)
            self._check_own(owner, "topic")
            return Shards((shard,), "key")
        if not isinstance(queue, Queue):
            return check.name(queue, "queue")
        engine, shards = engine_and_shards(queue)
        self._check_own(engine, "queue")
        return shards

    def _check_snapshot(self, snapshot: object) -> None:
        if not isinstance(snapshot, Snapshot):
            raise Invalid(f"snapshot is {check.shown(snapshot)}, not a snapshot", field="snapshot")
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
        placings = [
            Placing(await self._find(shards), part, self._engine.turn)
            for shards, part, _ in self._parts
        ]
        parts = tuple(part for placing in placings for part in placing.parts)
        answers = iter(await self._engine.transact(Transact(parts)))
        for placing, (_, _, note) in zip(placings, self._parts, strict=True):
            mine = list(islice(answers, len(placing.parts)))
            if note is not None:
                note(placing.answer(mine))

    async def _find(self, shards: Shards | ShardId | str) -> Shards | ShardId:
        if not isinstance(shards, str):
            return shards
        found = await self._engine.find_queue(self._space, shards)
        if found is None:
            raise NotFound(f"there is no queue {shards!r} in {self._space!r}", field="queue")
        return Shards.of(found)

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
    """Have it refused if what it settles was settled before: then it can be committed again.

    Settled twice is settled, but what has ended cannot be extended.
    """
    if transaction._is_once:
        return
    transaction._is_once = True
    ended = [(at, one) for at, one, _ in transaction._parts if isinstance(one, Settle | Discard)]
    transaction._parts[:0] = [
        (at, Extend(one.lease, one.seqs, one.history, lease_ms), None) for at, one in ended
    ]


def _end(call: Call) -> Callable[[object], None]:
    return lambda _: call.ended(call.seqs)


def _extend(call: Call) -> Callable[[object], None]:
    return lambda answer: call.extended(answer) if isinstance(answer, Outcome) else None
