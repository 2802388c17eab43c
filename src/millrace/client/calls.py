"""Settling, releasing, extending and discarding messages of several lease calls at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.grant import Keepalive
from millrace.client.lease import Call, Lease, Leases, Unseals, by_call, replaced
from millrace.client.message import Body
from millrace.client.reserved import successor_headers
from millrace.client.shards import Shards
from millrace.core import check
from millrace.core.answers import Outcome
from millrace.core.commands import Discard, Extend, Release, Settle
from millrace.errors import Forged, Refused

Make = Callable[[Call], Settle | Release | Extend | Discard]
"""What is asked about the messages of one lease call."""


async def end_calls(
    engine: Engine, shards: Shards, name: str, leases: Leases, make: Make
) -> dict[int, Refused]:
    """Ask for the messages of leases and receipts of one queue.

    Returns what was refused, by place; of a single message it is raised.

    Raises:
        Forged: a lease or receipt is not of this queue; nothing was asked.
    """
    calls = calls_of(engine, shards, name, leases)
    outcomes = await ask_each(engine, calls, make, shards.label)
    refused = {
        shards.place(call.shard, seq): error
        for call, outcome in zip(calls, outcomes, strict=True)
        for seq, error in outcome.refused.items()
    }
    if refused and isinstance(leases, Lease | str):
        # A copy: raised itself, it would hold the frames that hold the answer that it is in.
        raise refused.popitem()[1].again()
    return refused


def calls_of(engine: Unseals, shards: Shards, name: str, leases: Leases) -> list[Call]:
    """The messages of leases and receipts, by lease call.

    Raises:
        Forged: one of them is not of this queue.
    """
    calls = by_call(engine, leases)
    for call in calls:
        if call.shard not in shards:
            raise Forged(f"a lease or receipt is not of queue {name!r}", field="leases")
    return calls


async def replace_call(
    engine: Engine, keepalive: Keepalive, shards: Shards, call: Call, body: Body, lease_ms: int
) -> Lease:
    """Put another message in the place of one that is known by its receipt alone."""
    rows = await engine.rows(
        call.shard, call.seqs, limits.LEASE_BYTES_MAX, call.lease, call.history
    )
    old = rows[0] if rows else None
    headers = successor_headers(old.headers) if old else ()
    message = check.message(body, old.key if old else None, headers)
    return await replaced(engine, keepalive, shards, call, message, lease_ms)


async def ask_each(
    engine: Engine, calls: Sequence[Call], make: Make, label: str = ""
) -> list[Outcome]:
    """Ask for each lease call, some at a time; what was answered is noted, come what may."""
    if engine.telemetry is None or not calls:
        return await _ask_each(engine, calls, make)
    operation = type(make(calls[0])).__name__.lower()
    if operation == "extend":
        return await _ask_each(engine, calls, make)
    count = sum(len(call.seqs) for call in calls)
    with engine.telemetry.settling(operation, label, None if count == 1 else count) as step:
        outcomes = await _ask_each(engine, calls, make)
        for error in [error for outcome in outcomes for error in outcome.refused.values()][:1]:
            step.fail(error)
        return outcomes


async def _ask_each(engine: Engine, calls: Sequence[Call], make: Make) -> list[Outcome]:
    if len(calls) == 1:
        # At once: who asks hears of it before those whom the answer concerns.
        [call] = calls
        command = make(call)
        outcome = await engine.ask(call.shard, command, Outcome)
        call.note(command, outcome)
        return [outcome]
    outcomes: list[Outcome] = []
    for at in range(0, len(calls), limits.CALLS_AT_ONCE_MAX):
        part = [(call, make(call)) for call in calls[at : at + limits.CALLS_AT_ONCE_MAX]]
        asked = (engine.ask(call.shard, command, Outcome) for call, command in part)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for (call, command), answer in zip(part, answers, strict=True):
            if isinstance(answer, Outcome):
                call.note(command, answer)
                outcomes.append(answer)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
    return outcomes
