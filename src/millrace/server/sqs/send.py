"""Sending messages.

Rule 1: the valid messages of a batch are published at once; each of the others is told why it was
not.
Rule 2: a batch to a FIFO queue is refused whole if one of its messages lacks a group or an id.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from millrace import limits
from millrace.client.message import Message, publish_one, publish_rows, seqs_of
from millrace.client.submitting import Submits
from millrace.core import check
from millrace.core.answers import Published
from millrace.core.commands import Publish
from millrace.core.group_cells import GROUP_HEADER
from millrace.core.model import Headers
from millrace.core.model import Message as CheckedMessage
from millrace.errors import Refused
from millrace.server.aws.calls import Call
from millrace.server.aws.digests import digest_of
from millrace.server.aws.fault import (
    Fault,
    bad_value,
    fault_of,
    invalid_parameter,
    missing_parameter,
)
from millrace.server.aws.form import NOT_IN_XML
from millrace.server.aws.known import Known
from millrace.server.http.response import Response
from millrace.server.proxy_headers import TRACE_ID
from millrace.server.rest.under import Under
from millrace.server.sqs.batch import failed_entry, see_entries
from millrace.server.sqs.fair import become_fair, is_due
from millrace.server.sqs.faults import batch_too_long
from millrace.server.sqs.place import known_at, use_at
from millrace.server.sqs.service import SQS
from millrace.server.sqs.shapes import (
    FailedEntry,
    MessageIn,
    SendMessageBatchIn,
    SendMessageBatchOut,
    SendMessageIn,
    SendMessageOut,
    SentEntry,
)
from millrace.server.sqs.values import (
    DEDUP,
    SENDER,
    TRACE,
    TRACE_ATTRIBUTE,
    are_seen,
    attributes_digest,
    attributes_in,
    attributes_size,
    see_id,
    see_text,
    trace_in,
)

_NOT_HERE = "The request include parameter that is not valid for this queue type."
ANONYMOUS = "anonymous"


class Ready(msgspec.Struct, frozen=True):
    """A message that may be published."""

    message: CheckedMessage
    delay: int | None
    dedup: str | None
    told: MessageIn
    is_bare: bool = False
    """It has nothing but its body, and is answered nothing of anything else."""


@lru_cache(maxsize=limits.SQS_SENDERS_KNOWN_MAX)
def _from(sender: str) -> Headers:
    """The header that says who sent a message."""
    return check.headers([(SENDER, sender.encode())] if sender != ANONYMOUS else None)


def ready(
    known: Known,
    told: MessageIn,
    body: bytes,
    sender: Headers,
    trace: bytes | None = None,
    *,
    is_seen: bool,
) -> Ready:
    """The message that a call sends, with its body as bytes, and the header of who sends it.

    `trace`: of the request's header; that of the message itself comes first.
    `is_seen`: it is known that XML can hold its text.

    Raises:
        Fault: something of it cannot be so.
    """
    if not body:
        raise missing_parameter("MessageBody")
    if not is_seen:
        see_text(body)
    if trace is None and _is_bare(told) and not known.is_fifo and len(body) <= known.max_bytes:
        return Ready(CheckedMessage(body, None, sender), None, None, told, is_bare=True)
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
        # Of FIFO queues, all messages wait as long as the queue says.
        delay = None
    # Without others there is the sender's, which was checked.
    pairs = check.headers([*headers, *sender]) if headers else sender
    return Ready(CheckedMessage(check.body_of(body), None, pairs), delay, dedup, told)


def _is_bare(told: MessageIn) -> bool:
    """Whether a message has nothing but its body."""
    return (
        told.message_group_id is None
        and told.delay_seconds is None
        and not told.message_attributes
        and not told.message_system_attributes
        and told.message_deduplication_id is None
    )


def _turns(
    known: Known, told: MessageIn, body: bytes, headers: list[tuple[str, bytes]]
) -> str | None:
    """Adds the headers of the message's group and id; returns what it is de-duplicated by."""
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
"""The fields of `SendMessageOut`; those that are not there say nothing."""


def _sent(call: Call[Any], known: Known, one: Ready, seq: int) -> Sent:
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


def _is_fair_due(call: Call[Any], known: Known, messages: Sequence[MessageIn]) -> bool:
    """Whether these are the first with groups that a standard queue is sent."""
    if all(one.message_group_id is None for one in messages):
        return False
    return is_due(call.aws.directory, known)


# --- One -----------------------------------------------------------------------------------------


def _ready_one(call: Call[SendMessageIn], known: Known) -> Ready:
    told = call.told
    sender = _from(call.caller.principal.name)
    body, trace = told.message_body.encode(), _trace_of(call)
    return ready(known, told, body, sender, trace, is_seen=_are_seen(call))


def _trace_of(call: Call[Any]) -> bytes | None:
    """Return the trace header of the request, which messages keep as AWSTraceHeader."""
    text = call.ask.request.headers.get(TRACE_ID)
    if not text or len(text) > limits.SQS_TRACE_CHARS_MAX or NOT_IN_XML.search(text) is not None:
        return None
    return text.encode()


def _are_seen(call: Call[Any]) -> bool:
    """Whether it is known of all texts of a call that XML can hold them."""
    return call.is_json and are_seen(call.ask.request.body)


def _begin_send(call: Call[SendMessageIn], engine: Submits) -> Under | None:
    known = known_at(call, call.told.queue_url, "publish")
    if known is None or _is_fair_due(call, known, [call.told]):
        return None
    one = _ready_one(call, known)
    command = publish_one(one.message, None, None, one.delay, one.dedup, None)
    under = _Sending(call.ask, engine, engine.submit(known.queue.shards.first, command))
    under.call, under.known, under.ready = call, known, one
    return under


class _Sending(Under):
    __slots__ = ("call", "known", "ready")

    call: Call[SendMessageIn]
    known: Known
    ready: Ready

    def read(self, answer: object) -> Response:
        assert isinstance(answer, Published)
        seqs = seqs_of(answer)
        return self.call.answer(
            SendMessageOut(*_sent(self.call, self.known, self.ready, seqs[0] if seqs else 0))
        )


@SQS.action("SendMessage", SendMessageIn, SendMessageOut, begins=_begin_send)
async def send_message(call: Call[SendMessageIn]) -> SendMessageOut:
    """Publish a message."""
    told = call.told

    async def use(known: Known) -> SendMessageOut:
        one = _ready_one(call, known)
        if _is_fair_due(call, known, [told]):
            await become_fair(call.aws.directory, known)
        seq = await known.queue.publish(
            one.message.body or b"", headers=one.message.headers, delay=one.delay, dedup=one.dedup
        )
        return SendMessageOut(*_sent(call, known, one, known.seq_of(seq)))

    return await use_at(call, told.queue_url, "publish", use)


# --- Several -------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """The messages of a batch, in its order."""

    ids: list[str]
    good: list[Ready]
    failed: list[FailedEntry]

    @property
    def command(self) -> Publish:
        """Publishes them at once; each was checked before."""
        if any(one.delay is not None or one.dedup is not None for one in self.good):
            return publish_rows(self.rows, None, None, None, None)
        return Publish(tuple(one.message for one in self.good), by_body=True)

    @property
    def rows(self) -> list[Message]:
        """As they are published."""
        return [
            Message(
                one.message.body,
                headers=one.message.headers,
                delay=one.delay,
                dedup=one.dedup,
            )
            for one in self.good
        ]


def _see_fifo_entries(known: Known, entries: Sequence[MessageIn]) -> None:
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


def _batch(call: Call[SendMessageBatchIn], known: Known) -> Batch:
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
    good: list[Ready] = []
    failed: list[FailedEntry] = []
    if known.is_fifo:
        _see_fifo_entries(known, told.entries)
    sender, is_seen = _from(call.caller.principal.name), _are_seen(call)
    trace = _trace_of(call)
    for entry, body in zip(told.entries, bodies, strict=True):
        try:
            one = ready(known, entry, body, sender, trace, is_seen=is_seen)
        except Refused as error:
            failed.append(failed_entry(entry.id, fault_of(error)))
            continue
        ids.append(entry.id)
        good.append(one)
    return Batch(ids, good, failed)


def _sent_all(call: Call[Any], known: Known, batch: Batch, seqs: list[int]) -> SendMessageBatchOut:
    places = seqs or [0] * len(batch.good)
    sent = [
        SentEntry(*_sent(call, known, one, seq), id=one_id)
        for one_id, one, seq in zip(batch.ids, batch.good, places, strict=True)
    ]
    return SendMessageBatchOut(sent, batch.failed)


def _begin_batch(call: Call[SendMessageBatchIn], engine: Submits) -> Under | None:
    known = known_at(call, call.told.queue_url, "publish")
    if known is None or _is_fair_due(call, known, call.told.entries):
        return None
    batch = _batch(call, known)
    if not batch.good:
        return None
    under = _SendingBatch(call.ask, engine, engine.submit(known.queue.shards.first, batch.command))
    under.call, under.known, under.batch = call, known, batch
    return under


class _SendingBatch(Under):
    __slots__ = ("batch", "call", "known")

    call: Call[SendMessageBatchIn]
    known: Known
    batch: Batch

    def read(self, answer: object) -> Response:
        assert isinstance(answer, Published)
        seqs = list(seqs_of(answer))
        return self.call.answer(_sent_all(self.call, self.known, self.batch, seqs))


@SQS.action("SendMessageBatch", SendMessageBatchIn, SendMessageBatchOut, begins=_begin_batch)
async def send_message_batch(call: Call[SendMessageBatchIn]) -> SendMessageBatchOut:
    """Publish up to ten messages."""
    told = call.told

    async def use(known: Known) -> SendMessageBatchOut:
        batch = _batch(call, known)
        if _is_fair_due(call, known, told.entries):
            await become_fair(call.aws.directory, known)
        names = await known.queue.publish_many(batch.rows) if batch.good else []
        return _sent_all(call, known, batch, [known.seq_of(name) for name in names])

    return await use_at(call, told.queue_url, "publish", use)
