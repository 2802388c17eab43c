"""The SQS actions SendMessage and SendMessageBatch.

Rule 1: the valid messages of a batch are published together; every other entry gets its own error.
Rule 2: a batch to a FIFO queue is refused as a whole if one of its messages lacks a group or a
deduplication id.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from millrace import limits
from millrace.client.engine import CallbackEngine
from millrace.client.message import Message, publish_one, publish_rows, seqs_of
from millrace.core import validate
from millrace.core.answers import PublishResult
from millrace.core.commands import Publish
from millrace.core.model import GROUP_HEADER, Headers
from millrace.core.model import NewMessage as CheckedMessage
from millrace.errors import Refused, Retry
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.fault import (
    Fault,
    bad_value,
    fault_of,
    invalid_parameter,
    missing_parameter,
)
from millrace.server.aws.message_attributes import (
    DEDUP,
    SENDER,
    TRACE,
    TRACE_ATTRIBUTE,
    are_seen,
    attributes_digest,
    attributes_in,
    attributes_size,
    digest_of,
    see_id,
    see_text,
    trace_in,
    trace_of,
)
from millrace.server.aws.queue_info import QueueDirectory, QueueInfo
from millrace.server.http.response import Response
from millrace.server.sqs.faults import batch_too_long, failed_entry, see_entries
from millrace.server.sqs.queue_lookup import known_at, use_at
from millrace.server.sqs.schemas import (
    SendMessageBatchIn,
    SendMessageBatchOut,
    SendMessageIn,
    SendMessageOut,
    SentEntry,
    SqsFailedEntry,
    SqsMessageIn,
)
from millrace.server.sqs.service import SQS
from millrace.server.web.pending_request import PendingRequest

_NOT_HERE = "The request include parameter that is not valid for this queue type."
ANONYMOUS = "anonymous"


class SendableMessage(msgspec.Struct, frozen=True):
    """A validated message, ready to be published."""

    message: CheckedMessage
    delay: int | None
    dedup: str | None
    told: SqsMessageIn
    is_bare: bool = False
    """True if the message has only a body, so that the response contains neither attribute digests
    nor a sequence number.
    """


@lru_cache(maxsize=limits.SQS_SENDERS_KNOWN_MAX)
def _from(sender: str) -> Headers:
    """Return the header with the name of the sender; none for anonymous callers."""
    return validate.headers([(SENDER, sender.encode())] if sender != ANONYMOUS else None)


def sendable(
    known: QueueInfo,
    told: SqsMessageIn,
    body: bytes,
    sender: Headers,
    trace: bytes | None = None,
    *,
    is_seen: bool,
) -> SendableMessage:
    """Validate a message of a request and convert it for publishing.

    `body` is its body as bytes, `sender` the header with its sender.
    `trace` is the trace header of the request; that of the message takes precedence.
    `is_seen` is true if its text is known to be representable in XML.

    Raises:
        Fault: a field is missing or has an invalid value.
    """
    if not body:
        raise missing_parameter("MessageBody")
    if not is_seen:
        see_text(body)
    if trace is None and _is_bare(told) and not known.is_fifo and len(body) <= known.max_bytes:
        return SendableMessage(CheckedMessage(body, None, sender), None, None, told, is_bare=True)
    headers: list[tuple[str, bytes]] = []
    size = len(body)
    if told.message_attributes:
        headers = attributes_in(told.message_attributes)
        size += attributes_size(told.message_attributes)
    if size > known.max_bytes:
        raise invalid_parameter(
            "One or more parameters are invalid. Reason: Message must be shorter than "
            f"{known.max_bytes} bytes."
        )
    if told.message_system_attributes:
        trace = trace_in(told.message_system_attributes) or trace
    if trace is not None:
        headers.append((TRACE, trace))
    dedup = _turns(known, told, body, headers)
    delay = told.delay_seconds
    if delay is not None and not 0 <= delay <= limits.SQS_DELAY_SECONDS_MAX:
        raise bad_value(
            delay,
            "DelaySeconds",
            f"DelaySeconds must be >= 0 and <= {limits.SQS_DELAY_SECONDS_MAX}.",
        )
    if known.is_fifo:
        # In FIFO queues the delay of the queue applies to every message.
        delay = None
    # Without other headers only the sender's remains, which is validated already.
    pairs = validate.headers([*headers, *sender]) if headers else sender
    return SendableMessage(CheckedMessage(validate.body_of(body), None, pairs), delay, dedup, told)


def _is_bare(told: SqsMessageIn) -> bool:
    """Return whether a message has only a body."""
    return (
        told.message_group_id is None
        and told.delay_seconds is None
        and not told.message_attributes
        and not told.message_system_attributes
        and told.message_deduplication_id is None
    )


def _turns(
    known: QueueInfo, told: SqsMessageIn, body: bytes, headers: list[tuple[str, bytes]]
) -> str | None:
    """Append the headers of group and deduplication id; return the deduplication key of the
    message.
    """
    group, dedup = told.message_group_id, told.message_deduplication_id
    see_id(group, "MessageGroupId")
    if group is not None:
        headers.append((GROUP_HEADER, group.encode()))
    if not known.is_fifo:
        if dedup is not None:
            raise bad_value(dedup, "MessageDeduplicationId", _NOT_HERE)
        return None
    if group is None:
        raise missing_parameter("MessageGroupId")
    if told.delay_seconds:
        raise bad_value(told.delay_seconds, "DelaySeconds", _NOT_HERE)
    see_id(dedup, "MessageDeduplicationId")
    if dedup is None:
        if not known.spec.dedup_by_body:
            raise _no_dedup_id()
        dedup = sha256(body).hexdigest()
    headers.append((DEDUP, dedup.encode()))
    return f"{group}\n{dedup}" if known.dedup_by_group else dedup


Sent = tuple[str, str] | tuple[str, str, str | None, str | None, str | None]
"""The fields of `SendMessageOut`; omitted ones keep their defaults."""


def _sent(call: AwsCall[Any], known: QueueInfo, one: SendableMessage, seq: int) -> Sent:
    body, id_, told = one.message.body or b"", known.message_id(seq), one.told
    digest = digest_of(body)
    if seq:
        call.aws.digests.keep(known.queue.shards.first, seq, body, digest)
    if one.is_bare:
        return digest, id_
    attributes, system = told.message_attributes, told.message_system_attributes
    return (
        digest,
        id_,
        attributes_digest(attributes) if attributes else None,
        attributes_digest({TRACE_ATTRIBUTE: system[TRACE_ATTRIBUTE]}) if system else None,
        f"{seq:020d}" if known.is_fifo else None,
    )


def _is_fair_due(call: AwsCall[Any], known: QueueInfo, messages: Sequence[SqsMessageIn]) -> bool:
    """Return whether the queue has to switch to fair order first: a standard queue that gets its
    first messages with groups.
    """
    if all(one.message_group_id is None for one in messages):
        return False
    return needs_fair_order(call.aws.directory, known)


# --- One -----------------------------------------------------------------------------------------


def _ready_one(call: AwsCall[SendMessageIn], known: QueueInfo) -> SendableMessage:
    told = call.told
    sender = _from(call.caller.principal.name)
    body, trace = told.message_body.encode(), trace_of(call.ask.request.headers)
    return sendable(known, told, body, sender, trace, is_seen=_are_seen(call))


def _are_seen(call: AwsCall[Any]) -> bool:
    """Return whether all texts of a call are known to be representable in XML."""
    return call.is_json and are_seen(call.ask.request.body)


def _begin_send(call: AwsCall[SendMessageIn], engine: CallbackEngine) -> PendingRequest | None:
    known = known_at(call, call.told.queue_url, "publish")
    if known is None or _is_fair_due(call, known, [call.told]):
        return None
    one = _ready_one(call, known)
    command = publish_one(one.message, None, None, one.delay, one.dedup, None)
    under = _Sending(call.ask, engine, engine.submit(known.queue.shards.first, command))
    under.call, under.known, under.ready = call, known, one
    return under


class _Sending(PendingRequest):
    __slots__ = ("call", "known", "ready")

    call: AwsCall[SendMessageIn]
    known: QueueInfo
    ready: SendableMessage

    def read(self, answer: object) -> Response:
        assert isinstance(answer, PublishResult)
        seqs = seqs_of(answer)
        return self.call.answer(
            SendMessageOut(*_sent(self.call, self.known, self.ready, seqs[0] if seqs else 0))
        )


@SQS.action("SendMessage", SendMessageIn, SendMessageOut, begins=_begin_send)
async def send_message(call: AwsCall[SendMessageIn]) -> SendMessageOut:
    """Publish one message."""
    told = call.told

    async def use(known: QueueInfo) -> SendMessageOut:
        one = _ready_one(call, known)
        if _is_fair_due(call, known, [told]):
            await become_fair(call.aws.directory, known)
        seq = await known.queue.publish(
            one.message.body or b"", headers=one.message.headers, delay=one.delay, dedup=one.dedup
        )
        return SendMessageOut(*_sent(call, known, one, known.seq_of(seq)))

    return await use_at(call, told.queue_url, "publish", use)


# --- Several -------------------------------------------------------------------------------------


class SendBatch(NamedTuple):
    """A validated SendMessageBatch request, its entries in the order of the request."""

    ids: list[str]
    good: list[SendableMessage]
    failed: list[SqsFailedEntry]

    @property
    def command(self) -> Publish:
        """The command that publishes all valid messages at once."""
        if any(one.delay is not None or one.dedup is not None for one in self.good):
            return publish_rows(self.rows, None, None, None, None)
        return Publish(tuple(one.message for one in self.good), by_body=True)

    @property
    def rows(self) -> list[Message]:
        """The valid messages, for publishing through the client API."""
        return [
            Message(
                one.message.body,
                headers=one.message.headers,
                delay=one.delay,
                dedup=one.dedup,
            )
            for one in self.good
        ]


def _see_fifo_entries(known: QueueInfo, entries: Sequence[SqsMessageIn]) -> None:
    """Validate what every message of a batch to a FIFO queue needs.

    Raises:
        Fault: one entry has no group or no de-duplication id; SQS refuses the whole batch then.
    """
    for entry in entries:
        if entry.message_group_id is None:
            raise invalid_parameter(missing_parameter("MessageGroupId").message)
        if entry.message_deduplication_id is None and not known.spec.dedup_by_body:
            raise _no_dedup_id()


def _no_dedup_id() -> Fault:
    return invalid_parameter(
        "The queue should either have ContentBasedDeduplication enabled or "
        "MessageDeduplicationId provided explicitly"
    )


def _batch(call: AwsCall[SendMessageBatchIn], known: QueueInfo) -> SendBatch:
    told = call.told
    see_entries(
        [entry.id for entry in told.entries], "SendMessageBatchRequestEntry", known.bounds.batch
    )
    bodies = [entry.message_body.encode() for entry in told.entries]
    size = sum(map(len, bodies))
    for entry in told.entries:
        if entry.message_attributes:
            size += attributes_size(entry.message_attributes)
    if size > known.bounds.message_bytes:
        raise batch_too_long(known.bounds.message_bytes, size)
    ids: list[str] = []
    good: list[SendableMessage] = []
    failed: list[SqsFailedEntry] = []
    if known.is_fifo:
        _see_fifo_entries(known, told.entries)
    sender, is_seen = _from(call.caller.principal.name), _are_seen(call)
    trace = trace_of(call.ask.request.headers)
    for entry, body in zip(told.entries, bodies, strict=True):
        try:
            one = sendable(known, entry, body, sender, trace, is_seen=is_seen)
        except Refused as error:
            failed.append(failed_entry(entry.id, fault_of(error)))
            continue
        ids.append(entry.id)
        good.append(one)
    return SendBatch(ids, good, failed)


def _sent_all(
    call: AwsCall[Any], known: QueueInfo, batch: SendBatch, seqs: list[int]
) -> SendMessageBatchOut:
    places = seqs or [0] * len(batch.good)
    sent = [
        SentEntry(*_sent(call, known, one, seq), id=one_id)
        for one_id, one, seq in zip(batch.ids, batch.good, places, strict=True)
    ]
    return SendMessageBatchOut(sent, batch.failed)


def _begin_batch(
    call: AwsCall[SendMessageBatchIn], engine: CallbackEngine
) -> PendingRequest | None:
    known = known_at(call, call.told.queue_url, "publish")
    if known is None or _is_fair_due(call, known, call.told.entries):
        return None
    batch = _batch(call, known)
    if not batch.good:
        return None
    under = _SendingBatch(call.ask, engine, engine.submit(known.queue.shards.first, batch.command))
    under.call, under.known, under.batch = call, known, batch
    return under


class _SendingBatch(PendingRequest):
    __slots__ = ("batch", "call", "known")

    call: AwsCall[SendMessageBatchIn]
    known: QueueInfo
    batch: SendBatch

    def read(self, answer: object) -> Response:
        assert isinstance(answer, PublishResult)
        seqs = list(seqs_of(answer))
        return self.call.answer(_sent_all(self.call, self.known, self.batch, seqs))


@SQS.action("SendMessageBatch", SendMessageBatchIn, SendMessageBatchOut, begins=_begin_batch)
async def send_message_batch(call: AwsCall[SendMessageBatchIn]) -> SendMessageBatchOut:
    """Publish up to ten messages; each invalid one gets its own error."""
    told = call.told

    async def use(known: QueueInfo) -> SendMessageBatchOut:
        batch = _batch(call, known)
        if _is_fair_due(call, known, told.entries):
            await become_fair(call.aws.directory, known)
        names = await known.queue.publish_many(batch.rows) if batch.good else []
        return _sent_all(call, known, batch, [known.seq_of(name) for name in names])

    return await use_at(call, told.queue_url, "publish", use)


# --- Fair order ----------------------------------------------------------------------------------

# A standard queue is switched to fair order with its first message that has a group (ADR 0058). If
# its backlog is too large for an immediate switch, or it has delayed messages, the switch is tried
# again later. Until then groups have no effect; senders never get an error for it.


def needs_fair_order(directory: QueueDirectory, known: QueueInfo) -> bool:
    """Return whether a queue has to be switched before a message with a group is published."""
    spec = known.spec
    if known.is_fifo or spec.order != "none" or spec.keyed or spec.retention != "work":
        return False
    queue = known.queue
    return not spec.is_partitioned and directory.is_fair_due(queue.space, queue.name)


async def become_fair(directory: QueueDirectory, known: QueueInfo) -> None:
    """Switch a queue to fair order, unless that is not possible now."""
    queue = known.queue
    directory.tried_fair(queue.space, queue.name)
    try:
        await queue.configure(order="fair")
    except (Refused, Retry):
        return
    directory.forget(queue.space, queue.name)
