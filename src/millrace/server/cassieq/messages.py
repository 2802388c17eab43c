"""CassieQ's messages: put, get, update and acknowledge.

A message gets a tag when it is put, stored in a header. The tag stays the same when the message is
updated and when it becomes a dead letter.
"""

from __future__ import annotations

import hashlib
import secrets
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace.client.lease import Lease
from millrace.client.queue import Queue
from millrace.core.format.receipt import read
from millrace.core.model import Row
from millrace.decoding import json_decoder
from millrace.errors import Forged, Invalid, Stale
from millrace.server.cassieq.route_table import MESSAGES, NEXT, ROUTES
from millrace.server.cassieq.schemas import (
    CassieqMessage,
    NextQuery,
    PutQuery,
    UpdateIn,
    UpdateOut,
    query_of,
    receipt_in,
)
from millrace.server.clock import now_ms
from millrace.server.http.response import Response
from millrace.server.web.message_listing import shown
from millrace.server.web.route import RequestContext, decode, encode

T = TypeVar("T")

TAG = "cassieq-tag"
"""The header that contains a message's tag."""

_TAG_BYTES = 4
_update_in = json_decoder(UpdateIn)


@ROUTES.raw("POST", MESSAGES, "publish", status=201)
async def put_message(ask: RequestContext) -> Response:
    """Put the body as a message, which is invisible for the time that the query gives."""
    query = query_of(ask, PutQuery)
    body = bytes(ask.request.body)
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise Invalid(
            "the message is no text in UTF-8; put bytes in base64", field="body"
        ) from error
    tag = _tag_text(secrets.token_bytes(_TAG_BYTES))
    delay = query.initial_invisibility_seconds
    await ask.queue(lambda queue: queue.publish(body, headers=[(TAG, tag)], delay=delay or None))
    return Response(201)


@ROUTES.raw("GET", NEXT, "work", gives=CassieqMessage)
async def get_message(ask: RequestContext) -> Response:
    """Lease the next message for a time; the status is 204 if the queue is empty."""
    query = query_of(ask, NextQuery)
    if ask.request.method == "HEAD":
        raise Invalid("a message that is given is told of; send GET", field="method")
    holding = ask.server.holding
    reserved = await holding.reserve(ask.principal, "in_flight", 1)
    try:
        found = await ask.queue(
            lambda queue: queue.lease(1, seconds=query.invisibility_time_seconds)
        )
        if found:
            holding.keep(reserved, [found[0].receipt], found[0].deadline_ms)
    finally:
        reserved.cancel()
    ask.server.handed.note(ask.params["space"], ask.params["queue"], 1, len(found))
    return shown(found[0], _told, text="message") if found else Response(204)


@ROUTES.raw("PUT", MESSAGES, "work", takes=UpdateIn, gives=UpdateOut)
async def update_message(ask: RequestContext) -> Response:
    """Change a message's text, or the time until it becomes visible again."""
    receipt = receipt_in(ask)
    params = decode(_update_in, ask.request.body or b"{}")
    seconds = params.new_invisibility_seconds
    holding = ask.server.holding
    if params.message is None:
        await _held(ask, lambda queue: queue.extend(receipt, seconds))
        holding.extend([receipt], now_ms() + seconds * 1000)
        tag = await ask.queue(lambda queue: _tag_of(queue, receipt))
        return Response(200, encode(UpdateOut(pop_receipt=receipt, message_tag=tag)))
    body = params.message.encode()
    after = await _held(ask, lambda queue: queue.replace(receipt, body, seconds=seconds))
    holding.replace(receipt, after.receipt, after.deadline_ms)
    return Response(200, encode(UpdateOut(pop_receipt=after.receipt, message_tag=_tag(after))))


@ROUTES.raw("DELETE", MESSAGES, "work")
async def ack_message(ask: RequestContext) -> Response:
    """Acknowledge a message, so that it is not delivered again."""
    receipt = receipt_in(ask)
    await _held(ask, lambda queue: queue.settle(receipt))
    ask.server.holding.let_go([receipt])
    return Response(204)


async def _held(ask: RequestContext, use: Callable[[Queue], Awaitable[T]]) -> T:
    """Run `use` on the queue in the path, and return its result.

    Raises:
        Stale: the receipt is of another queue, possibly of an earlier one of the same name.
    """
    try:
        return await ask.queue(use)
    except Forged as error:
        text = "this receipt is of no message of the queue that is there now"
        raise Stale(text, field="popReceipt") from error


def _told(lease: Lease) -> CassieqMessage:
    try:
        text, encoding = lease.body.decode(), ""
    except UnicodeDecodeError:
        text, encoding = b64encode(lease.body).decode("ascii"), "base64"
    return CassieqMessage(
        pop_receipt=lease.receipt,
        message=text,
        delivery_count=lease.deliveries,
        message_tag=_tag(lease),
        message_encoding=encoding,
    )


def _tag(message: Lease | Row) -> str:
    """Return the message's tag; one derived from its seq if another API published the message."""
    for name, value in message.headers:
        if name == TAG and value.isascii():
            return value.decode("ascii")
    return _tag_text(hashlib.blake2b(b"%d" % message.seq, digest_size=_TAG_BYTES).digest())


def _tag_text(tag: bytes) -> str:
    return urlsafe_b64encode(tag).rstrip(b"=").decode("ascii")


async def _tag_of(queue: Queue, receipt: str) -> str:
    found = read(receipt)[0]
    row = await queue.get(queue.shards.place(found.shard, found.seq))
    return "" if row is None else _tag(row)
