"""CassieQ's messages: putting, getting, updating and acknowledging them.

A message has a tag from when it is put, in a header: it stays the same when the message is updated,
and where it is a dead letter.
"""

from __future__ import annotations

import hashlib
import secrets
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace.client.lease import Lease
from millrace.client.queue import Queue
from millrace.core.model import Row
from millrace.core.receipt import read
from millrace.decoding import json_decoder
from millrace.errors import Forged, Invalid, Stale
from millrace.server.cassieq.bodies import (
    MessageOut,
    NextQuery,
    PutQuery,
    UpdateIn,
    UpdateOut,
    query_of,
    receipt_in,
)
from millrace.server.cassieq.table import MESSAGES, NEXT, ROUTES
from millrace.server.clock import now_ms
from millrace.server.http.response import Response
from millrace.server.rest.listing import shown
from millrace.server.rest.route import Ask, decode, encode

T = TypeVar("T")

TAG = "cassieq-tag"
"""The header of a message that has its tag."""

_TAG_BYTES = 4
_update_in = json_decoder(UpdateIn)


@ROUTES.raw("POST", MESSAGES, "publish", status=201)
async def put_message(ask: Ask) -> Response:
    """Put a message: the body, as it is. Nobody gets it before the time that the query names."""
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


@ROUTES.raw("GET", NEXT, "work", gives=MessageOut)
async def get_message(ask: Ask) -> Response:
    """Be given the next message, for a while; 204 if there is none."""
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
async def update_message(ask: Ask) -> Response:
    """Have a message say something else, or be the caller's for another time."""
    receipt = receipt_in(ask)
    told = decode(_update_in, ask.request.body or b"{}")
    seconds = told.new_invisibility_seconds
    holding = ask.server.holding
    if told.message is None:
        await _held(ask, lambda queue: queue.extend(receipt, seconds))
        holding.extend([receipt], now_ms() + seconds * 1000)
        tag = await ask.queue(lambda queue: _tag_of(queue, receipt))
        return Response(200, encode(UpdateOut(pop_receipt=receipt, message_tag=tag)))
    body = told.message.encode()
    after = await _held(ask, lambda queue: queue.replace(receipt, body, seconds=seconds))
    holding.replace(receipt, after.receipt, after.deadline_ms)
    return Response(200, encode(UpdateOut(pop_receipt=after.receipt, message_tag=_tag(after))))


@ROUTES.raw("DELETE", MESSAGES, "work")
async def ack_message(ask: Ask) -> Response:
    """Acknowledge a message: nobody gets it again."""
    receipt = receipt_in(ask)
    await _held(ask, lambda queue: queue.settle(receipt))
    ask.server.holding.let_go([receipt])
    return Response(204)


async def _held(ask: Ask, use: Callable[[Queue], Awaitable[T]]) -> T:
    """What `use` comes to, where the receipt is of the queue that the address names.

    Raises:
        Stale: it is of another one, also of one that had the name before.
    """
    try:
        return await ask.queue(use)
    except Forged as error:
        text = "this receipt is of no message of the queue that is there now"
        raise Stale(text, field="popReceipt") from error


def _told(lease: Lease) -> MessageOut:
    try:
        text, encoding = lease.body.decode(), ""
    except UnicodeDecodeError:
        text, encoding = b64encode(lease.body).decode("ascii"), "base64"
    return MessageOut(
        pop_receipt=lease.receipt,
        message=text,
        delivery_count=lease.deliveries,
        message_tag=_tag(lease),
        message_encoding=encoding,
    )


def _tag(message: Lease | Row) -> str:
    """The tag of a message; of one that was published through another API, one of its number."""
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
