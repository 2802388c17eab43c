"""CassieQ's queues: making, describing and ending them.

What a queue is like there and not here (buckets and their repair) is kept in its notes and told as
it was given; nothing follows from it.
"""

from __future__ import annotations

from contextlib import suppress

from millrace.client.queue import Queue
from millrace.decoding import json_decoder
from millrace.errors import Exists, Invalid, NotFound
from millrace.server.cassieq.bodies import (
    CreateQuery,
    NoQuery,
    QueueIn,
    QueueOut,
    Statistics,
    query_of,
)
from millrace.server.cassieq.table import QUEUE, QUEUES, ROUTES, STATISTICS
from millrace.server.http.response import Response
from millrace.server.rest.act import Act, queue_made
from millrace.server.rest.route import Ask, decode, encode

_PREFIX = "cassieq."
_DELIVERIES = 5
"""Unless the request says otherwise."""

_queue_in = json_decoder(QueueIn)


@ROUTES.raw("GET", QUEUES, "known", gives=list[QueueOut])
async def get_account_queues(ask: Ask) -> Response:
    """The queues of an account, of those that the caller may do anything with."""
    query_of(ask, NoQuery)
    space = ask.params["space"]
    found: list[QueueOut] = []
    for name in await ask.desk.millrace.queues(space=space):
        # One that goes meanwhile is not there.
        with suppress(NotFound):
            if ask.sees(name):
                found.append(await ask.desk.queue(space, name, _described))
    return Response(200, encode(found))


@ROUTES.raw("GET", QUEUE, "read", gives=QueueOut)
async def get_queue_definition(ask: Ask) -> Response:
    """A queue, as it was made."""
    query_of(ask, NoQuery)
    return Response(200, encode(await ask.queue(_described)))


@ROUTES.raw("GET", STATISTICS, "watch", gives=Statistics)
async def get_queue_statistics(ask: Ask) -> Response:
    """How many messages of a queue were not acknowledged: counted, not estimated."""
    query_of(ask, NoQuery)
    stats = await ask.queue(lambda queue: queue.stats())
    return Response(200, encode(Statistics(stats["live"])))


@ROUTES.raw("POST", QUEUES, "known", takes=QueueIn, status=201)
async def create_queue(ask: Ask) -> Response:
    """Make a queue; one of the name that is there stays as it is."""
    query = query_of(ask, CreateQuery)
    told = decode(_queue_in, ask.request.body)
    space, name = ask.params["space"], told.queue_name
    ask.check("manage", space, name)
    if told.dlq_name is not None:
        ask.check("publish", space, told.dlq_name)
    try:
        await ask.desk.millrace.find(name, space=space)
    except NotFound:
        with suppress(Exists):
            act = Act("make_queue", f"{space}/{name}", makes=queue_made(space, name))
            await ask.server.act(ask, act, lambda: _make(ask, told))
            return Response(201)
    if query.error_if_exists:
        raise Exists(f"there is a queue {name!r} already", field="queueName")
    return Response(200)


async def _make(ask: Ask, told: QueueIn) -> None:
    try:
        await ask.desk.millrace.queue(
            told.queue_name,
            space=ask.params["space"],
            max_deliveries=told.max_delivery_count or _DELIVERIES,
            dead_letter=told.dlq_name or "",
            notes=_notes(told),
        )
    except NotFound as error:
        text = f"there is no queue {told.dlq_name!r} that dead letters could go to; make it first"
        raise Invalid(text, field="dlqName") from error


@ROUTES.raw("DELETE", QUEUE, "manage")
async def delete_queue(ask: Ask) -> Response:
    """End a queue with all that it holds."""
    query_of(ask, NoQuery)
    space, name = ask.params["space"], ask.params["queue"]
    if not await ask.desk.millrace.delete_queue(name, space=space):
        raise NotFound(f"there is no queue {name!r}", field="queue")
    return Response(200)


def _notes(told: QueueIn) -> dict[str, str]:
    given: dict[str, int | bool | None] = {
        "bucketSize": told.bucket_size,
        "repairWorkerPollSeconds": told.repair_worker_poll_seconds,
        "repairWorkerBucketFinalizeTimeSeconds": told.repair_worker_bucket_finalize_time_seconds,
        "deleteBucketsAfterFinalize": told.delete_buckets_after_finalize,
        "strictFifo": told.strict_fifo,
    }
    return {
        f"{_PREFIX}{name}": str(value).lower() for name, value in given.items() if value is not None
    }


async def _described(queue: Queue) -> QueueOut:
    spec = await queue.spec()
    notes = dict(spec.notes)

    def number(name: str, usual: int) -> int:
        text = notes.get(f"{_PREFIX}{name}", "")
        # Whoever manages the queue may have written anything.
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else usual

    def flag(name: str) -> bool:
        return notes.get(f"{_PREFIX}{name}") != "false"

    version = int(queue.shards.first)
    return QueueOut(
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
