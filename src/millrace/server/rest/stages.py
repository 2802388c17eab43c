"""Staging: rows that nobody sees until all of them are published at once."""

from __future__ import annotations

from typing import Annotated

import msgspec

from millrace import limits
from millrace.client.message import Message, Rows
from millrace.core.commands import ProducerMode
from millrace.server.http.response import Response
from millrace.server.rest.message import MessageIn, message_in
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


class StageAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages; they have neither priority, delay, ttl nor de-duplication id of their own."""

    messages: list[MessageIn]


class Staged(msgspec.Struct, frozen=True):
    """How much is staged."""

    rows: int
    """Of this stage, by now."""


_decoder = msgspec.json.Decoder(StageAsk)


@ROUTES.raw(
    "POST",
    f"{QUEUE}/stages/{{stage}}",
    "publish",
    takes=StageAsk,
    gives=Staged,
    also_takes=(LINES, ARROW_ROWS),
    tag="stages",
)
async def stage(ask: Ask) -> Response:
    """Write rows that nobody sees until they are published; what nobody publishes goes by age."""
    name, rows = ask.params["stage"], _rows(ask)
    return Response(200, encode(Staged(await ask.queue(lambda queue: queue.stage(name, rows)))))


def _rows(ask: Ask) -> Rows:
    read_query(ask, Nothing)
    if ask.type not in (JSON, ""):
        return rows_in(ask, PublishQuery())
    told = decode(_decoder, ask.request.body)
    messages: list[Message] = [message_in(one) for one in told.messages]
    return messages


class Stages(msgspec.Struct, frozen=True):
    """The stages that were neither published nor dropped, and the rows of each."""

    stages: dict[str, int]


@ROUTES.json("GET", f"{QUEUE}/stages", "publish", Nothing, Stages, tag="stages")
async def list_stages(ask: Ask, _: Nothing) -> Stages:
    """The stages of a queue."""
    return Stages(await ask.queue(lambda queue: queue.stages()))


class PublishStagedAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which stages, in this order."""

    stages: Annotated[list[str], msgspec.Meta(min_length=1, max_length=limits.STAGES_MAX)]
    producer: str | None = None
    number: Number | None = None
    mode: ProducerMode = "dense"
    """range: (after, number] of the producer's own source, which the rows were made from."""
    after: Number | None = None


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
        )
    )
    return many_out(places, len(places))


@ROUTES.json("DELETE", f"{QUEUE}/stages/{{stage}}", "publish", Nothing, WasThere, tag="stages")
async def drop_stage(ask: Ask, _: Nothing) -> WasThere:
    """Forget a stage."""
    name = ask.params["stage"]
    return WasThere(await ask.queue(lambda queue: queue.drop_stage(name)))
