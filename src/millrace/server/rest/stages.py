"""Staging: rows that nobody sees until all of them are published at once."""

from __future__ import annotations

from typing import Annotated

import msgspec

from millrace import limits
from millrace.client.message import Rows
from millrace.core import bounds
from millrace.core.commands import ProducerMode
from millrace.decoding import json_decoder
from millrace.server.http.response import Response
from millrace.server.rest.bulk import messages_in, ready
from millrace.server.rest.message import MessageIn
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
from millrace.server.rest.route import JSON, Ask, Nothing, decode, encode, read_query
from millrace.server.rest.table import QUEUE, ROUTES

CallNumber = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
Span = Annotated[list[Number], msgspec.Meta(min_length=2, max_length=2)]
Spans = Annotated[list[Span], msgspec.Meta(min_length=1, max_length=bounds.SPANS_MAX)]


class StageAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages; they have no de-duplication ids."""

    messages: list[MessageIn]
    number: CallNumber | None = None
    """Counts the calls of the stage from 1 on, so that a repeat changes nothing."""


class _StageRead(StageAsk, frozen=True, forbid_unknown_fields=True):
    """The same as it is decoded: messages one by one, by `messages_in`."""

    messages: list[msgspec.Raw]  # type: ignore[assignment]


class StageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of messages that are not JSON: what their body does not say."""

    number: CallNumber | None = None
    priority: int | None = None
    delay: float | None = None
    ttl: float | None = None


class Staged(msgspec.Struct, frozen=True):
    """How much is staged."""

    rows: int
    """Of this stage, by now."""


_decoder = json_decoder(_StageRead)


@ROUTES.raw(
    "POST",
    f"{QUEUE}/stages/{{stage}}",
    "publish",
    takes=StageAsk,
    gives=Staged,
    also_takes=(LINES, ARROW_ROWS),
    tag="stages",
    query=StageQuery,
)
async def stage(ask: Ask) -> Response:
    """Write rows that nobody sees until they are published; what nobody publishes goes by age."""
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
    return Response(200, encode(Staged(count)))


async def _rows(ask: Ask) -> tuple[Rows, StageQuery]:
    if ask.type not in (JSON, ""):
        query = read_query(ask, StageQuery)
        turn = (query.priority, query.delay, query.ttl)
        return await rows_in(ask, PublishQuery(), turn), query
    read_query(ask, Nothing)
    told = decode(_decoder, ask.request.body)
    return await ready(await messages_in(told.messages)), StageQuery(told.number)


class Stages(msgspec.Struct, frozen=True):
    """The stages that were neither published nor dropped, and the rows of each."""

    stages: dict[str, int]


@ROUTES.json("GET", f"{QUEUE}/stages", "publish", Nothing, Stages, tag="stages")
async def list_stages(ask: Ask, _: Nothing) -> Stages:
    """The stages of a queue."""
    return Stages(await ask.queue(lambda queue: queue.stages()))


class PublishStagedAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which stages, in this order; none of them, where a producer says that nothing came."""

    stages: Annotated[list[str], msgspec.Meta(max_length=limits.STAGES_MAX)]
    producer: str | None = None
    number: Number | None = None
    mode: ProducerMode = "dense"
    """range: (after, number] of the producer's own source, which the rows were made from."""
    after: Number | None = None
    spans: Spans | None = None
    """Instead of mode, after and number: such a range over several places, [after, upto] each."""


@ROUTES.json(
    "POST",
    f"{QUEUE}/publish_staged",
    "publish",
    PublishStagedAsk,
    Published,
    status=201,
    tag="stages",
)
async def publish_staged(ask: Ask, told: PublishStagedAsk) -> Response:
    """Make stages visible, all at once."""
    places = await ask.queue(
        lambda queue: queue.publish_staged(
            told.stages,
            producer=told.producer,
            number=told.number,
            mode=told.mode,
            after=told.after,
            spans=spans_in(told.spans),
        )
    )
    return many_out(places, len(places))


def spans_in(told: list[list[int]] | None) -> list[tuple[int, int]] | None:
    """The range over several places, if there is one."""
    return None if told is None else [(span[0], span[1]) for span in told]


@ROUTES.json("DELETE", f"{QUEUE}/stages/{{stage}}", "publish", Nothing, WasThere, tag="stages")
async def drop_stage(ask: Ask, _: Nothing) -> WasThere:
    """Forget a stage."""
    name = ask.params["stage"]
    return WasThere(await ask.queue(lambda queue: queue.drop_stage(name)))
