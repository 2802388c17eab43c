"""Transactions: several things at once, all or nothing.

Rule: each part is allowed to the caller by itself, and all of them before any is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from millrace import limits
from millrace.client.calls import calls_of
from millrace.client.message import Rows
from millrace.client.queue import Queue, engine_and_shards
from millrace.client.redrive import target_of
from millrace.client.ticket import read_ticket
from millrace.client.topic import Topic
from millrace.client.transaction import Later, Transaction
from millrace.core.commands import ProducerMode
from millrace.errors import Invalid, MillraceError
from millrace.server.access import Verb
from millrace.server.rest.message import MessageIn, Seq, message_in, seq_in
from millrace.server.rest.publish import Number, Published, many_in, published
from millrace.server.rest.route import Ask
from millrace.server.rest.stages import Spans, spans_in
from millrace.server.rest.table import ROUTES, SPACE
from millrace.server.rest.work import Receipts


class PublishPart(
    MessageIn, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="publish", kw_only=True
):
    """Publish one message, or several under `messages`."""

    queue: str | None = None
    """As name or space/name; so everywhere."""
    topic: str | None = None
    """Instead of a queue."""
    messages: list[MessageIn] | UnsetType = UNSET
    producer: str | None = None
    number: Number | None = None
    mode: ProducerMode = "dense"
    after: Number | None = None


class _PublishPartRead(
    PublishPart, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="publish"
):
    """The same as it is decoded: several messages one by one, by `messages_in`."""

    messages: list[msgspec.Raw] | UnsetType = UNSET  # type: ignore[assignment]


class StagedPart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="publish_staged"
):
    """Make stages visible."""

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
    """The work on these messages is done."""

    queue: str
    receipts: Receipts


class ReleasePart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="release"
):
    """Give messages back."""

    queue: str
    receipts: Receipts
    failed: bool = False
    delay: float = 0


class DiscardPart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="discard"
):
    """Make dead letters of messages."""

    queue: str
    receipts: Receipts


class ExtendPart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="extend"
):
    """Hold messages for longer."""

    queue: str
    receipts: Receipts
    seconds: float = 30


class CommitPart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="commit"
):
    """Move the cursor that a snapshot is of."""

    queue: str
    snapshot: str
    seq: Seq | None = None
    """Everything up to here; null: all of it."""


class UnpinPart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="unpin"
):
    """Let a snapshot go."""

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
    """What is done at once; all of it must be in one commit group."""

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
    """The same as it is decoded."""

    parts: Annotated[  # type: ignore[assignment]
        list[_PartRead], msgspec.Meta(min_length=1, max_length=limits.TRANSACTION_PARTS_MAX)
    ]


class Transacted(msgspec.Struct, frozen=True):
    """All of it was done."""

    results: list[Published | None]
    """For each part: of what was published, where it is; of anything else, null."""


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
async def transact(ask: Ask, told: TransactionAsk) -> Transacted:
    """Do several things at once, all or nothing."""
    for part in told.parts:
        for verb, space, name in _needed(ask, part):
            ask.check(verb, space, name)
    answers: list[Answer] = []
    async with ask.desk.millrace.transaction(space=ask.params["space"]) as transaction:
        for at, part in enumerate(told.parts):
            try:
                answers.append(await _add(ask, transaction, part))
            except MillraceError as error:
                error.message = f"parts[{at}]: {error.message}"
                raise
    return Transacted([answer() for answer in answers])


def _needed(ask: Ask, part: TransactionPart) -> list[tuple[Verb, str, str]]:
    """What the caller must be allowed to do."""
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


async def _add(ask: Ask, transaction: Transaction, part: TransactionPart) -> Answer:
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
        snapshot = read_ticket(queue, part.snapshot)
        if isinstance(part, UnpinPart):
            transaction.unpin(snapshot)
        else:
            transaction.commit(snapshot, None if part.seq is None else seq_in(part.seq, "seq"))
        return _nothing
    # A receipt names its shard by itself: it must be one of the queue that was named.
    calls_of(*engine_and_shards(queue), queue.name, part.receipts)
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


def _let_go(ask: Ask, receipts: list[str]) -> None:
    """They are no longer the caller's, now that the transaction is done."""
    ask.server.holding.let_go(receipts)


def _nothing() -> None:
    """What is told of a part that publishes nothing."""


async def _queue(ask: Ask, named: str) -> Queue:
    space, name = target_of(ask.params["space"], named)
    return await ask.desk.millrace.find(name, space=space)


def _target(space: str, part: PublishPart) -> tuple[str, str]:
    """Space and name of the queue or topic that is published to."""
    if part.queue is not None:
        return target_of(space, part.queue)
    return target_of(space, part.topic, limits.TOPIC_NAME_CHARS_MAX)


async def _publish_target(ask: Ask, part: PublishPart) -> Queue | Topic:
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
