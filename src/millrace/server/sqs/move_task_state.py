"""State of message move tasks, stored in notes of the source queue, so that every process sees it.

Rule 1: only the process that runs a task writes its progress. A task without progress for
`SQS_MOVE_LOST_SECONDS` is reported as failed: its process has ended. Messages
that were moved stay moved, the rest stays in the source.
Rule 2: a queue has one running task at a time. This is checked where all changes of the queue are
serialized.
Rule 3: to cancel a task of another process, a note is written, which that process finds when it
writes its progress the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, Protocol

import msgspec

from millrace import limits
from millrace.client.queue import Queue, configure_notes
from millrace.client.redrive import Redrive
from millrace.core.notes import NotesLimit
from millrace.decoding import json_decoder
from millrace.errors import MillraceError, TooLarge
from millrace.server.aws.fault import invalid_parameter
from millrace.server.aws.queue_info import PREFIX
from millrace.server.clock import now_ms

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
