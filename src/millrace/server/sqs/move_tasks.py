"""Message move tasks: SQS actions that move dead letters back in the background.

A task is a background job of the process that started it, like the jobs of REST
(`web/background_jobs.py`). Its state is stored in notes of the queue (`RunningMoveTask`), so
that every process can report and cancel it. A task whose process ended is not resumed: the rest is
moved by a new task.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol
from uuid import uuid4

import msgspec

from millrace import limits
from millrace.client.dead_letter_headers import source_of
from millrace.client.queue import Queue, configure_notes
from millrace.client.redrive import Redrive, permit
from millrace.core.model import Row
from millrace.core.notes import NotesLimit
from millrace.decoding import json_decoder
from millrace.errors import MillraceError, NotFound, TooLarge
from millrace.server.auth.audit import Act, carry_out, outcome_of
from millrace.server.auth.store import CurrentRights
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.fault import bad_value, invalid_parameter, missing_parameter
from millrace.server.aws.queue_info import PREFIX
from millrace.server.clock import now_ms
from millrace.server.sqs.faults import not_found
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


# -------------------------------------------------------------------------------------------------
# State of message move tasks, stored in notes of the source queue, so that every process sees it.
#
# Rule 1: only the process that runs a task writes its progress. A task without progress for
# `SQS_MOVE_LOST_SECONDS` is reported as failed: its process has ended. Messages that were moved
# stay moved, the rest stays in the source.
# Rule 2: a queue has one running task at a time. This is checked where all changes of the queue
# are serialized.
# Rule 3: to cancel a task of another process, a note is written, which that process finds when it
# writes its progress the next time.

RUNNING = f"{PREFIX}moving:"
ENDED = f"{PREFIX}moved:"
CALLED_OFF = f"{PREFIX}called-off:"
_ONE = NotesLimit(RUNNING, 1)
_LOST = "The server ended while the task was running; what was moved is moved."

Status = Literal["RUNNING", "COMPLETED", "CANCELLING", "CANCELLED", "FAILED"]


class MoveTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a task, as encoded in its note."""

    source: str
    started_ms: int
    seen_ms: int
    """Time of the last progress report in milliseconds."""
    status: Status = "RUNNING"
    destination: str | None = None
    rate: int | None = None
    moved: int = 0
    total: int = 0
    error: str | None = None

    @property
    def text(self) -> str:
        """The state encoded for its note."""
        return msgspec.json.encode(self).decode()


_task = json_decoder(MoveTask)


def tasks_of(notes: Mapping[str, str]) -> dict[str, MoveTask]:
    """Return the tasks in a queue's notes by id, newest first."""
    found: dict[str, MoveTask] = {}
    for name, text in notes.items():
        prefix = next((one for one in (RUNNING, ENDED) if name.startswith(one)), None)
        if prefix is not None:
            # Other APIs can write notes too: invalid ones are ignored.
            with suppress(msgspec.MsgspecError, ValueError):
                found[name.removeprefix(prefix)] = _task.decode(text)
    now = now_ms()
    for id, task in found.items():
        if task.status != "RUNNING":
            continue
        if now - task.seen_ms > limits.SQS_MOVE_LOST_SECONDS * 1000:
            found[id] = msgspec.structs.replace(task, status="FAILED", error=_LOST)
        elif CALLED_OFF + id in notes:
            found[id] = msgspec.structs.replace(task, status="CANCELLING")
    return dict(sorted(found.items(), key=lambda item: -item[1].started_ms))


def _tidied(notes: Mapping[str, str]) -> dict[str, str]:
    """Return the changes of notes that mark lost tasks as failed and drop the oldest ended ones."""
    tasks = tasks_of(notes)
    changed: dict[str, str] = {}
    for id, task in tasks.items():
        if task.status == "FAILED" and RUNNING + id in notes:
            changed |= {RUNNING + id: "", ENDED + id: task.text}
    ended = [id for id, task in tasks.items() if task.status not in ("RUNNING", "CANCELLING")]
    # Leaves room for the task that is about to be added.
    changed |= dict.fromkeys((ENDED + id for id in ended[limits.SQS_MOVES_LISTED_MAX - 1 :]), "")
    for name in notes:
        if name.startswith(CALLED_OFF) and RUNNING + name.removeprefix(CALLED_OFF) not in notes:
            changed[name] = ""
    return changed


async def begin(queue: Queue, id: str, task: MoveTask) -> None:
    """Record that a task runs.

    Raises:
        Fault: another task of the queue runs.
    """
    changed = _tidied(dict((await queue.spec()).notes))
    try:
        await configure_notes(queue, changed | {RUNNING + id: task.text}, _ONE)
    except TooLarge as error:
        if error.limit != _ONE.count:
            raise
        raise invalid_parameter(
            "There is already a task running. Only one active task is allowed for a source queue "
            "arn at a given time."
        ) from error


async def request_cancel(queue: Queue, id: str) -> None:
    """Request the cancellation of a task that another process runs."""
    await configure_notes(queue, {CALLED_OFF + id: str(now_ms())})


class FailureReason(Protocol):
    """Explains why messages of a task were kept back."""

    def failure(self, kept: int) -> str | None:
        """Return why messages were kept back, or None if none were."""
        ...


class RunningMoveTask:
    """A task that this process runs."""

    def __init__(
        self, queue: Queue, id: str, task: MoveTask, redrive: Redrive, way: FailureReason
    ) -> None:
        self.id = id
        self._queue = queue
        self._begun = task
        self._redrive = redrive
        self._way = way
        self.is_called_off = False
        self.is_moving = True

    @property
    def task(self) -> MoveTask:
        """The state of the task with its present progress."""
        stats = self._redrive.stats
        return msgspec.structs.replace(
            self._begun, moved=stats.moved, total=stats.total, seen_ms=now_ms()
        )

    async def run(self) -> None:
        """Move the messages, and record progress and outcome.

        Raises:
            MillraceError: the move failed.
        """
        task = asyncio.current_task()
        assert task is not None
        telling = asyncio.create_task(self._tell(task))
        try:
            try:
                await self._redrive.run()
            finally:
                # Stopped before the outcome is recorded: no progress may overwrite it.
                telling.cancel()
                self.is_moving = False
        except MillraceError as error:
            await self.end("FAILED", error.message)
            raise
        except asyncio.CancelledError:
            if self.is_called_off:
                await self.end("CANCELLED")
            raise
        failure = self._way.failure(self._redrive.stats.kept)
        await self.end("COMPLETED" if failure is None else "FAILED", failure)

    async def _tell(self, task: asyncio.Task[None]) -> None:
        """Record progress periodically, and cancel the task if another process requested it."""
        while True:
            await asyncio.sleep(limits.SQS_MOVE_TOLD_SECONDS)
            note = {RUNNING + self.id: self.task.text}
            try:
                spec = await configure_notes(self._queue, note, _ONE)
            except TooLarge:
                # Another process took the task for lost and started a new one.
                task.cancel()
                return
            except MillraceError:
                # The next report may succeed; without any for too long, the task is taken for lost.
                continue
            if CALLED_OFF + self.id in dict(spec.notes):
                self.is_called_off = True
                task.cancel()
                return

    async def end(self, status: Status, error: str | None = None) -> None:
        """Record the outcome. If that fails, the task is later reported as lost."""
        ended = msgspec.structs.replace(self.task, status=status, error=error)
        names = {RUNNING + self.id: "", CALLED_OFF + self.id: "", ENDED + self.id: ended.text}
        with suppress(MillraceError):
            changed = _tidied(dict((await self._queue.spec()).notes))
            await configure_notes(self._queue, changed | names)
