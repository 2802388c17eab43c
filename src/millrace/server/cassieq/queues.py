"""CassieQ's queues: create, describe and delete.

Settings that exist only in CassieQ (buckets and their repair) are stored in the queue's notes and
returned as they were given; they have no effect.
"""

from __future__ import annotations

from contextlib import suppress

from millrace.client.queue import Queue
from millrace.decoding import json_decoder
from millrace.errors import Exists, Invalid, NotFound
from millrace.server.auth.audit import Act, queue_made
from millrace.server.cassieq.route_table import (
    QUEUE,
    QUEUES,
    ROUTES,
    STATISTICS,
)
from millrace.server.cassieq.schemas import (
    CassieqQueue,
    CreateQuery,
    NoQuery,
    QueueIn,
    Statistics,
    query_of,
)
from millrace.server.http.response import Response
from millrace.server.web.route import RequestContext, decode, encode

_PREFIX = "cassieq."
_DELIVERIES = 5
"""The default limit of deliveries."""

_queue_in = json_decoder(QueueIn)


@ROUTES.raw("GET", QUEUES, "known", gives=list[CassieqQueue])
async def get_account_queues(ask: RequestContext) -> Response:
    """List an account's queues, as far as the caller has any right on them."""
    query_of(ask, NoQuery)
    space = ask.params["space"]
    found: list[CassieqQueue] = []
    for name in await ask.desk.millrace.queues(space=space):
        # A queue that is deleted during the listing is left out.
        with suppress(NotFound):
            if ask.sees(name):
                found.append(await ask.desk.queue(space, name, _described))
    return Response(200, encode(found))


@ROUTES.raw("GET", QUEUE, "read", gives=CassieqQueue)
async def get_queue_definition(ask: RequestContext) -> Response:
    """Return a queue's definition."""
    query_of(ask, NoQuery)
    return Response(200, encode(await ask.queue(_described)))


@ROUTES.raw("GET", STATISTICS, "watch", gives=Statistics)
async def get_queue_statistics(ask: RequestContext) -> Response:
    """Count a queue's unacknowledged messages exactly."""
    query_of(ask, NoQuery)
    stats = await ask.queue(lambda queue: queue.stats())
    return Response(200, encode(Statistics(stats["live"])))


@ROUTES.raw("POST", QUEUES, "known", takes=QueueIn, status=201)
async def create_queue(ask: RequestContext) -> Response:
    """Create a queue; an existing queue of that name is left unchanged."""
    query = query_of(ask, CreateQuery)
    params = decode(_queue_in, ask.request.body)
    space, name = ask.params["space"], params.queue_name
    ask.check("manage", space, name)
    if params.dlq_name is not None:
        ask.check("publish", space, params.dlq_name)
    try:
        await ask.desk.millrace.find(name, space=space)
    except NotFound:
        with suppress(Exists):
            act = Act("make_queue", f"{space}/{name}", makes=queue_made(space, name))
            await ask.server.act(ask, act, lambda: _make(ask, params))
            return Response(201)
    if query.error_if_exists:
        raise Exists(f"there is a queue {name!r} already", field="queueName")
    return Response(200)


async def _make(ask: RequestContext, params: QueueIn) -> None:
    try:
        await ask.desk.millrace.queue(
            params.queue_name,
            space=ask.params["space"],
            max_deliveries=params.max_delivery_count or _DELIVERIES,
            dead_letter=params.dlq_name or "",
            notes=_notes(params),
        )
    except NotFound as error:
        text = f"there is no queue {params.dlq_name!r} that dead letters could go to; make it first"
        raise Invalid(text, field="dlqName") from error


@ROUTES.raw("DELETE", QUEUE, "manage")
async def delete_queue(ask: RequestContext) -> Response:
    """Delete a queue with all of its messages."""
    query_of(ask, NoQuery)
    space, name = ask.params["space"], ask.params["queue"]
    if not await ask.desk.millrace.delete_queue(name, space=space):
        raise NotFound(f"there is no queue {name!r}", field="queue")
    return Response(200)


def _notes(params: QueueIn) -> dict[str, str]:
    given: dict[str, int | bool | None] = {
        "bucketSize": params.bucket_size,
        "repairWorkerPollSeconds": params.repair_worker_poll_seconds,
        "repairWorkerBucketFinalizeTimeSeconds": params.repair_worker_bucket_finalize_time_seconds,
        "deleteBucketsAfterFinalize": params.delete_buckets_after_finalize,
        "strictFifo": params.strict_fifo,
    }
    return {
        f"{_PREFIX}{name}": str(value).lower() for name, value in given.items() if value is not None
    }


async def _described(queue: Queue) -> CassieqQueue:
    spec = await queue.spec()
    notes = dict(spec.notes)

    def number(name: str, usual: int) -> int:
        text = notes.get(f"{_PREFIX}{name}", "")
        # Users with the right `manage` can write any text into notes.
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else usual

    def flag(name: str) -> bool:
        return notes.get(f"{_PREFIX}{name}") != "false"

    version = int(queue.shards.first)
    return CassieqQueue(
        account_name=queue.space,
        queue_name=queue.name,
        id=f"{queue.space}:{queue.name}_v{version}",
        version=version,
        max_delivery_count=spec.max_deliveries,
        dlq_name=spec.dead_letter.rpartition("/")[2] or None,
        bucket_size=number("bucketSize", 20),
        repair_worker_poll_frequency_seconds=number("repairWorkerPollSeconds", 5),
        repair_worker_tombstoned_bucket_timeout_seconds=number(
            "repairWorkerBucketFinalizeTimeSeconds", 15
        ),
        delete_buckets_after_finalization=flag("deleteBucketsAfterFinalize"),
        strict_fifo=flag("strictFifo"),
    )
