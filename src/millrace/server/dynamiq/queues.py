"""Queues: making, describing, changing and ending them."""

from __future__ import annotations

import msgspec

from millrace.client.millrace import engine_of
from millrace.client.queue import Queue
from millrace.client.settings import make_spec
from millrace.core import check
from millrace.core.answers import QueueRef
from millrace.core.commands import CreateQueue
from millrace.core.model import CATALOG
from millrace.core.spec import QueueSpec
from millrace.errors import Exists, NotFound
from millrace.server.dynamiq.table import QUEUE, ROUTES, SPACE, check_kind, refuse_query, with_queue
from millrace.server.dynamiq.wire import QueueOut, queue_out, settings_in, settings_of
from millrace.server.http.response import Response
from millrace.server.rest.route import Ask, Nothing, encode


class QueuesOut(msgspec.Struct, frozen=True):
    """The queues that the caller may do anything with."""

    queues: list[str]


class Deleted(msgspec.Struct, frozen=True, rename="pascal"):
    """It is gone."""

    deleted: bool = True


@ROUTES.json("GET", "/v1/queues", "known", Nothing, QueuesOut)
async def list_queues(ask: Ask, _: Nothing) -> QueuesOut:
    """The queues, in order."""
    found = await ask.desk.millrace.queues(space=SPACE)
    return QueuesOut([name for name in found if ask.sees(name)])


@ROUTES.raw("PUT", QUEUE, "manage", status=201)
async def make_queue(ask: Ask) -> Response:
    """Make a queue, with settings if there are any in the body."""
    refuse_query(ask)
    name = check.name(ask.params["queue"], "queue")
    settings = settings_of(settings_in(ask.request.body), QueueSpec())
    spec = make_spec(SPACE, {**settings, "delivery": "partitions"})
    engine = engine_of(ask.desk.millrace)
    made = await engine.ask(CATALOG, CreateQueue(SPACE, name, spec), QueueRef)
    if not made.made:
        raise Exists(f"queue {name!r} is there already; PATCH changes its settings", field="queue")
    return Response(201, encode("created"))


@ROUTES.json("GET", QUEUE, "read", Nothing, QueueOut)
async def describe_queue(ask: Ask, _: Nothing) -> QueueOut:
    """A queue's settings, and how many partitions it has."""

    async def use(queue: Queue) -> QueueOut:
        return queue_out(await queue.spec(), await queue.partitions())

    return await with_queue(ask, use)


@ROUTES.raw("PATCH", QUEUE, "manage")
async def configure_queue(ask: Ask) -> Response:
    """Change settings of a queue, at once; the others stay as they are."""
    refuse_query(ask)
    told = settings_in(ask.request.body)

    async def use(queue: Queue) -> None:
        await queue.configure(**settings_of(told, await queue.spec()))
        ask.desk.changed(queue.space, queue.name)

    await with_queue(ask, use)
    return Response(200, encode("ok"))


@ROUTES.json("DELETE", QUEUE, "manage", Nothing, Deleted)
async def delete_queue(ask: Ask, _: Nothing) -> Deleted:
    """End a queue with all that it holds."""
    name, millrace = ask.params["queue"], ask.desk.millrace
    check_kind(await millrace.find(name, space=SPACE))
    if not await millrace.delete_queue(name, space=SPACE):
        raise NotFound(f"there is no queue {name!r}", field="queue")
    return Deleted()
