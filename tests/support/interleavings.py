"""Runs a program under many interleavings of its requests to a backend in memory.

The program is the shipped code, not a model of it. Each request to the backend waits for its turn;
the explorer decides which of the waiting requests comes next, and runs the program again for every
other decision, depth first. The number of *preemptions* is bounded: how often another actor goes
on although the last one could have. Few of them find nearly all faults of concurrent programs, and
their number grows with a power of the length instead of its factorial.

A request may also be lost, before or after its effect, as often in a run as `losses` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from millrace.backend.objects import BackendUnavailable, ObjectEntry, Version
from tests.support.memory_objects import MemoryBackend

T = TypeVar("T")

TURNS_OF_THE_LOOP = 12
"""Turns of the event loop after which every actor has reached its next request."""

TURNS_OF_THE_LOOP_MAX = 10_000
"""Turns after which an actor that has no request under way waits for something that never comes."""

REQUESTS_MAX = 2_000
"""Requests of one run after which it counts as endless."""

Fault = str
"""How a request is answered: it is done, lost before its effect, or lost after it."""

DONE, LOST, ANSWER_LOST = "done", "lost", "answer lost"


class Endless(AssertionError):
    """The program waits for something that never comes, or goes on for ever."""


class _Waiting(NamedTuple):
    actor: object
    label: str
    granted: asyncio.Future[Fault]


@dataclass
class Schedule:
    """One run: the decisions to follow, and those that were taken."""

    decisions: list[int]
    preemptions_max: int
    losses_max: int
    taken: list[tuple[int, int]] = field(default_factory=list)
    """The option that was taken, and the number of options, for each decision."""
    waiting: list[_Waiting] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    _last: object = None
    _preemptions: int = 0
    _losses: int = 0

    async def turn(self, label: str) -> Fault:
        """Wait until the request may go on."""
        granted: asyncio.Future[Fault] = asyncio.get_running_loop().create_future()
        self.waiting.append(_Waiting(asyncio.current_task(), label, granted))
        return await granted

    def grant(self) -> None:
        """Let one of the waiting requests go on."""
        # The last actor comes first: to let another one go on is a preemption.
        ready = sorted(
            self.waiting, key=lambda one: (one.actor is not self._last, self.waiting.index(one))
        )
        goes_on = ready[0].actor is self._last
        if goes_on and self._preemptions >= self.preemptions_max:
            ready = ready[:1]
        faults = [DONE] if self._losses >= self.losses_max else [DONE, LOST, ANSWER_LOST]
        options = [(one, fault) for fault in faults for one in ready]
        at = len(self.taken)
        choice = self.decisions[at] if at < len(self.decisions) else 0
        self.taken.append((choice, len(options)))
        chosen, fault = options[choice]
        self._preemptions += goes_on and chosen is not ready[0]
        self._losses += fault != DONE
        self._last = chosen.actor
        self.waiting.remove(chosen)
        self.trace.append(f"{chosen.label} {fault if fault != DONE else ''}".rstrip())
        chosen.granted.set_result(fault)

    def next_decisions(self) -> list[int] | None:
        """Return the decisions of the next run; None: this was the last one."""
        taken = list(self.taken)
        while taken:
            choice, options = taken.pop()
            if choice + 1 < options:
                return [*(one for one, _ in taken), choice + 1]
        return None


class ScheduledObjects:
    """A client of a backend in memory whose requests wait for their turn."""

    def __init__(self, backend: MemoryBackend, schedule: Schedule, node: str) -> None:
        self._backend = backend
        self._schedule = schedule
        self._node = node
        self.is_free = False
        """True while requests need no turn: before the schedule begins."""

    async def create(self, name: str, data: bytes) -> Version | None:
        return await self._ask(f"create {name}", lambda: self._backend.create(name, data))

    async def replace(self, name: str, data: bytes, version: Version) -> Version | None:
        return await self._ask(
            f"replace {name}", lambda: self._backend.replace(name, data, version)
        )

    async def read(self, name: str) -> tuple[bytes, Version] | None:
        return await self._ask(f"read {name}", lambda: self._backend.read(name))

    async def read_range(self, name: str, start: int, length: int) -> bytes | None:
        found = await self.read(name)
        return None if found is None else found[0][start : start + length]

    async def entries(self, prefix: str) -> list[ObjectEntry]:
        return await self._ask(f"list {prefix}", lambda: self._backend.entries(prefix))

    async def delete(self, name: str) -> None:
        await self._ask(f"delete {name}", lambda: self._backend.delete(name))

    async def _ask(self, label: str, request: Callable[[], T]) -> T:
        fault = DONE if self.is_free else await self._schedule.turn(f"{self._node}: {label}")
        if fault == LOST:
            raise BackendUnavailable("it was lost")
        result = request()
        if fault == ANSWER_LOST:
            raise BackendUnavailable("its answer was lost")
        return result


Program = Callable[[Schedule], Awaitable[Callable[[], None]]]
"""Starts from an empty backend; returns a check of the final state."""


def run(program: Program, schedule: Schedule) -> None:
    """Run a program once, as a schedule decides."""
    asyncio.run(_run(program, schedule))


def explore(
    program: Program, *, preemptions: int = 2, losses: int = 0, runs_max: int = 100_000
) -> int:
    """Run a program under all interleavings within the bounds; return their number.

    Raises:
        AssertionError: a check failed; the message has the requests in their order.
    """
    decisions: list[int] | None = []
    runs = 0
    while decisions is not None and runs < runs_max:
        schedule = Schedule(decisions, preemptions, losses)
        try:
            asyncio.run(_run(program, schedule))
        except AssertionError as error:
            trace = "\n".join(schedule.trace[:200])
            raise AssertionError(f"{error}\nin run {runs + 1}:\n{trace}") from error
        decisions = schedule.next_decisions()
        runs += 1
    return runs


async def _run(program: Program, schedule: Schedule) -> None:
    task = asyncio.ensure_future(program(schedule))
    for _ in range(REQUESTS_MAX):
        for turn in range(TURNS_OF_THE_LOOP_MAX):
            await asyncio.sleep(0)
            if task.done() or (schedule.waiting and turn >= TURNS_OF_THE_LOOP):
                break
        if task.done():
            (await task)()
            return
        if not schedule.waiting:
            await _cancel(task)
            raise Endless("the program waits for something that never comes")
        schedule.grant()
    await _cancel(task)
    raise Endless(f"the program goes on after {REQUESTS_MAX} requests")


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def no_pause(seconds: float) -> None:
    """Backoff without waiting: the explorer decides when a request is sent again."""
