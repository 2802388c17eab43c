"""Returns the messages of a queue without receiving them, for tests and debugging.

The path and the responses are those of common SQS emulators: `/_aws/sqs/messages`, answered like a
ReceiveMessage in XML, or in JSON if the client accepts that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from millrace import limits
from millrace.core.answers import Explanation
from millrace.core.model import Headers, Row
from millrace.errors import MillraceError
from millrace.server.aws.actions import AwsCall, prove
from millrace.server.aws.api_protocol import AwsCaller
from millrace.server.aws.fault import bad_value, fault_of, missing_parameter
from millrace.server.aws.message_attributes import attributes_digest, attributes_out, digest_of
from millrace.server.aws.query_protocol import read_fields
from millrace.server.aws.queue_info import QueueInfo
from millrace.server.http.response import Response
from millrace.server.sqs.dead_letter_ids import learn, message_id, unknown_origins
from millrace.server.sqs.large_responses import are_large
from millrace.server.sqs.queue_lookup import use_at
from millrace.server.sqs.receive import (
    ReceivedMessage,
    delivered_form,
    large_out,
    system_of,
    text_of,
)
from millrace.server.sqs.schemas import ReceiveMessageOut, SqsMessageOut
from millrace.server.sqs.service import SQS
from millrace.server.web.route import RequestContext

_RECEIPT = "SQS/BACKDOOR/ACCESS"
"""Stands in place of a receipt: nothing was leased."""

_VISIBLE = frozenset({"ready", "returned", "blocked", "limited"})


async def peek(ask: RequestContext) -> Response:
    """Return the messages of a queue, on request leased and delayed ones too."""
    caller = ask.request.caller
    assert isinstance(caller, AwsCaller)
    try:
        prove(ask, caller)
        call = AwsCall(
            ask, caller, SQS.actions["ReceiveMessage"], ReceiveMessageOut(), is_json=False
        )
        return await _peek(call)
    except MillraceError as error:
        raise fault_of(error) from error


async def _peek(call: AwsCall[ReceiveMessageOut]) -> Response:
    request, params = call.ask.request, call.ask.params
    asked = read_fields(request.query) | read_fields(bytes(request.body).decode("latin-1"))
    url = asked.get("QueueUrl", "")
    if "queue" in params:
        url = f"/queue/{params['region']}/{params['account']}/{params['queue']}"
    if not url:
        raise missing_parameter("QueueUrl")
    states = set(_VISIBLE)
    for name, state in (("ShowInvisible", "leased"), ("ShowDelayed", "delayed")):
        if _flag(asked, name):
            states.add(state)

    is_plain = "application/json" in request.headers.get("accept", "")

    async def use(known: QueueInfo) -> list[SqsMessageOut] | Response:
        shown = await _shown(known, states)
        directory = call.aws.directory
        await learn(directory, unknown_origins(directory, (row.headers for row, _ in shown)))
        if are_large(row.body for row, _ in shown):
            return await _large(call, known, shown, is_plain=is_plain)
        return [_out(call, known, row, about) for row, about in shown]

    messages = await use_at(call, url, "read", use)
    if isinstance(messages, Response):
        return messages
    return _answer(call, messages, is_plain=is_plain)


def _answer(
    call: AwsCall[ReceiveMessageOut], messages: list[SqsMessageOut], *, is_plain: bool
) -> Response:
    if is_plain:
        told = {"Message": [_plain(one) for one in messages]}
        body = {"ReceiveMessageResponse": {"ReceiveMessageResult": told}}
        return Response(200, msgspec.json.encode(body))
    return call.answer(ReceiveMessageOut(messages))


def _flag(asked: Mapping[str, str], name: str) -> bool:
    """Return the value of a boolean parameter.

    Raises:
        Fault: it is neither `true` nor `false`.
    """
    text = asked.get(name, "false")
    if text.lower() not in ("true", "false"):
        raise bad_value(text[:100], name, "Must be true or false.")
    return text.lower() == "true"


async def _shown(known: QueueInfo, states: Collection[str]) -> list[tuple[Row, Explanation]]:
    """Return the first messages in one of these states, skipping others up to a bound of rows and
    bytes.
    """
    found: list[tuple[Row, Explanation]] = []
    looked, after, size, read = 0, 0, 0, 0
    while looked < limits.SQS_PEEK_LOOKED_MAX and read < limits.SQS_PEEK_READ_BYTES_MAX:
        rows = await known.queue.peek(limits.SQS_PEEK_MAX, after=after)
        if not rows:
            break
        for row in rows:
            read += row.size()
            about = await known.queue.explain(row.seq)
            if about.state not in states:
                continue
            size += row.size()
            if found and size > limits.SQS_RECEIVE_BYTES_MAX:
                return found
            found.append((row, about))
            if len(found) == limits.SQS_PEEK_MAX:
                return found
        looked, after = looked + len(rows), rows[-1].seq
    return found


def _given(row: Row, about: Explanation) -> ReceivedMessage:
    return ReceivedMessage(
        row.seq,
        row.time_ms,
        row.headers,
        row.body or b"",
        _RECEIPT,
        about.deliveries,
        about.first_ms,
    )


async def _large(
    call: AwsCall[ReceiveMessageOut],
    known: QueueInfo,
    shown: list[tuple[Row, Explanation]],
    *,
    is_plain: bool,
) -> Response:
    abouts = {row.seq: about for row, about in shown}
    return await large_out(
        call,
        known,
        [_given(row, about) for row, about in shown],
        lambda one, headers, text, digest: _with_text(
            call, known, one, abouts[one.seq], headers, text, digest
        ),
        lambda messages: _answer(call, messages, is_plain=is_plain),
        is_json=is_plain,
    )


def _out(
    call: AwsCall[ReceiveMessageOut], known: QueueInfo, row: Row, about: Explanation
) -> SqsMessageOut:
    given = _given(row, about)
    body, headers = delivered_form(call, known, given)
    text, body = text_of(body, is_json=call.is_json)
    return _with_text(call, known, given, about, headers, text, digest_of(body))


def _with_text(
    call: AwsCall[ReceiveMessageOut],
    known: QueueInfo,
    given: ReceivedMessage,
    about: Explanation,
    headers: Headers,
    text: str,
    digest: str,
) -> SqsMessageOut:
    system = system_of(call, known, given, ("All",))
    if not about.deliveries:
        del system["ApproximateFirstReceiveTimestamp"]
    system["IsVisible"] = "true" if about.state in _VISIBLE else "false"
    system["IsDelayed"] = "true" if about.state == "delayed" else "false"
    attributes = attributes_out(headers)
    return SqsMessageOut(
        message_id(call.aws.directory, known, given.seq, given.headers),
        _RECEIPT,
        digest,
        text,
        system,
        attributes_digest(attributes) if attributes else None,
        attributes,
    )


def _plain(one: SqsMessageOut) -> dict[str, object]:
    """Render a message in JSON with the structure that it has in XML."""
    plain: dict[str, object] = {
        "MessageId": one.message_id,
        "ReceiptHandle": one.receipt_handle,
        "MD5OfBody": one.body_md5,
        "Body": one.body,
        "Attribute": [{"Name": name, "Value": text} for name, text in one.attributes.items()],
    }
    if one.message_attributes:
        plain["MessageAttribute"] = [
            {"Name": name, "Value": msgspec.to_builtins(value)}
            for name, value in one.message_attributes.items()
        ]
    return plain
