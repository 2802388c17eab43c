"""Reading messages without leasing them."""

from __future__ import annotations

from typing import Literal

import msgspec

from millrace.client.queue import Queue
from millrace.core.model import Row
from millrace.errors import NotFound
from millrace.server.http.response import Response
from millrace.server.rest.route_table import QUEUE, ROUTES
from millrace.server.web.message import (
    MessageOut,
    Seq,
    row_out,
    seq_in,
    seq_out,
)
from millrace.server.web.message_listing import listed, shown
from millrace.server.web.route import Nothing, RequestContext


class PeekAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The range of messages."""

    after: Seq = 0
    """Return messages after this seq."""
    count: int = 10


class Messages(msgspec.Struct, frozen=True):
    """Messages by seq; the next page starts after the last one's seq."""

    messages: list[MessageOut]


@ROUTES.json("GET", f"{QUEUE}/messages", "read", PeekAsk, Messages, tag="messages")
async def peek(ask: RequestContext, params: PeekAsk) -> Response:
    """List the first messages, leased or not."""
    after = seq_in(params.after, "after")
    rows = await ask.queue(lambda queue: queue.peek(params.count, after=after))
    return listed(b'{"messages":[', rows, row_out, b"]}")


class GetAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The kind of identifier in the path."""

    by: Literal["seq", "id"] = "seq"
    """`id` is available for queues with the delivery `partitions`."""


@ROUTES.json("GET", f"{QUEUE}/messages/{{seq}}", "read", GetAsk, MessageOut, tag="messages")
async def get_message(ask: RequestContext, params: GetAsk) -> Response:
    """Return one message."""
    number = seq_in(ask.params["seq"], "seq")

    async def use(queue: Queue) -> Row | None:
        return await (queue.get(number) if params.by == "seq" else queue.get(id=number))

    row = await ask.queue(use)
    if row is None:
        text = ask.params["seq"][:40]
        raise NotFound(f"message {text} is not there; explain it", field="seq")
    return shown(row, row_out)


class ExplanationOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a message."""

    seq: Seq
    state: Literal[
        "ready",
        "leased",
        "returned",
        "delayed",
        "blocked",
        "limited",
        "doomed",
        "settled",
        "delete",
        "dead",
        "unknown",
    ]
    deliveries: int = 0
    failures: int = 0
    until_ms: int | None = None
    """The time until which it is leased, delayed, blocked or rate-limited."""
    not_before_ms: int | None = None
    """The earliest time at which its delay ends."""
    lease: int | None = None
    """The lease call that holds the message."""
    session: int | None = None
    """The session that holds the message."""
    superseded_by: Seq | None = None
    """The newest revision of its key."""


@ROUTES.json(
    "GET", f"{QUEUE}/messages/{{seq}}/explain", "read", Nothing, ExplanationOut, tag="messages"
)
async def explain(ask: RequestContext, _: Nothing) -> ExplanationOut:
    """Explain the state of a message, and why it is not delivered."""
    number = seq_in(ask.params["seq"], "seq")
    found = await ask.queue(lambda queue: queue.explain(number))
    newer = found.superseded_by
    return ExplanationOut(
        seq_out(found.seq),
        found.state,
        found.deliveries,
        found.failures,
        found.until_ms,
        found.not_before_ms,
        None if found.lease is None else int(found.lease),
        found.session,
        None if newer is None else seq_out(newer),
    )


class ProducerOut(msgspec.Struct, frozen=True):
    """The progress of a producer."""

    producer: str
    number: int
    """The producer's last number, after which it continues; 0 if the producer is unknown."""


@ROUTES.json(
    "GET", f"{QUEUE}/producers/{{producer}}", "publish", Nothing, ProducerOut, tag="messages"
)
async def producer(ask: RequestContext, _: Nothing) -> ProducerOut:
    """Return a producer's last number."""
    name = ask.params["producer"]
    return ProducerOut(name, await ask.queue(lambda queue: queue.producer(name)))
