"""Looking at messages without leasing them."""

from __future__ import annotations

from typing import Literal

import msgspec

from millrace.client.queue import Queue
from millrace.core.model import Row
from millrace.errors import NotFound
from millrace.server.http.response import Response
from millrace.server.rest.listing import listed, shown
from millrace.server.rest.message import MessageOut, Seq, row_out, seq_in, seq_out
from millrace.server.rest.route import Ask, Nothing
from millrace.server.rest.table import QUEUE, ROUTES


class PeekAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages."""

    after: Seq = 0
    """Those after this one."""
    count: int = 10


class Messages(msgspec.Struct, frozen=True):
    """Messages, in order; go on after the last one's seq."""

    messages: list[MessageOut]


@ROUTES.json("GET", f"{QUEUE}/messages", "read", PeekAsk, Messages, tag="messages")
async def peek(ask: Ask, told: PeekAsk) -> Response:
    """The first messages that are there, leased or not."""
    after = seq_in(told.after, "after")
    rows = await ask.queue(lambda queue: queue.peek(told.count, after=after))
    return listed(b'{"messages":[', rows, row_out, b"]}")


class GetAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the address names it by."""

    by: Literal["seq", "id"] = "seq"
    """id: where the queue's delivery is by partitions."""


@ROUTES.json("GET", f"{QUEUE}/messages/{{seq}}", "read", GetAsk, MessageOut, tag="messages")
async def get_message(ask: Ask, told: GetAsk) -> Response:
    """One message."""
    number = seq_in(ask.params["seq"], "seq")

    async def use(queue: Queue) -> Row | None:
        return await (queue.get(number) if told.by == "seq" else queue.get(id=number))

    row = await ask.queue(use)
    if row is None:
        text = ask.params["seq"][:40]
        raise NotFound(f"message {text} is not there; explain it", field="seq")
    return shown(row, row_out)


class ExplanationOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a message stands."""

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
    """So long it is leased, delayed, blocked or limited."""
    not_before_ms: int | None = None
    """It is delayed at least so long."""
    lease: int | None = None
    """The lease call that holds it."""
    session: int | None = None
    """The session that holds it."""
    superseded_by: Seq | None = None
    """The newest revision of its key."""


@ROUTES.json(
    "GET", f"{QUEUE}/messages/{{seq}}/explain", "read", Nothing, ExplanationOut, tag="messages"
)
async def explain(ask: Ask, _: Nothing) -> ExplanationOut:
    """Why a message is not to be had."""
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
    """How far a producer has come."""

    producer: str
    number: int
    """Its last number; 0 if it is unknown here. It goes on with the next one."""


@ROUTES.json(
    "GET", f"{QUEUE}/producers/{{producer}}", "publish", Nothing, ProducerOut, tag="messages"
)
async def producer(ask: Ask, _: Nothing) -> ProducerOut:
    """The last number of a producer."""
    name = ask.params["producer"]
    return ProducerOut(name, await ask.queue(lambda queue: queue.producer(name)))
