"""Transactions: several operations with one atomic effect.

Rule: each part is authorized by itself, and all of them before any is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from millrace import limits
from millrace.client.lease_calls import group_by_call
from millrace.client.message import Rows
from millrace.client.queue import Queue, engine_and_shards
from millrace.client.redrive import target_of
from millrace.client.snapshot_token import read_snapshot_token
from millrace.client.topic import Topic
from millrace.client.transaction import Later, Transaction
from millrace.core.commands import ProducerMode
from millrace.errors import Invalid, MillraceError
from millrace.server.auth.access import Verb
from millrace.server.rest.leases import Receipts
from millrace.server.rest.publish import Number, Published, many_in, published
from millrace.server.rest.route_table import ROUTES, SPACE
from millrace.server.rest.stages import Spans, spans_in
from millrace.server.web.message import (
    MessageIn,
    Seq,
    message_in,
    seq_in,
)
from millrace.server.web.route import RequestContext


class PublishPart(
    MessageIn, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="publish", kw_only=True
):
    """Publish one message, or several under `messages`."""

    queue: str | None = None
    """The queue, as name or space/name; the same holds for all parts."""
    topic: str | None = None
    """The topic to publish to, instead of a queue."""
    messages: list[MessageIn] | UnsetType = UNSET
    producer: str | None = None
    number: Number | None = None
    mode: ProducerMode = "dense"
    after: Number | None = None


class _PublishPartRead(
    PublishPart, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="publish"
):
    """The part as it is decoded: `messages_in` decodes the messages one by one."""

    messages: list[msgspec.Raw] | UnsetType = UNSET  # type: ignore[assignment]


class StagedPart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="publish_staged"
):
    """Publish stages, so that their rows become visible."""

    queue: str
    stages: Annotated[list[str], msgspec.Meta(max_length=limits.STAGES_MAX)]
    producer: str | None = None
    number: Number | None = None
    mode: ProducerMode = "dense"
    after: Number | None = None
    spans: Spans | None = None


class SettlePart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="settle"
):
    """Settle messages: the work is done."""

    queue: str
    receipts: Receipts


class ReleasePart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="release"
):
    """Release messages, so that they can be delivered again."""

    queue: str
    receipts: Receipts
    failed: bool = False
    delay: float = 0


class DiscardPart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="discard"
):
    """Discard messages: they become dead letters."""

    queue: str
    receipts: Receipts


class ExtendPart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="extend"
):
    """Extend the leases of messages."""

    queue: str
    receipts: Receipts
    seconds: float = 30


class CommitPart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="commit"
):
    """Move the cursor of a snapshot to its end."""

    queue: str
    snapshot: str
    seq: Seq | None = None
    """Commit up to this seq; null commits the whole snapshot."""


class UnpinPart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="unpin"
):
    """Release a snapshot."""

    queue: str
    snapshot: str


TransactionPart = (
    PublishPart
    | StagedPart
    | SettlePart
    | ReleasePart
    | DiscardPart
    | ExtendPart
    | CommitPart
    | UnpinPart
)


class TransactionAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The operations of a transaction; all of them must concern one commit group."""

    parts: Annotated[
        list[TransactionPart], msgspec.Meta(min_length=1, max_length=limits.TRANSACTION_PARTS_MAX)
    ]


_PartRead = (
    _PublishPartRead
    | StagedPart
    | SettlePart
    | ReleasePart
    | DiscardPart
    | ExtendPart
    | CommitPart
    | UnpinPart
)


class _TransactionRead(TransactionAsk, frozen=True, forbid_unknown_fields=True):
    """The transaction as it is decoded."""

    parts: Annotated[  # type: ignore[assignment]
        list[_PartRead], msgspec.Meta(min_length=1, max_length=limits.TRANSACTION_PARTS_MAX)
    ]


class Transacted(msgspec.Struct, frozen=True):
    """The result of a committed transaction."""

    results: list[Published | None]
    """The result of each part: the seqs of published messages; null for other operations."""


Answer = Callable[[], Published | None]


@ROUTES.json(
    "POST",
    f"{SPACE}/transactions",
    "known",
    TransactionAsk,
    Transacted,
    tag="transactions",
    reads=_TransactionRead,
)
async def transact(ask: RequestContext, params: TransactionAsk) -> Transacted:
    """Execute several operations atomically."""
    for part in params.parts:
        for verb, space, name in _needed(ask, part):
            ask.check(verb, space, name)
    answers: list[Answer] = []
    async with ask.desk.millrace.transaction(space=ask.params["space"]) as transaction:
        for at, part in enumerate(params.parts):
            try:
                answers.append(await _add(ask, transaction, part))
            except MillraceError as error:
                error.message = f"parts[{at}]: {error.message}"
                raise
    return Transacted([answer() for answer in answers])


def _needed(ask: RequestContext, part: TransactionPart) -> list[tuple[Verb, str, str]]:
    """Return the rights that a part requires, as verb, space and name."""
    space = ask.params["space"]
    if isinstance(part, PublishPart):
        if (part.queue is None) == (part.topic is None):
            raise Invalid("a publish names a queue or a topic", field="queue")
        return [("publish", *_target(space, part))]
    if isinstance(part, StagedPart):
        return [("publish", *target_of(space, part.queue))]
    if isinstance(part, CommitPart | UnpinPart):
        return [("read", *target_of(space, part.queue))]
    return [("work", *target_of(space, part.queue))]


async def _add(ask: RequestContext, transaction: Transaction, part: TransactionPart) -> Answer:
    if isinstance(part, PublishPart):
        return await _publish(transaction, await _publish_target(ask, part), part)
    queue = await _queue(ask, part.queue)
    if isinstance(part, StagedPart):
        later = transaction.publish_staged(
            queue,
            part.stages,
            producer=part.producer,
            number=part.number,
            mode=part.mode,
            after=part.after,
            spans=spans_in(part.spans),
        )
        return lambda: published(later.value, len(later.value))
    if isinstance(part, CommitPart | UnpinPart):
        snapshot = read_snapshot_token(queue, part.snapshot)
        if isinstance(part, UnpinPart):
            transaction.unpin(snapshot)
        else:
            transaction.commit(snapshot, None if part.seq is None else seq_in(part.seq, "seq"))
        return _nothing
    # A receipt contains its shard, which must belong to the queue that the part names.
    group_by_call(*engine_and_shards(queue), queue.name, part.receipts)
    if isinstance(part, SettlePart):
        transaction.settle(part.receipts)
    elif isinstance(part, ReleasePart):
        transaction.release(part.receipts, failed=part.failed, delay=part.delay)
    elif isinstance(part, DiscardPart):
        transaction.discard(part.receipts)
    else:
        transaction.extend(part.receipts, part.seconds)
        return _nothing
    return partial(_let_go, ask, part.receipts)


def _let_go(ask: RequestContext, receipts: list[str]) -> None:
    """Stop counting the messages as in flight, now that the transaction is committed."""
    ask.server.holding.let_go(receipts)


def _nothing() -> None:
    """Return the result of a part that publishes nothing."""


async def _queue(ask: RequestContext, named: str) -> Queue:
    space, name = target_of(ask.params["space"], named)
    return await ask.desk.millrace.find(name, space=space)


def _target(space: str, part: PublishPart) -> tuple[str, str]:
    """Return space and name of the queue or topic to publish to."""
    if part.queue is not None:
        return target_of(space, part.queue)
    return target_of(space, part.topic, limits.TOPIC_NAME_CHARS_MAX)


async def _publish_target(ask: RequestContext, part: PublishPart) -> Queue | Topic:
    if part.queue is not None:
        return await _queue(ask, part.queue)
    space, name = _target(ask.params["space"], part)
    return await ask.desk.millrace.find_topic(name, space=space)


async def _publish(transaction: Transaction, target: Queue | Topic, part: PublishPart) -> Answer:
    rows: Rows
    if isinstance(part, _PublishPartRead) and part.messages is not UNSET:
        rows = await many_in(part, part.messages)
    else:
        rows = [message_in(part)]
    later: Later[Sequence[int]] = transaction.publish_many(
        target,
        rows,
        producer=part.producer,
        number=part.number,
        mode=part.mode,
        after=part.after,
    )
    return lambda: published(later.value, len(rows))
