"""Settling, releasing and extending messages of several lease calls at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.lease import Call, Lease, Leases
from millrace.core.commands import Discard, Extend, Outcome, Release, Settle
from millrace.core.model import ShardId
from millrace.errors import Refused

Make = Callable[[Call], Settle | Release | Extend | Discard]
"""What is asked about the messages of one lease call."""


async def ask_each(
    engine: Engine, shard: ShardId, calls: Sequence[Call], make: Make
) -> list[Outcome]:
    """Ask for each lease call, some at a time; what was answered is noted, come what may."""
    if len(calls) == 1:
        # At once: who asks hears of it before those whom the answer concerns.
        [call] = calls
        command = make(call)
        outcome = await engine.ask(shard, command, Outcome)
        call.note(command, outcome)
        return [outcome]
    outcomes: list[Outcome] = []
    for at in range(0, len(calls), limits.CALLS_AT_ONCE_MAX):
        part = [(call, make(call)) for call in calls[at : at + limits.CALLS_AT_ONCE_MAX]]
        asked = (engine.ask(shard, command, Outcome) for _, command in part)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for (call, command), answer in zip(part, answers, strict=True):
            if isinstance(answer, Outcome):
                call.note(command, answer)
                outcomes.append(answer)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
    return outcomes


def refusals(leases: Leases, outcomes: Iterable[Outcome]) -> dict[int, Refused]:
    """What was refused; of a single one it is raised."""
    refused = {seq: error for outcome in outcomes for seq, error in outcome.refused.items()}
    if refused and isinstance(leases, Lease | str):
        raise refused.popitem()[1]
    return refused
