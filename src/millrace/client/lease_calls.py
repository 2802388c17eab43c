"""Settle, release, extend or discard messages of several lease calls in one operation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.lease import (
    Lease,
    LeaseCall,
    Leases,
    ReceiptReader,
    lease_calls_of,
    replace_message,
)
from millrace.client.lease_group import Keepalive
from millrace.client.message import Body
from millrace.client.reserved import successor_headers
from millrace.client.shards import Shards
from millrace.core import validate
from millrace.core.answers import Outcome
from millrace.core.commands import Discard, Extend, Release, Settle
from millrace.errors import Forged, Refused

Make = Callable[[LeaseCall], Settle | Release | Extend | Discard]
"""Makes the command for the messages of one lease call."""


async def apply_to_leases(
    engine: Engine, shards: Shards, name: str, leases: Leases, make: Make
) -> dict[int, Refused]:
    """Send a command for each lease call of leases and receipts of one queue.

    Returns the refusals by seq; that of a single lease is raised.

    Raises:
        Forged: a lease or receipt is not of this queue; nothing was sent.
    """
    calls = group_by_call(engine, shards, name, leases)
    outcomes = await submit_each(engine, calls, make, shards.label)
    refused = {
        shards.place(call.shard, seq): error
        for call, outcome in zip(calls, outcomes, strict=True)
        for seq, error in outcome.refused.items()
    }
    if refused and isinstance(leases, Lease | str):
        # A copy: the stored error would form a reference cycle with the frames of its traceback.
        raise refused.popitem()[1].again()
    return refused


def group_by_call(
    engine: ReceiptReader, shards: Shards, name: str, leases: Leases
) -> list[LeaseCall]:
    """Return the messages of leases and receipts, grouped by lease call.

    Raises:
        Forged: one of them is not of this queue.
    """
    calls = lease_calls_of(engine, leases)
    for call in calls:
        if call.shard not in shards:
            raise Forged(f"a lease or receipt is not of queue {name!r}", field="leases")
    return calls


async def replace_call(
    engine: Engine, keepalive: Keepalive, shards: Shards, call: LeaseCall, body: Body, lease_ms: int
) -> Lease:
    """Replace a message known only by its receipt; return the lease of its successor."""
    rows = await engine.rows(
        call.shard, call.seqs, limits.LEASE_BYTES_MAX, call.lease, call.history
    )
    old = rows[0] if rows else None
    headers = successor_headers(old.headers) if old else ()
    message = validate.message(body, old.key if old else None, headers)
    return await replace_message(engine, keepalive, shards, call, message, lease_ms)


async def submit_each(
    engine: Engine, calls: Sequence[LeaseCall], make: Make, label: str = ""
) -> list[Outcome]:
    """Send a command for each lease call, some in parallel, and record the outcomes in any case."""
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


async def _ask_each(engine: Engine, calls: Sequence[LeaseCall], make: Make) -> list[Outcome]:
    if len(calls) == 1:
        # Awaited directly, without a task: its caller continues before other waiters are woken.
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
