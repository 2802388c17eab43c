"""Moving dead letters back: tasks that go on beside calls, can be watched, and called off.

They are jobs of the process that began them, as those of REST are (`rest/jobs.py`): what was moved
when the process ends is moved, the rest is where it was, and whoever wants it moved starts another.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, NamedTuple

import msgspec

from millrace import limits
from millrace.client.redrive import Redrive, source_of
from millrace.core.model import Row
from millrace.errors import NotFound
from millrace.server.aws.calls import Call
from millrace.server.aws.fault import bad_value, invalid_parameter, missing_parameter
from millrace.server.aws.known import Known
from millrace.server.clock import now_ms
from millrace.server.rest.jobs import Job, Jobs
from millrace.server.sqs.faults import not_found
from millrace.server.sqs.queues import place_of_arn, sources_of
from millrace.server.sqs.service import SQS
from millrace.server.sqs.shapes import (
    CancelMoveIn,
    CancelMoveOut,
    ListMovesIn,
    ListMovesOut,
    MoveOut,
    StartMoveIn,
    StartMoveOut,
)

_STATUS = {
    "running": "RUNNING",
    "done": "COMPLETED",
    "failed": "FAILED",
    "cancelled": "CANCELLED",
}
_NO_SOURCE = "The resource that you specified for the SourceArn parameter doesn't exist."
_NO_TASK = "Task does not exist."


class Move(NamedTuple):
    """A task, as whoever began it asked for it."""

    redrive: Redrive
    source: str
    destination: str | None
    rate: int | None
    started_ms: int


async def _source(call: Call[Any], arn: str) -> tuple[str, str]:
    """Space and name of the queue whose dead letters are moved; the caller may work on it."""
    if not arn:
        raise missing_parameter("SourceArn")
    place = place_of_arn(call, arn)
    if place is None:
        raise bad_value(arn[:200], "SourceArn", "It is no ARN of a queue.")
    call.check("work", *place)
    try:
        await call.ask.desk.millrace.find(place[1], space=place[0])
    except NotFound as error:
        raise not_found(_NO_SOURCE) from error
    return place


@SQS.action("StartMessageMoveTask", StartMoveIn, StartMoveOut)
async def start_message_move_task(call: Call[StartMoveIn]) -> StartMoveOut:
    """Move the messages of a dead-letter queue to where they came from, or to another queue."""
    told, jobs = call.told, call.ask.server.jobs
    space, name = await _source(call, told.source_arn)
    rate = told.max_number_of_messages_per_second
    if rate is not None and not 1 <= rate <= limits.SQS_MOVE_PER_SECOND_MAX:
        raise bad_value(
            rate,
            "MaxNumberOfMessagesPerSecond",
            f"Must be from 1 to {limits.SQS_MOVE_PER_SECOND_MAX}.",
        )
    if not await sources_of(call, space, name):
        raise invalid_parameter("Source queue must be configured as a Dead Letter Queue.")
    to = await _destination(call, told.destination_arn)

    async def use(known: Known) -> Redrive:
        return known.queue.redrive(to=to, where=lambda row: _may_go(call, to, row), rate=rate)

    redrive = await call.aws.directory.use(space, name, use)
    _see_none_runs(jobs, space, name)
    move = Move(redrive, told.source_arn, told.destination_arn, rate, now_ms())
    job = jobs.begin(_place(space, name), move, redrive.run)
    return StartMoveOut(_handle(job, told.source_arn))


def _see_none_runs(jobs: Jobs, space: str, name: str) -> None:
    """To be followed by the beginning at once: whoever waits in between is overtaken."""
    if any(job.state == "running" for job in jobs.of(_place(space, name))):
        raise invalid_parameter(
            "There is already a task running. Only one active task is allowed for a source queue "
            "arn at a given time."
        )


async def _destination(call: Call[Any], arn: str | None) -> str | None:
    if not arn:
        return None
    place = place_of_arn(call, arn)
    if place is None:
        raise bad_value(arn[:200], "DestinationArn", "It is no ARN of a queue.")
    call.check("publish", *place)
    try:
        await call.ask.desk.millrace.find(place[1], space=place[0])
    except NotFound as error:
        raise not_found(
            "The resource that you specified for the DestinationArn parameter doesn't exist."
        ) from error
    return "/".join(place)


def _may_go(call: Call[Any], to: str | None, row: Row) -> bool:
    """Headers say where a message came from, and headers are whatever somebody has published."""
    if to is not None:
        return True
    source = source_of(row.headers)
    return source is not None and call.may("publish", *source)


def _place(space: str, name: str) -> tuple[str, ...]:
    return ("sqs", space, name)


def _handle(job: Job, arn: str) -> str:
    return b64encode(msgspec.json.encode({"taskId": job.id, "sourceArn": arn})).decode()


@SQS.action("ListMessageMoveTasks", ListMovesIn, ListMovesOut)
async def list_message_move_tasks(call: Call[ListMovesIn]) -> ListMovesOut:
    """The newest tasks of a queue, newest first."""
    told = call.told
    space, name = await _source(call, told.source_arn)
    most = 1 if told.max_results is None else told.max_results
    if not 1 <= most <= limits.SQS_MOVES_LISTED_MAX:
        raise bad_value(most, "MaxResults", f"Must be from 1 to {limits.SQS_MOVES_LISTED_MAX}.")
    found = call.ask.server.jobs.of(_place(space, name))
    return ListMovesOut([_out(job) for job in reversed(found)][:most])


def _out(job: Job) -> MoveOut:
    move = job.subject
    assert isinstance(move, Move)
    stats = move.redrive.stats
    is_running = job.state == "running"
    return MoveOut(
        _STATUS[job.state],
        move.source,
        move.started_ms,
        stats.moved,
        _handle(job, move.source) if is_running else None,
        move.destination,
        move.rate,
        stats.total,
        None if job.error is None else job.error.message,
    )


@SQS.action("CancelMessageMoveTask", CancelMoveIn, CancelMoveOut)
async def cancel_message_move_task(call: Call[CancelMoveIn]) -> CancelMoveOut:
    """Call a task off: what was moved is moved, everything else is where it was."""
    try:
        told = msgspec.json.decode(b64decode(call.told.task_handle, validate=True))
        task, arn = str(told["taskId"]), str(told["sourceArn"])
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise bad_value(call.told.task_handle[:200], "TaskHandle", "It is no handle.") from error
    place = await _source(call, arn)
    try:
        job = call.ask.server.jobs.get(_place(*place), task)
    except NotFound as error:
        raise not_found(_NO_TASK) from error
    if job.state != "running":
        raise invalid_parameter("Only active tasks can be cancelled.")
    await job.cancel()
    return CancelMoveOut(_out(job).moved)
