"""Tasks that move messages, as notes of the queue that they take from: every process sees them.

Rule 1: the process that runs a task writes how far it has come, and nobody else does. One that has
not done so for a while has ended, and its task has failed: what was moved is moved, the rest is
where it was.
Rule 2: only one task of a queue runs: that is judged where all changes of the queue are in turn.
Rule 3: whoever calls off the task of another process leaves a note, which is found with the next
word of how far it has come.
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
from millrace.core.notes import Most
from millrace.decoding import json_decoder
from millrace.errors import MillraceError, TooLarge
from millrace.server.aws.fault import invalid_parameter
from millrace.server.aws.known import PREFIX
from millrace.server.clock import now_ms

RUNNING = f"{PREFIX}moving:"
ENDED = f"{PREFIX}moved:"
CALLED_OFF = f"{PREFIX}called-off:"
_ONE = Most(RUNNING, 1)
_LOST = "The server ended while the task was running; what was moved is moved."

Status = Literal["RUNNING", "COMPLETED", "CANCELLING", "CANCELLED", "FAILED"]


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task, as it stands in its note."""

    source: str
    started_ms: int
    seen_ms: int
    """When it was written how far it has come."""
    status: Status = "RUNNING"
    destination: str | None = None
    rate: int | None = None
    moved: int = 0
    total: int = 0
    error: str | None = None

    @property
    def text(self) -> str:
        """The text of its note."""
        return msgspec.json.encode(self).decode()


_task = json_decoder(Task)


def tasks_of(notes: Mapping[str, str]) -> dict[str, Task]:
    """The tasks that notes tell of, by their ids, newest first."""
    found: dict[str, Task] = {}
    for name, text in notes.items():
        prefix = next((one for one in (RUNNING, ENDED) if name.startswith(one)), None)
        if prefix is not None:
            # Notes are also written by other APIs: what is no task is passed over.
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
    """The changes after which notes tell of no lost task as running, and of no more than a list."""
    tasks = tasks_of(notes)
    changed: dict[str, str] = {}
    for id, task in tasks.items():
        if task.status == "FAILED" and RUNNING + id in notes:
            changed |= {RUNNING + id: "", ENDED + id: task.text}
    ended = [id for id, task in tasks.items() if task.status not in ("RUNNING", "CANCELLING")]
    # One more is about to be told of.
    changed |= dict.fromkeys((ENDED + id for id in ended[limits.SQS_MOVES_LISTED_MAX - 1 :]), "")
    for name in notes:
        if name.startswith(CALLED_OFF) and RUNNING + name.removeprefix(CALLED_OFF) not in notes:
            changed[name] = ""
    return changed


async def begin(queue: Queue, id: str, task: Task) -> None:
    """Write down that a task runs.

    Raises:
        Fault: another one runs.
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


async def call_off(queue: Queue, id: str) -> None:
    """Have whoever runs a task end it soon."""
    await configure_notes(queue, {CALLED_OFF + id: str(now_ms())})


class Failing(Protocol):
    """Knows why messages of a task stay."""

    def failure(self, kept: int) -> str | None:
        """Why so many were not to be moved; None: there were none."""
        ...


class Running:
    """A task that this process runs."""

    def __init__(self, queue: Queue, id: str, task: Task, redrive: Redrive, way: Failing) -> None:
        self.id = id
        self._queue = queue
        self._begun = task
        self._redrive = redrive
        self._way = way
        self.is_called_off = False
        self.is_moving = True

    @property
    def task(self) -> Task:
        """It, as far as it has come."""
        stats = self._redrive.stats
        return msgspec.structs.replace(
            self._begun, moved=stats.moved, total=stats.total, seen_ms=now_ms()
        )

    async def run(self) -> None:
        """Move the messages, and write down how that goes and ends.

        Raises:
            MillraceError: what kept them from being moved.
        """
        task = asyncio.current_task()
        assert task is not None
        telling = asyncio.create_task(self._tell(task))
        try:
            try:
                await self._redrive.run()
            finally:
                # Before its end is written down: nothing comes after that.
                telling.cancel()
                self.is_moving = False
        except MillraceError as error:
            await self.end("FAILED", error.message)
            raise
        except asyncio.CancelledError:
            if self.is_called_off:
                await self.end("CANCELLED")
            raise
        # What could go has gone.
        failure = self._way.failure(self._redrive.stats.kept)
        await self.end("COMPLETED" if failure is None else "FAILED", failure)

    async def _tell(self, task: asyncio.Task[None]) -> None:
        """Write down how far it has come, and call it off where that is asked for."""
        while True:
            await asyncio.sleep(limits.SQS_MOVE_TOLD_SECONDS)
            note = {RUNNING + self.id: self.task.text}
            try:
                spec = await configure_notes(self._queue, note, _ONE)
            except TooLarge:
                # It was taken for lost, and another one runs.
                task.cancel()
                return
            except MillraceError:
                # The next word may come through; without any it is taken for lost.
                continue
            if CALLED_OFF + self.id in dict(spec.notes):
                self.is_called_off = True
                task.cancel()
                return

    async def end(self, status: Status, error: str | None = None) -> None:
        """Write down what became of it; where that cannot be, it is taken for lost."""
        ended = msgspec.structs.replace(self.task, status=status, error=error)
        names = {RUNNING + self.id: "", CALLED_OFF + self.id: "", ENDED + self.id: ended.text}
        with suppress(MillraceError):
            changed = _tidied(dict((await self._queue.spec()).notes))
            await configure_notes(self._queue, changed | names)
