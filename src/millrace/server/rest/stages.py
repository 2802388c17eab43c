"""Staged uploads: rows that stay invisible until all of them are published at once."""

from __future__ import annotations

from typing import Annotated

import msgspec

from millrace import limits
from millrace.client.message import Rows
from millrace.core import bounds
from millrace.core.commands import ProducerMode
from millrace.decoding import json_decoder
from millrace.server.http.response import Response
from millrace.server.rest.bulk_publish import messages_in, ready
from millrace.server.rest.publish import (
    ARROW_ROWS,
    LINES,
    Number,
    Published,
    PublishQuery,
    many_out,
    rows_in,
)
from millrace.server.rest.queues import WasThere
from millrace.server.rest.route_table import QUEUE, ROUTES
from millrace.server.web.message import MessageIn
from millrace.server.web.route import (
    JSON,
    Nothing,
    RequestContext,
    decode,
    encode,
    read_query,
)

CallNumber = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
Span = Annotated[list[Number], msgspec.Meta(min_length=2, max_length=2)]
Spans = Annotated[list[Span], msgspec.Meta(min_length=1, max_length=bounds.SPANS_MAX)]


class StageAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages, without deduplication ids."""

    messages: list[MessageIn]
    number: CallNumber | None = None
    """The number of the call within the stage, from 1, so that a repeated call has no further
    effect.
    """


class _StageRead(StageAsk, frozen=True, forbid_unknown_fields=True):
    """The request as it is decoded: `messages_in` decodes the messages one by one."""

    messages: list[msgspec.Raw]  # type: ignore[assignment]


class StageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The attributes of messages whose body is not JSON."""

    number: CallNumber | None = None
    priority: int | None = None
    delay: float | None = None
    ttl: float | None = None


class StageResult(msgspec.Struct, frozen=True):
    """The size of a stage."""

    rows: int
    """Number of rows that are staged so far."""


_decoder = json_decoder(_StageRead)


@ROUTES.raw(
    "POST",
    f"{QUEUE}/stages/{{stage}}",
    "publish",
    takes=StageAsk,
    gives=StageResult,
    also_takes=(LINES, ARROW_ROWS),
    tag="stages",
    query=StageQuery,
)
async def stage(ask: RequestContext) -> Response:
    """Upload rows that stay invisible until they are published; abandoned stages expire."""
    name, (rows, query) = ask.params["stage"], await _rows(ask)
    count = await ask.queue(
        lambda queue: queue.stage(
            name,
            rows,
            priority=query.priority,
            delay=query.delay,
            ttl=query.ttl,
            number=query.number,
        )
    )
    return Response(200, encode(StageResult(count)))


async def _rows(ask: RequestContext) -> tuple[Rows, StageQuery]:
    if ask.type not in (JSON, ""):
        query = read_query(ask, StageQuery)
        turn = (query.priority, query.delay, query.ttl)
        return await rows_in(ask, PublishQuery(), turn), query
    read_query(ask, Nothing)
    params = decode(_decoder, ask.request.body)
    return await ready(await messages_in(params.messages)), StageQuery(params.number)


class Stages(msgspec.Struct, frozen=True):
    """The stages that are neither published nor dropped, with the number of rows of each."""

    stages: dict[str, int]


@ROUTES.json("GET", f"{QUEUE}/stages", "publish", Nothing, Stages, tag="stages")
async def list_stages(ask: RequestContext, _: Nothing) -> Stages:
    """List the stages of a queue."""
    return Stages(await ask.queue(lambda queue: queue.stages()))


class PublishStagedAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stages to publish, in this order; none if a producer only records that it had no rows."""

    stages: Annotated[list[str], msgspec.Meta(max_length=limits.STAGES_MAX)]
    producer: str | None = None
    number: Number | None = None
    mode: ProducerMode = "dense"
    """`range`: (after, number] of the producer's own source, which the rows were made of."""
    after: Number | None = None
    spans: Spans | None = None
    """Instead of mode, after and number: such a range over several sources, [after, upto] for
    each.
    """


@ROUTES.json(
    "POST",
    f"{QUEUE}/publish_staged",
    "publish",
    PublishStagedAsk,
    Published,
    status=201,
    tag="stages",
)
async def publish_staged(ask: RequestContext, params: PublishStagedAsk) -> Response:
    """Publish stages: all of their rows become visible at once."""
    places = await ask.queue(
        lambda queue: queue.publish_staged(
            params.stages,
            producer=params.producer,
            number=params.number,
            mode=params.mode,
            after=params.after,
            spans=spans_in(params.spans),
        )
    )
    return many_out(places, len(places))


def spans_in(params: list[list[int]] | None) -> list[tuple[int, int]] | None:
    """Return the range over several sources, or None if there is none."""
    return None if params is None else [(span[0], span[1]) for span in params]


@ROUTES.json("DELETE", f"{QUEUE}/stages/{{stage}}", "publish", Nothing, WasThere, tag="stages")
async def drop_stage(ask: RequestContext, _: Nothing) -> WasThere:
    """Drop a stage with its rows."""
    name = ask.params["stage"]
    return WasThere(await ask.queue(lambda queue: queue.drop_stage(name)))
