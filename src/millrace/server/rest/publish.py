"""Publishing: one message, many messages, Arrow rows, or the request body as a message."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Annotated

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType

from millrace import limits
from millrace.client.arrow_input import stored_bytes
from millrace.client.engine import CallbackEngine
from millrace.client.message import Rows, publish_one
from millrace.client.queue import Queue
from millrace.client.shards import Shards
from millrace.core import validate
from millrace.core.answers import PublishResult as Answer
from millrace.core.commands import ProducerMode
from millrace.decoding import json_decoder
from millrace.errors import Invalid
from millrace.server.clock import now_ms
from millrace.server.http.response import Response
from millrace.server.rest.arrow_stream import read_table
from millrace.server.rest.bulk_publish import (
    lines_in,
    messages_in,
    ready,
    table_ready,
)
from millrace.server.rest.route_table import QUEUE, ROUTES
from millrace.server.web.message import (
    MessageIn,
    Seq,
    body_in,
    headers_in,
    key_in,
    seq_out,
)
from millrace.server.web.pending_request import PendingRequest
from millrace.server.web.route import (
    JSON,
    Media,
    RequestContext,
    decode,
    encode,
    read_query,
)

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
BYTES = "application/octet-stream"

LINES = Media(NDJSON, "Messages, one a line.")
ARROW_ROWS = Media(
    ARROW,
    "An Arrow IPC stream, not compressed, with the column `value` and, if need be, `key`, "
    "`headers`, `group`, `priority`, `delay`, `ttl`.",
)
BULK = (LINES, ARROW_ROWS, Media(BYTES, "The body of one message, as it is."))

Number = Annotated[int, msgspec.Meta(ge=0)]


class PublishAsk(MessageIn, frozen=True, forbid_unknown_fields=True):
    """One message, or several under `messages`, which are published atomically."""

    messages: list[MessageIn] | UnsetType = UNSET
    producer: str | None = None
    """The producer's own name. With a number, a repeated call has no further effect."""
    number: Number | None = None
    mode: ProducerMode = "dense"
    """`dense`: numbers are consecutive; `rising`: gaps are allowed; `range`: (after, number] of a
    source.
    """
    after: Number | None = None


class PublishRead(PublishAsk, frozen=True, forbid_unknown_fields=True):
    """The request as it is decoded: `messages_in` decodes the messages one by one."""

    messages: list[msgspec.Raw] | UnsetType = UNSET  # type: ignore[assignment]


class PublishQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The attributes of messages whose body is not JSON."""

    key: str | None = None
    group: str | None = None
    priority: int | None = None
    delay: float | None = None
    dedup: str | None = None
    ttl: float | None = None
    producer: str | None = None
    number: Number | None = None
    mode: ProducerMode = "dense"
    after: Number | None = None


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """The seqs of published messages."""

    count: int
    """Number of messages."""
    seq: Seq | None = None
    """The first message's seq; the others follow consecutively. Null if the call was a repeat whose
    seqs are no longer remembered.
    """
    seqs: tuple[Seq, ...] = ()
    """All seqs, if they are not consecutive."""


_decoder = json_decoder(PublishRead)


def _publish_quick(ask: RequestContext, engine: CallbackEngine) -> PendingRequest | None:
    queue = ask.known()
    if queue is None or ask.type not in (JSON, "") or ask.request.query:
        return None
    params = decode(_decoder, ask.request.body)
    if params.messages is not UNSET:
        return None
    shards = queue.shards
    message = validate.message(
        body_in(params.body, params.body_base64),
        key_in(params),
        headers_in(params.headers),
        params.group,
    )
    numbered = validate.numbered(params.producer, params.number, params.mode, params.after)
    command = publish_one(
        message, numbered, params.priority, params.delay, params.dedup, params.ttl
    )
    under = _Publishing(ask, engine, engine.submit(shards.first, command))
    under.shards = shards
    return under


class _Publishing(PendingRequest):
    __slots__ = ("shards",)

    shards: Shards

    def read(self, answer: object) -> Response:
        assert isinstance(answer, Answer)
        places = self.shards.names(answer)
        return one_out(places[0] if places else None)


@ROUTES.raw(
    "POST",
    f"{QUEUE}/messages",
    "publish",
    takes=PublishAsk,
    gives=Published,
    also_takes=BULK,
    status=201,
    tag="messages",
    query=PublishQuery,
    quick=_publish_quick,
)
async def publish(ask: RequestContext) -> Response:
    """Publish one message or several; the response is sent once they are durable."""
    kind = ask.type
    if kind in (JSON, "") and not ask.request.query:
        params = decode(_decoder, ask.request.body)
        if params.messages is UNSET:
            return one_out(await ask.queue(lambda queue: _publish(queue, params)))
        rows = await many_in(params, params.messages)
        places = await ask.queue(
            lambda queue: queue.publish_many(
                rows,
                producer=params.producer,
                number=params.number,
                mode=params.mode,
                after=params.after,
            )
        )
        return many_out(places, len(rows))
    query = read_query(ask, PublishQuery)
    if kind == BYTES:
        body = bytes(ask.request.body)
        return one_out(await ask.queue(lambda queue: _publish_bytes(queue, body, query)))
    found = await rows_in(ask, query)
    places = await ask.queue(lambda queue: _publish_rows(queue, found, query))
    return many_out(places, len(found))


async def _publish(queue: Queue, params: PublishAsk) -> int | None:
    return await queue.publish(
        body_in(params.body, params.body_base64),
        key=key_in(params),
        headers=headers_in(params.headers),
        group=params.group,
        priority=params.priority,
        delay=params.delay,
        dedup=params.dedup,
        ttl=params.ttl,
        producer=params.producer,
        number=params.number,
        mode=params.mode,
        after=params.after,
    )


async def _publish_bytes(queue: Queue, body: bytes, query: PublishQuery) -> int | None:
    return await queue.publish(
        body,
        key=query.key,
        group=query.group,
        priority=query.priority,
        delay=query.delay,
        dedup=query.dedup,
        ttl=query.ttl,
        producer=query.producer,
        number=query.number,
        mode=query.mode,
        after=query.after,
    )


async def _publish_rows(queue: Queue, rows: Rows, query: PublishQuery) -> Sequence[int]:
    return await queue.publish_many(
        rows,
        priority=query.priority,
        delay=query.delay,
        ttl=query.ttl,
        producer=query.producer,
        number=query.number,
        mode=query.mode,
        after=query.after,
    )


async def many_in(params: MessageIn, messages: Sequence[msgspec.Raw]) -> Rows:
    """Return the messages of a request that contains several; its priority, delay and TTL are the
    defaults of messages without their own.
    """
    if params.body is not UNSET or params.body_base64 is not UNSET:
        raise Invalid("there are both a body and messages; send one of them", field="messages")
    for name in ("key", "key_base64", "headers", "group", "dedup"):
        if getattr(params, name):
            raise Invalid(f"{name} is each message's own: say it there", field=name)
    found = await messages_in(messages)
    if params.priority is None and params.delay is None and params.ttl is None:
        return await ready(found)
    for at, one in enumerate(found):
        if not at % limits.ROWS_STEP:
            await asyncio.sleep(0)
        found[at] = dataclasses.replace(
            one,
            priority=params.priority if one.priority is None else one.priority,
            delay=params.delay if one.delay is None else one.delay,
            ttl=params.ttl if one.ttl is None else one.ttl,
        )
    return await ready(found)


async def rows_in(
    ask: RequestContext,
    query: PublishQuery,
    turn: tuple[int | None, float | None, float | None] | None = None,
) -> Rows:
    """Return the messages of a body that is not JSON; `turn` has the default priority, delay and
    TTL, and replaces those of the query.
    """
    if query.key is not None or query.group is not None or query.dedup is not None:
        raise Invalid("key, group and dedup are each message's own: say them there", field="query")
    kind, body = ask.type, ask.request.body
    turn = turn or (query.priority, query.delay, query.ttl)
    if kind == NDJSON:
        return await ready(await lines_in(body), *turn)
    if kind == ARROW:
        return await table_ready(_counted(ask, read_table(body)), *turn)
    raise Invalid(
        f"the body is {kind[:80]!r}; send {JSON}, {NDJSON}, {ARROW} or {BYTES}",
        field="content-type",
    )


def _counted(ask: RequestContext, table: pa.Table) -> pa.Table:
    """Return the rows after charging the quota for the bytes that they need beyond the body."""
    excess = stored_bytes(table) - len(ask.request.body)
    if excess > 0:
        ask.server.quotas.owe(ask.principal, now_ms(), excess)
    return table


def one_out(seq: int | None) -> Response:
    """Return the response for one message."""
    return Response(201, encode(Published(1, None if seq is None else seq_out(seq))))


def many_out(places: Sequence[int], count: int) -> Response:
    """Return the response for several messages."""
    return Response(201, encode(published(places, count)))


def published(places: Sequence[int], count: int) -> Published:
    """Return the seqs of published messages as a response body."""
    if isinstance(places, range) or len(places) < 2:
        return Published(count, seq_out(places[0]) if places else None)
    return Published(count, None, tuple(map(seq_out, places)))
