"""The SQS action ReceiveMessage: parsing of requests, rendering of messages, long polling."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from millrace import limits
from millrace.client.engine import CallbackEngine
from millrace.client.lease import Lease, first_ms_of
from millrace.client.leasing import lease_command
from millrace.client.message import sort_by_turn
from millrace.client.queue import lease_with_result, read_leased
from millrace.core.answers import Leased
from millrace.core.commands import LeaseMessages as Command
from millrace.core.model import GROUP_HEADER, Headers, Row
from millrace.core.transfer.dead_letter import PREFIX as DEAD_PREFIX
from millrace.core.transfer.dead_letter import first_ms
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.envelope_delivery import (
    envelope_of,
    is_raw,
    subscription_of,
    topic_of,
)
from millrace.server.aws.fault import Fault, bad_value
from millrace.server.aws.message_attributes import (
    DEDUP,
    SENDER,
    TRACE,
    TRACE_ATTRIBUTE,
    attributes_digest,
    attributes_out,
    chosen,
    see_id,
)
from millrace.server.aws.names import arn_of, home_of
from millrace.server.aws.query_protocol import NOT_IN_XML
from millrace.server.aws.queue_info import QueueInfo
from millrace.server.aws.topic_headers import TOPIC
from millrace.server.http.listener_context import Answer
from millrace.server.http.response import Response
from millrace.server.sqs.dead_letter_ids import learn, message_id, unknown_origins
from millrace.server.sqs.faults import over_limit
from millrace.server.sqs.large_responses import LargeBodies, are_large
from millrace.server.sqs.queue_lookup import known_at, use_at
from millrace.server.sqs.schemas import ReceiveMessageIn, ReceiveMessageOut, SqsMessageOut
from millrace.server.sqs.service import SQS
from millrace.server.web.pending_request import LongPoll, PendingRequest

SYSTEM = frozenset(
    {
        "All",
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "SequenceNumber",
        "MessageDeduplicationId",
        "MessageGroupId",
        TRACE_ATTRIBUTE,
        "DeadLetterQueueSourceArn",
    }
)
_TRACED = ((TRACE_ATTRIBUTE, TRACE),)
_HEADERS = (("MessageGroupId", GROUP_HEADER), ("MessageDeduplicationId", DEDUP), *_TRACED)
_NOTHING = ReceiveMessageOut()


class ReceiveParams(NamedTuple):
    """The parsed parameters of a ReceiveMessage request."""

    command: Command
    wait_ms: int
    system: Collection[str]


def _wish(known: QueueInfo, told: ReceiveMessageIn) -> ReceiveParams:
    """Parse and validate a ReceiveMessage request.

    Raises:
        Fault: a parameter is out of range or not valid for this queue.
    """
    bounds = known.bounds
    count = told.max_number_of_messages
    if count is None:
        count = 1
    elif not 1 <= count <= bounds.batch:
        why = f"Must be between 1 and {bounds.batch}, if provided."
        raise bad_value(count, "MaxNumberOfMessages", why)
    most, usual = bounds.visibility_seconds, known.visibility_seconds
    seconds = _within("VisibilityTimeout", told.visibility_timeout, 0, most, usual)
    most, usual = limits.SQS_WAIT_SECONDS_MAX, known.wait_seconds
    wait = _within("WaitTimeSeconds", told.wait_time_seconds, 0, most, usual)
    attempt = told.receive_request_attempt_id
    if attempt is not None and not known.is_fifo:
        raise bad_value(
            attempt[:200],
            "ReceiveRequestAttemptId",
            "The request include parameter that is not valid for this queue type.",
        )
    see_id(attempt, "ReceiveRequestAttemptId")
    system = [*told.attribute_names, *told.message_system_attribute_names]
    for name in system:
        if name not in SYSTEM:
            raise Fault("InvalidAttributeName", f"Unknown Attribute {name}.")
    # With a visibility timeout of 0 no lease would be made: one of a millisecond has expired by the
    # time the response arrives.
    command, wait_ms = lease_command(count, seconds or 0.001, wait, attempt, together=known.is_fifo)
    return ReceiveParams(command, wait_ms, system)


def _within(name: str, value: int | None, least: int, most: int, usual: int) -> int:
    """Return a number within its bounds, or the default if the request omits it.

    Raises:
        Fault: the number is out of bounds.
    """
    if value is None:
        return usual
    if not least <= value <= most:
        raise bad_value(value, name, f"Must be >= {least} and <= {most}, if provided.")
    return value


class ReceivedMessage(NamedTuple):
    """A received message, before it is rendered."""

    seq: int
    time_ms: int
    headers: Headers
    body: bytes
    receipt: str
    deliveries: int
    first_ms: int = 0
    """Time of the first receive in milliseconds; 0 if unknown."""


def _out(
    call: AwsCall[ReceiveMessageIn],
    known: QueueInfo,
    given: ReceivedMessage,
    system: Collection[str],
) -> SqsMessageOut:
    body, headers = delivered_form(call, known, given)
    text, body = text_of(body, is_json=call.is_json)
    digest = call.aws.digests.take(known.queue.shards.first, given.seq, body)
    return _with_text(call, known, given, system, headers, text, digest)


async def large_out(
    call: AwsCall[Any],
    known: QueueInfo,
    given: Sequence[ReceivedMessage],
    out: Callable[[ReceivedMessage, Headers, str, str], SqsMessageOut],
    answer: Callable[[list[SqsMessageOut]], Response],
    *,
    is_json: bool,
) -> Response:
    """Return a response with messages whose bodies are large together, rendered in steps.

    `out` makes a message of its headers, its text and the MD5 of the text; `answer` makes the
    response of all messages.
    """
    bodies = LargeBodies(is_json=is_json, fits_xml=not call.is_json)
    messages: list[SqsMessageOut] = []
    for one in given:
        body, headers = delivered_form(call, known, one)
        mark, digest = await bodies.add(body)
        messages.append(out(one, headers, mark, digest))
    return bodies.into(answer(messages))


def _with_text(
    call: AwsCall[ReceiveMessageIn],
    known: QueueInfo,
    given: ReceivedMessage,
    system: Collection[str],
    headers: Headers,
    text: str,
    body_digest: str,
) -> SqsMessageOut:
    attributes = {}
    digest: str | None = None
    names = call.told.message_attribute_names
    if headers and names:
        attributes = chosen(attributes_out(headers), names)
        digest = attributes_digest(attributes) if attributes else None
    return SqsMessageOut(
        message_id(call.aws.directory, known, given.seq, given.headers),
        given.receipt,
        body_digest,
        text,
        system_of(call, known, given, system) if system else {},
        digest,
        attributes,
    )


def _is_bare(row: Row) -> bool:
    """Return whether a message has no headers except that of its sender."""
    headers = row.headers
    return not headers or (len(headers) == 1 and headers[0][0] == SENDER)


def _bare_out(
    call: AwsCall[ReceiveMessageIn], known: QueueInfo, row: Row, receipt: str
) -> SqsMessageOut:
    """Render a message without headers for a request that names no attributes; otherwise like
    `_out`.
    """
    text, body = text_of(row.body or b"", is_json=call.is_json)
    digest = call.aws.digests.take(known.queue.shards.first, row.seq, body)
    return SqsMessageOut(known.message_id(row.seq), receipt, digest, text)


def delivered_form(
    call: AwsCall[Any], known: QueueInfo, given: ReceivedMessage
) -> tuple[bytes, Headers]:
    """Return body and headers as the client receives them.

    A message of a topic is wrapped in the SNS envelope, its attributes included, unless the
    subscription of the queue has raw delivery.
    """
    headers = given.headers
    topic = topic_of(headers) if headers else None
    if topic is None or is_raw(known.notes, topic):
        return given.body, headers
    text = envelope_of(
        given.body,
        headers,
        attributes_out(headers),
        given.time_ms,
        subscription_of(known.notes, topic),
        call.aws.sns.around(call.base),
        f"{given.seq:020d}" if topic.endswith(".fifo") else None,
    )
    return text.encode(), ()


def text_of(body: bytes, *, is_json: bool) -> tuple[str, bytes]:
    """Return a body as text, and the bytes of that text, whose MD5 clients verify.

    Bodies that are not UTF-8, or contain characters that XML cannot represent, were published
    through another API: such characters are replaced by U+FFFD.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = body.decode("utf-8", "replace")
        body = text.encode()
    if not is_json and NOT_IN_XML.search(text) is not None:
        text = NOT_IN_XML.sub("\ufffd", text)
        body = text.encode()
    return text, body


def system_of(
    call: AwsCall[Any], known: QueueInfo, given: ReceivedMessage, names: Collection[str]
) -> dict[str, str]:
    """Return the requested system attributes of a message."""
    headers = dict(given.headers)
    found = {
        "SenderId": headers.get(SENDER, call.caller.home.account.encode()).decode(
            "utf-8", "replace"
        ),
        "SentTimestamp": str(given.time_ms),
        "ApproximateReceiveCount": str(_receives(headers, given.deliveries)),
        "ApproximateFirstReceiveTimestamp": str(given.first_ms or given.time_ms),
    }
    # A message of a FIFO topic has neither group nor deduplication id in a standard queue.
    is_unordered = not known.is_fifo and headers.get(TOPIC, b"").endswith(b".fifo")
    for name, header in _TRACED if is_unordered else _HEADERS:
        if header in headers:
            found[name] = headers[header].decode("utf-8", "replace")
    if known.is_fifo:
        found["SequenceNumber"] = f"{given.seq:020d}"
    source = headers.get(f"{DEAD_PREFIX}queue")
    if source is not None:
        if not known.is_fifo:
            found["SentTimestamp"] = str(first_ms(given.headers, given.time_ms))
        space, _, name = source.decode("utf-8", "replace").partition("/")
        home = home_of(space, call.aws.usual)
        if home is not None:
            found["DeadLetterQueueSourceArn"] = arn_of("sqs", home, name)
    return found if "All" in names else {name: found[name] for name in names if name in found}


def _receives(headers: Mapping[str, bytes], deliveries: int) -> int:
    """Return the receive count of a message; for a dead letter, receives in its source queue
    included.
    """
    before = headers.get(f"{DEAD_PREFIX}deliveries", b"0")
    # Any publisher can set this header, so its value is validated.
    return deliveries + int(before) if before.isdigit() and len(before) < 10 else deliveries


def too_many(known: QueueInfo) -> Fault:
    """Return the error that the queue has reached its limit of messages in flight."""
    return over_limit(
        f"Too many messages are in flight: up to {known.spec.max_in_flight} of a queue may be."
    )


def _begin(call: AwsCall[ReceiveMessageIn], engine: CallbackEngine) -> PendingRequest | None:
    ask = call.ask
    known = known_at(call, call.told.queue_url, "work")
    if known is None or ask.server.quotas.of(call.caller.principal).in_flight:
        return None
    wish = _wish(known, call.told)
    if wish.wait_ms and ask.server.stopping.is_set:
        return None
    asked = engine.submit(known.queue.shards.first, wish.command, wish.wait_ms)
    ask.waits = wish.wait_ms > 0
    under = (_Polling if wish.wait_ms else _Receiving)(ask, engine, asked)
    under.call, under.known, under.wish = call, known, wish
    return under


class _Receiving(PendingRequest):
    __slots__ = ("call", "known", "wish")

    call: AwsCall[ReceiveMessageIn]
    known: QueueInfo
    wish: ReceiveParams

    def read(self, answer: object) -> Answer:
        assert isinstance(answer, Leased)
        engine, seqs = self.engine, answer.seqs
        if not seqs:
            if answer.bounded and not self.known.is_fifo and not self.wish.wait_ms:
                raise too_many(self.known)
            return self.none()
        shard = self.known.queue.shards.first
        rows = engine.rows_in_memory(shard, seqs, limits.SQS_RECEIVE_BYTES_MAX)
        if rows is None or len(rows) < len(seqs):
            return self._fetched(answer)
        rows = sort_by_turn(rows, answer.turns)
        proved = engine.proved(shard, answer.lease)
        receipts = engine.sealed(shard, answer.lease, proved, [row.seq for row in rows])
        if (
            not self.wish.system
            and all(map(_is_bare, rows))
            and not are_large(row.body for row in rows)
        ):
            return self._answer(
                [
                    _bare_out(self.call, self.known, row, receipt)
                    for row, receipt in zip(rows, receipts, strict=True)
                ]
            )
        made_ms = answer.deadline_ms - self.wish.command.lease_ms
        given = []
        for row, receipt in zip(rows, receipts, strict=True):
            deliveries = answer.counts.get(row.seq, (1, 0))[0]
            first_ms = made_ms if deliveries == 1 else answer.firsts.get(row.seq, 0)
            given.append(_given_row(row, receipt, deliveries, first_ms))
        if unknown_origins(self.call.aws.directory, (one.headers for one in given)):
            return self._learned(given)
        if are_large(one.body for one in given):
            return self._large(given)
        return self._told(given)

    async def _fetched(self, leased: Leased) -> Response:
        most = limits.SQS_RECEIVE_BYTES_MAX
        found = await read_leased(self.known.queue, self.wish.command, leased, most)
        lease_ms = self.wish.command.lease_ms
        return await self._learned([_given_lease(one, lease_ms) for one in found])

    async def _learned(self, given: list[ReceivedMessage]) -> Response:
        await _learn(self.call, given)
        if are_large(one.body for one in given):
            return await self._large(given)
        return self._told(given)

    async def _large(self, given: list[ReceivedMessage]) -> Response:
        self._note(len(given))
        return await _large(self.call, self.known, given, self.wish.system)

    def none(self) -> Response:
        self._note(0)
        return self.call.answer(_NOTHING)

    def _told(self, given: list[ReceivedMessage]) -> Response:
        system = self.wish.system
        return self._answer([_out(self.call, self.known, one, system) for one in given])

    def _answer(self, found: list[SqsMessageOut]) -> Response:
        self._note(len(found))
        return self.call.answer(ReceiveMessageOut(found))

    def _note(self, count: int) -> None:
        queue = self.known.queue
        self.ask.server.handed.note(queue.space, queue.name, self.wish.command.count, count)


class _Polling(_Receiving, LongPoll):
    __slots__ = ()


def _given_row(row: Row, receipt: str, deliveries: int, first_ms: int) -> ReceivedMessage:
    return ReceivedMessage(
        row.seq, row.time_ms, row.headers, row.body or b"", receipt, deliveries, first_ms
    )


def _given_lease(one: Lease, lease_ms: int) -> ReceivedMessage:
    first_ms = one.deadline_ms - lease_ms if one.deliveries == 1 else first_ms_of(one)
    return ReceivedMessage(
        one.seq,
        one.time_ms,
        one.headers,
        one.body or b"",
        one.receipt,
        one.deliveries,
        first_ms,
    )


async def _large(
    call: AwsCall[ReceiveMessageIn],
    known: QueueInfo,
    given: list[ReceivedMessage],
    system: Collection[str],
) -> Response:
    return await large_out(
        call,
        known,
        given,
        lambda one, headers, text, digest: _with_text(
            call, known, one, system, headers, text, digest
        ),
        lambda messages: call.answer(ReceiveMessageOut(messages)),
        is_json=call.is_json,
    )


async def _learn(call: AwsCall[ReceiveMessageIn], given: list[ReceivedMessage]) -> None:
    """Load metadata of the source queues of dead letters, which their message ids depend on."""
    directory = call.aws.directory
    await learn(directory, unknown_origins(directory, (one.headers for one in given)))


async def _is_bounded(known: QueueInfo) -> bool:
    """Return whether a receive was empty because the queue has reached `max_in_flight`."""
    most = known.spec.max_in_flight
    if not most or known.is_fifo:
        return False
    return (await known.queue.holders()).held_by_workers >= most


@SQS.action("ReceiveMessage", ReceiveMessageIn, ReceiveMessageOut, begins=_begin)
async def receive_message(call: AwsCall[ReceiveMessageIn]) -> ReceiveMessageOut | Response:
    """Receive up to ten messages: lease them for the visibility timeout."""
    ask, told, principal = call.ask, call.told, call.caller.principal

    async def use(known: QueueInfo) -> ReceiveMessageOut | Response:
        wish = _wish(known, told)
        command = wish.command
        holding = ask.server.holding
        reserved = await holding.reserve(principal, "in_flight", command.count)

        async def lease() -> list[Lease]:
            bounded = msgspec.structs.replace(command, count=reserved.count)
            most = limits.SQS_RECEIVE_BYTES_MAX
            return (await lease_with_result(known.queue, bounded, wish.wait_ms, most)).leases

        try:
            found = await (ask.until(lease) if wish.wait_ms else lease()) or []
            if found:
                holding.keep(reserved, (one.receipt for one in found), found[0].deadline_ms)
        finally:
            reserved.cancel()
        if not found and not wish.wait_ms and await _is_bounded(known):
            raise too_many(known)
        ask.server.handed.note(known.queue.space, known.queue.name, command.count, len(found))
        given = [_given_lease(one, command.lease_ms) for one in found]
        await _learn(call, given)
        if are_large(one.body for one in given):
            return await _large(call, known, given, wish.system)
        return ReceiveMessageOut([_out(call, known, one, wish.system) for one in given])

    return await use_at(call, told.queue_url, "work", use)
