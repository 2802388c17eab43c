"""Publishing: one message, many, Arrow, or a body as it is."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Annotated

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType

from millrace import limits
from millrace.client.arrow_columns import stored_bytes
from millrace.client.message import Rows, publish_one
from millrace.client.queue import Queue
from millrace.client.shards import Shards
from millrace.client.submitting import Submits
from millrace.core import check
from millrace.core.answers import Published as Answer
from millrace.core.commands import ProducerMode
from millrace.decoding import json_decoder
from millrace.errors import Invalid
from millrace.server.clock import now_ms
from millrace.server.http.response import Response
from millrace.server.rest.arrow_stream import read_table
from millrace.server.rest.bulk import lines_in, messages_in, ready, table_ready
from millrace.server.rest.message import MessageIn, Seq, body_in, headers_in, key_in, seq_out
from millrace.server.rest.route import JSON, Ask, Media, decode, encode, read_query
from millrace.server.rest.table import QUEUE, ROUTES
from millrace.server.rest.under import Under

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
    """One message, or several under `messages`, which are published all or nothing."""

    messages: list[MessageIn] | UnsetType = UNSET
    producer: str | None = None
    """A name of the producer's own. With a number, a repeat changes nothing."""
    number: Number | None = None
    mode: ProducerMode = "dense"
    """dense: one after the other; rising: gaps are allowed; range: (after, number] of a source."""
    after: Number | None = None


class PublishRead(PublishAsk, frozen=True, forbid_unknown_fields=True):
    """The same as it is decoded: several messages one by one, by `messages_in`."""

    messages: list[msgspec.Raw] | UnsetType = UNSET  # type: ignore[assignment]


class PublishQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of messages that are not JSON: what their body does not say."""

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
    """Where the messages are."""

    count: int
    """How many there are."""
    seq: Seq | None = None
    """The first one's number; those after it follow. Null: they were known, and where they are is
    forgotten by now."""
    seqs: tuple[Seq, ...] = ()
    """All of them, where they do not follow each other."""


_decoder = json_decoder(PublishRead)


def _publish_quick(ask: Ask, engine: Submits) -> Under | None:
    queue = ask.known()
    if queue is None or ask.type not in (JSON, "") or ask.request.query:
        return None
    told = decode(_decoder, ask.request.body)
    if told.messages is not UNSET:
        return None
    shards = queue.shards
    message = check.message(
        body_in(told.body, told.body_base64), key_in(told), headers_in(told.headers), told.group
    )
    numbered = check.numbered(told.producer, told.number, told.mode, told.after)
    command = publish_one(message, numbered, told.priority, told.delay, told.dedup, told.ttl)
    under = _Publishing(ask, engine, engine.submit(shards.first, command))
    under.shards = shards
    return under


class _Publishing(Under):
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
async def publish(ask: Ask) -> Response:
    """Publish a message, or several at once; answered when nothing can lose them any more."""
    kind = ask.type
    if kind in (JSON, "") and not ask.request.query:
        told = decode(_decoder, ask.request.body)
        if told.messages is UNSET:
            return one_out(await ask.queue(lambda queue: _publish(queue, told)))
        rows = await many_in(told, told.messages)
        places = await ask.queue(
            lambda queue: queue.publish_many(
                rows,
                producer=told.producer,
                number=told.number,
                mode=told.mode,
                after=told.after,
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


async def _publish(queue: Queue, told: PublishAsk) -> int | None:
    return await queue.publish(
        body_in(told.body, told.body_base64),
        key=key_in(told),
        headers=headers_in(told.headers),
        group=told.group,
        priority=told.priority,
        delay=told.delay,
        dedup=told.dedup,
        ttl=told.ttl,
        producer=told.producer,
        number=told.number,
        mode=told.mode,
        after=told.after,
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


async def many_in(told: MessageIn, messages: Sequence[msgspec.Raw]) -> Rows:
    """The messages of a call that names several; beside them stand priority, delay and ttl of those
    that do not name their own."""
    if told.body is not UNSET or told.body_base64 is not UNSET:
        raise Invalid("there are both a body and messages; send one of them", field="messages")
    for name in ("key", "key_base64", "headers", "group", "dedup"):
        if getattr(told, name):
            raise Invalid(f"{name} is each message's own: say it there", field=name)
    found = await messages_in(messages)
    if told.priority is None and told.delay is None and told.ttl is None:
        return await ready(found)
    for at, one in enumerate(found):
        if not at % limits.ROWS_STEP:
            await asyncio.sleep(0)
        found[at] = dataclasses.replace(
            one,
            priority=told.priority if one.priority is None else one.priority,
            delay=told.delay if one.delay is None else one.delay,
            ttl=told.ttl if one.ttl is None else one.ttl,
        )
    return await ready(found)


async def rows_in(
    ask: Ask,
    query: PublishQuery,
    turn: tuple[int | None, float | None, float | None] | None = None,
) -> Rows:
    """The messages of a body that is not JSON; `turn`: priority, delay and ttl of those that do not
    name their own, where the query does not say so."""
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


def _counted(ask: Ask, table: pa.Table) -> pa.Table:
    """The rows, once the bytes that they have beyond the body are counted, too."""
    excess = stored_bytes(table) - len(ask.request.body)
    if excess > 0:
        ask.server.quotas.owe(ask.principal, now_ms(), excess)
    return table


def one_out(seq: int | None) -> Response:
    """The answer to one message."""
    return Response(201, encode(Published(1, None if seq is None else seq_out(seq))))


def many_out(places: Sequence[int], count: int) -> Response:
    """The answer to several."""
    return Response(201, encode(published(places, count)))


def published(places: Sequence[int], count: int) -> Published:
    """Where messages are."""
    if isinstance(places, range) or len(places) < 2:
        return Published(count, seq_out(places[0]) if places else None)
    return Published(count, None, tuple(map(seq_out, places)))
