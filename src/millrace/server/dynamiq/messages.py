"""Messages: putting them into queues, taking batches of them, deleting them by their ids."""

from __future__ import annotations

from functools import partial

import msgspec

from millrace.client.lease import Lease
from millrace.client.queue import Queue
from millrace.core.model import Row
from millrace.errors import Invalid, NotFound
from millrace.server.dynamiq.table import QUEUE, ROUTES, refuse_query, with_queue
from millrace.server.dynamiq.wire import (
    MESSAGES,
    MessageOut,
    batch_in,
    id_in,
    ids_in,
    message_out,
    text_out,
    visibility_ms,
)
from millrace.server.http.response import Response
from millrace.server.rest.listing import listed
from millrace.server.rest.route import Ask, Nothing

MESSAGE = f"{QUEUE}/message/{{message}}"


@ROUTES.raw("PUT", f"{QUEUE}/message", "publish")
async def put_message(ask: Ask) -> Response:
    """Publish the body as a message; answered with its id when nothing can lose it any more."""
    refuse_query(ask)
    body = bytes(ask.request.body)
    return text_out(str(await with_queue(ask, lambda queue: queue.publish(body))))


@ROUTES.json("GET", MESSAGES, "work", Nothing, list[MessageOut])
async def take_messages(ask: Ask, _: Nothing) -> Response:
    """Up to so many messages of one partition, which is locked for the queue's time.

    They come in the order in which they were published.
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
    # What it answers is not to be had a second time.
    return listed(b"[", found, _out, b"]", headers={"cache-control": "no-store"})


def _out(one: Lease) -> MessageOut:
    return message_out(one.id or 0, one.body)


class Found(msgspec.Struct, frozen=True):
    """The message that was asked for."""

    messages: list[MessageOut]


@ROUTES.json("GET", MESSAGE, "read", Nothing, Found)
async def get_message(ask: Ask, _: Nothing) -> Response:
    """One message by its id, whoever has it; nothing is locked."""
    text = ask.params["message"]
    number = id_in(text)

    async def use(queue: Queue) -> Row | None:
        return None if number is None else await queue.get(id=number)

    found = await with_queue(ask, use)
    if found is None:
        raise NotFound(f"there is no message {text[:40]!r} (any more)", field="message")
    out = partial(_row_out, text)
    return listed(b'{"messages":[', [found], out, b"]}")


def _row_out(text: str, row: Row) -> MessageOut:
    return message_out(text, row.body or b"")


@ROUTES.json("DELETE", MESSAGE, "work", Nothing, bool)
async def delete_message(ask: Ask, _: Nothing) -> bool:
    """End one message by its id; whether it was there."""
    number = id_in(ask.params["message"])
    ids = [] if number is None else [number]
    return await with_queue(ask, lambda queue: queue.delete(ids)) > 0


class DeletedMany(msgspec.Struct, frozen=True):
    """How many were there."""

    deleted: int


@ROUTES.json("DELETE", MESSAGES, "work", Nothing, DeletedMany)
async def delete_messages(ask: Ask, _: Nothing) -> DeletedMany:
    """End messages by their ids, which stand between commas."""
    ids = ids_in(ask.params["messages"])
    return DeletedMany(await with_queue(ask, lambda queue: queue.delete(ids)))
