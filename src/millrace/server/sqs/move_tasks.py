"""Message move tasks: SQS actions that move dead letters back in the background.

A task is a background job of the process that started it, like the jobs of REST
(`web/background_jobs.py`). Its state is stored in notes of the queue (`move_task_state.py`), so
that every process can report and cancel it. A task whose process ended is not resumed: the rest is
moved by a new task.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from millrace import limits
from millrace.client.dead_letter_headers import source_of
from millrace.client.queue import Queue
from millrace.client.redrive import permit
from millrace.core.model import Row
from millrace.errors import MillraceError, NotFound
from millrace.server.auth.acts import Act
from millrace.server.auth.audit import carry_out, outcome_of
from millrace.server.auth.current_rights import CurrentRights
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.fault import bad_value, invalid_parameter, missing_parameter
from millrace.server.clock import now_ms
from millrace.server.sqs.faults import not_found
from millrace.server.sqs.move_task_state import (
    MoveTask,
    RunningMoveTask,
    begin,
    request_cancel,
    tasks_of,
)
from millrace.server.sqs.queues import place_of_arn, sources_of
from millrace.server.sqs.schemas import (
    CancelMoveIn,
    CancelMoveOut,
    ListMovesIn,
    ListMovesOut,
    MoveOut,
    StartMoveIn,
    StartMoveOut,
)
from millrace.server.sqs.service import SQS
from millrace.server.web.background_jobs import BackgroundJob

_NO_SOURCE = "The resource that you specified for the SourceArn parameter doesn't exist."
_NO_TASK = "Task does not exist."


class MoveDestination:
    """The destination of a task's messages, and the rights that it needs."""

    def __init__(self, rights: CurrentRights, source: MoveSource, to: str | None) -> None:
        self._rights = rights
        self._source = source
        self.to = to
        """The queue that all messages go to; None: each returns to its source."""
        self._is_denied = False

    def may_go(self, row: Row) -> bool:
        """Return whether a message may be moved.

        Its source is read from its headers, which any publisher can set: the right to publish there
        is checked.
        """
        if self.to is not None:
            return True
        source = source_of(row.headers)
        may = source is not None and self._rights.may("publish", *source)
        self._is_denied = self._is_denied or not may
        return may

    def still(self, space: str, name: str) -> None:
        """Verify, while the task runs, that messages may still be moved to a queue.

        Raises:
            Denied: the user who started the task was removed, or lost a right.
        """
        self._rights.check("work", self._source.space, self._source.name)
        self._rights.check("publish", space, name)

    def failure(self, kept: int) -> str | None:
        """Return why messages were kept back, or None if none were."""
        if not kept:
            return None
        return "AccessDenied" if self._is_denied else "CouldNotDetermineMessageSource"


class MoveSource(NamedTuple):
    """The dead-letter queue whose messages are moved."""

    space: str
    name: str
    queue: Queue

    @property
    def place(self) -> tuple[str, ...]:
        """The key of its jobs in the job registry."""
        return ("sqs", self.space, self.name)


async def _source(call: AwsCall[Any], arn: str) -> MoveSource:
    """Look up the source queue of a task.

    Raises:
        Fault: the ARN is invalid, or the queue does not exist.
        Denied: the caller may not work on the queue.
    """
    if not arn:
        raise missing_parameter("SourceArn")
    place = place_of_arn(call, arn)
    if place is None:
        raise bad_value(arn[:200], "SourceArn", "It is no ARN of a queue.")
    call.check("work", *place)
    try:
        queue = await call.ask.desk.millrace.find(place[1], space=place[0])
    except NotFound as error:
        raise not_found(_NO_SOURCE) from error
    return MoveSource(*place, queue)


@SQS.action("StartMessageMoveTask", StartMoveIn, StartMoveOut)
async def start_message_move_task(call: AwsCall[StartMoveIn]) -> StartMoveOut:
    """Start a task that moves messages of a dead-letter queue to their sources, or to one queue."""
    told = call.told
    source = await _source(call, told.source_arn)
    rate = told.max_number_of_messages_per_second
    if rate is not None and not 1 <= rate <= limits.SQS_MOVE_PER_SECOND_MAX:
        raise bad_value(
            rate,
            "MaxNumberOfMessagesPerSecond",
            f"Must be from 1 to {limits.SQS_MOVE_PER_SECOND_MAX}.",
        )
    if not await sources_of(call, source.space, source.name):
        raise invalid_parameter("Source queue must be configured as a Dead Letter Queue.")
    rights = CurrentRights(call.caller.principal, call.ask.server.book)
    way = MoveDestination(rights, source, await _destination(call, source, told.destination_arn))
    redrive = source.queue.redrive(to=way.to, where=way.may_go, rate=rate)
    permit(redrive, way.still)
    now = now_ms()
    task = MoveTask(told.source_arn, now, now, "RUNNING", told.destination_arn, rate)
    id = str(uuid4())
    act = Act("start_message_move_task", f"{source.space}/{source.name}")
    noted = await call.ask.server.begin_act(call.ask, act, f"to {way.to or 'where each came from'}")
    running: RunningMoveTask | None = None
    try:
        await begin(source.queue, id, task)
        running = RunningMoveTask(source.queue, id, task, redrive, way)
        run = partial(
            carry_out,
            noted,
            running.run,
            lambda: f"{redrive.stats.moved} moved",
            is_cancelled="done",
        )
        call.ask.server.jobs.begin(call.caller.principal, source.place, running, run)
    except MillraceError as error:
        if noted is not None:
            await noted.end(outcome_of(error), error.code)
        if running is not None:
            await running.end("FAILED", error.message)
        raise
    return StartMoveOut(_handle(id, told.source_arn))


async def _destination(call: AwsCall[Any], source: MoveSource, arn: str | None) -> str | None:
    if not arn:
        return None
    place = place_of_arn(call, arn)
    if place is None:
        raise bad_value(arn[:200], "DestinationArn", "It is no ARN of a queue.")
    call.check("publish", *place)
    if place[1].endswith(".fifo") != source.name.endswith(".fifo"):
        why = "Source and destination must both be FIFO queues, or both standard queues."
        raise bad_value(arn[:200], "DestinationArn", why)
    try:
        await call.ask.desk.millrace.find(place[1], space=place[0])
    except NotFound as error:
        raise not_found(
            "The resource that you specified for the DestinationArn parameter doesn't exist."
        ) from error
    return "/".join(place)


def _handle(id: str, arn: str) -> str:
    return b64encode(msgspec.json.encode({"taskId": id, "sourceArn": arn})).decode()


def _job_of(
    call: AwsCall[Any], source: MoveSource, id: str
) -> tuple[BackgroundJob, RunningMoveTask] | None:
    """Return the background job of a task if it runs in this process and still moves messages."""
    for job in call.ask.server.jobs.of(source.place):
        subject = job.subject
        if isinstance(subject, RunningMoveTask) and subject.id == id and subject.is_moving:
            return job, subject
    return None


async def _tasks(source: MoveSource) -> dict[str, MoveTask]:
    try:
        spec = await source.queue.spec()
    except NotFound as error:
        raise not_found(_NO_SOURCE) from error
    return tasks_of(dict(spec.notes))


@SQS.action("ListMessageMoveTasks", ListMovesIn, ListMovesOut)
async def list_message_move_tasks(call: AwsCall[ListMovesIn]) -> ListMovesOut:
    """List the newest tasks of a queue, newest first."""
    told = call.told
    source = await _source(call, told.source_arn)
    most = 1 if told.max_results is None else told.max_results
    if not 1 <= most <= limits.SQS_MOVES_LISTED_MAX:
        raise bad_value(most, "MaxResults", f"Must be from 1 to {limits.SQS_MOVES_LISTED_MAX}.")
    found = list((await _tasks(source)).items())[:most]
    return ListMovesOut([_out(call, source, id, task) for id, task in found])


def _out(call: AwsCall[Any], source: MoveSource, id: str, task: MoveTask) -> MoveOut:
    mine = _job_of(call, source, id)
    if mine is not None:
        # The job has newer figures than the note.
        task = mine[1].task
    return MoveOut(
        task.status,
        task.source,
        task.started_ms,
        task.moved,
        _handle(id, task.source) if task.status == "RUNNING" else None,
        task.destination,
        task.rate,
        task.total,
        task.error,
    )


@SQS.action("CancelMessageMoveTask", CancelMoveIn, CancelMoveOut)
async def cancel_message_move_task(call: AwsCall[CancelMoveIn]) -> CancelMoveOut:
    """Cancel a task: messages that were moved stay moved, all others remain in the source."""
    if not call.told.task_handle:
        raise invalid_parameter("Value for parameter TaskHandle is invalid.")
    try:
        told = msgspec.json.decode(b64decode(call.told.task_handle, validate=True))
        id, arn = str(told["taskId"]), str(told["sourceArn"])
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise bad_value(call.told.task_handle[:200], "TaskHandle", "It is no handle.") from error
    source = await _source(call, arn)
    tasks = await _tasks(source)
    if id not in tasks:
        raise not_found(_NO_TASK)
    mine = _job_of(call, source, id)
    if mine is not None:
        job, running = mine
        running.is_called_off = True
        await job.cancel()
        return CancelMoveOut(running.task.moved)
    if tasks[id].status != "RUNNING":
        raise invalid_parameter("Only active tasks can be cancelled.")
    await request_cancel(source.queue, id)
    return CancelMoveOut(tasks[id].moved)
