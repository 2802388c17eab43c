"""Messages: publish to queues, lease batches, and delete by id."""

from __future__ import annotations

from functools import partial

import msgspec

from millrace.client.lease import Lease
from millrace.client.queue import Queue
from millrace.core.model import Row
from millrace.errors import Invalid, NotFound
from millrace.server.dynamiq.route_table import (
    QUEUE,
    ROUTES,
    refuse_query,
    with_queue,
)
from millrace.server.dynamiq.schemas import (
    MESSAGES,
    DynamiqMessage,
    batch_in,
    id_in,
    ids_in,
    message_out,
    text_out,
    visibility_ms,
)
from millrace.server.http.response import Response
from millrace.server.web.message_listing import listed
from millrace.server.web.route import Nothing, RequestContext

MESSAGE = f"{QUEUE}/message/{{message}}"


@ROUTES.raw("PUT", f"{QUEUE}/message", "publish")
async def put_message(ask: RequestContext) -> Response:
    """Publish the body as a message; the response is its id, sent once the message is durable."""
    refuse_query(ask)
    body = bytes(ask.request.body)
    return text_out(str(await with_queue(ask, lambda queue: queue.publish(body))))


@ROUTES.json("GET", MESSAGES, "work", Nothing, list[DynamiqMessage])
async def take_messages(ask: RequestContext, _: Nothing) -> Response:
    """Lease up to N messages of one partition, which is locked for the queue's timeout.

    They are in the order of their publication.
    """
    if ask.request.method == "HEAD":
        raise Invalid("messages that nobody is sent are not taken; GET them", field="method")
    wanted = batch_in(ask.params["messages"])
    holding = ask.server.holding
    reserved = await holding.reserve(ask.principal, "in_flight", wanted)

    async def use(queue: Queue) -> list[Lease]:
        seconds = visibility_ms(await queue.spec()) / 1000
        return await queue.lease(reserved.count, seconds=seconds)

    try:
        found = await with_queue(ask, use)
        if found:
            holding.keep(reserved, (one.receipt for one in found), found[0].deadline_ms)
    finally:
        reserved.cancel()
    ask.server.handed.note(ask.params["space"], ask.params["queue"], wanted, len(found))
    found.sort(key=lambda one: one.seq)
    # Messages of a lease must not be served again from a cache.
    return listed(b"[", found, _out, b"]", headers={"cache-control": "no-store"})


def _out(one: Lease) -> DynamiqMessage:
    return message_out(one.id or 0, one.body)


class MessageResponse(msgspec.Struct, frozen=True):
    """The response with one message."""

    messages: list[DynamiqMessage]


@ROUTES.json("GET", MESSAGE, "read", Nothing, MessageResponse)
async def get_message(ask: RequestContext, _: Nothing) -> Response:
    """Return one message by its id, also if it is leased; nothing is locked."""
    text = ask.params["message"]
    number = id_in(text)

    async def use(queue: Queue) -> Row | None:
        return None if number is None else await queue.get(id=number)

    found = await with_queue(ask, use)
    if found is None:
        raise NotFound(f"there is no message {text[:40]!r} (any more)", field="message")
    out = partial(_row_out, text)
    return listed(b'{"messages":[', [found], out, b"]}")


def _row_out(text: str, row: Row) -> DynamiqMessage:
    return message_out(text, row.body or b"")


@ROUTES.json("DELETE", MESSAGE, "work", Nothing, bool)
async def delete_message(ask: RequestContext, _: Nothing) -> bool:
    """Delete one message by its id; the response is true if it existed."""
    number = id_in(ask.params["message"])
    ids = [] if number is None else [number]
    return await with_queue(ask, lambda queue: queue.delete(ids)) > 0


class DeletedMany(msgspec.Struct, frozen=True):
    """Number of messages that were deleted."""

    deleted: int


@ROUTES.json("DELETE", MESSAGES, "work", Nothing, DeletedMany)
async def delete_messages(ask: RequestContext, _: Nothing) -> DeletedMany:
    """Delete messages by their ids, separated by commas."""
    ids = ids_in(ask.params["messages"])
    return DeletedMany(await with_queue(ask, lambda queue: queue.delete(ids)))
