"""Queues: create, describe, configure and delete."""

from __future__ import annotations

import msgspec

from millrace.client.millrace import engine_of
from millrace.client.queue import Queue
from millrace.client.settings import make_spec
from millrace.core import validate
from millrace.core.answers import QueueRef
from millrace.core.commands import CreateQueue
from millrace.core.format.message_id import IDS
from millrace.core.model import CATALOG
from millrace.core.spec import QueueSpec
from millrace.errors import Exists, NotFound
from millrace.server.dynamiq.route_table import (
    QUEUE,
    ROUTES,
    SPACE,
    check_kind,
    refuse_query,
    with_queue,
)
from millrace.server.dynamiq.schemas import (
    DynamiqQueue,
    queue_out,
    settings_in,
    settings_of,
    text_out,
)
from millrace.server.http.response import Response
from millrace.server.web.route import Nothing, RequestContext, encode


class QueuesOut(msgspec.Struct, frozen=True):
    """The queues on which the caller has any right."""

    queues: list[str]


class DeleteConfirmation(msgspec.Struct, frozen=True, rename="pascal"):
    """Confirmation that the object was deleted."""

    deleted: bool = True


@ROUTES.json("GET", "/v1/queues", "known", Nothing, QueuesOut)
async def list_queues(ask: RequestContext, _: Nothing) -> QueuesOut:
    """List the queues by name."""
    found = await ask.desk.millrace.queues(space=SPACE)
    return QueuesOut([name for name in found if ask.sees(name)])


@ROUTES.raw("PUT", QUEUE, "manage", status=201)
async def make_queue(ask: RequestContext) -> Response:
    """Create a queue; the body may contain settings."""
    refuse_query(ask)
    name = validate.name(ask.params["queue"], "queue")
    settings = settings_of(settings_in(ask.request.body), QueueSpec())
    spec = make_spec(SPACE, {**settings, "delivery": "partitions"})
    engine = engine_of(ask.desk.millrace)
    made = await engine.ask(CATALOG, CreateQueue(SPACE, name, spec), QueueRef)
    if not made.made:
        raise Exists(f"queue {name!r} is there already; PATCH changes its settings", field="queue")
    return Response(201, encode("created"))


@ROUTES.json("GET", QUEUE, "read", Nothing, DynamiqQueue)
async def describe_queue(ask: RequestContext, _: Nothing) -> DynamiqQueue:
    """Return a queue's settings and its number of partitions."""

    async def use(queue: Queue) -> DynamiqQueue:
        return queue_out(await queue.spec(), await queue.partitions())

    return await with_queue(ask, use)


@ROUTES.raw("PATCH", QUEUE, "manage")
async def configure_queue(ask: RequestContext) -> Response:
    """Change settings of a queue immediately; settings that are not given keep their values."""
    refuse_query(ask)
    params = settings_in(ask.request.body)

    async def use(queue: Queue) -> None:
        await queue.configure(**settings_of(params, await queue.spec()))
        ask.desk.changed(queue.space, queue.name)

    await with_queue(ask, use)
    return Response(200, encode("ok"))


@ROUTES.json("DELETE", QUEUE, "manage", Nothing, DeleteConfirmation)
async def delete_queue(ask: RequestContext, _: Nothing) -> DeleteConfirmation:
    """Delete a queue with all of its messages."""
    name, millrace = ask.params["queue"], ask.desk.millrace
    check_kind(await millrace.find(name, space=SPACE))
    if not await millrace.delete_queue(name, space=SPACE):
        raise NotFound(f"there is no queue {name!r}", field="queue")
    return DeleteConfirmation()


# --- Dynamiq's status of its nodes: here one node, which has all ids -----------------------------


@ROUTES.json("GET", "/v1/status/servers", "known", Nothing, str)
async def list_servers(ask: RequestContext, _: Nothing) -> Response:
    """List the servers, one per line: this one, with the host that the request was sent to."""
    return text_out(f"Member: millrace {ask.request.headers.get('host', '-')}\n")


class RangeOut(msgspec.Struct, frozen=True):
    """The first and the last message id of a server's range."""

    bottom: str
    top: str


@ROUTES.json("GET", "/v1/status/partitionrange", "known", Nothing, RangeOut)
async def show_range(ask: RequestContext, _: Nothing) -> RangeOut:
    """Return the range of message ids on this server."""
    return RangeOut("0", str(IDS - 1))
