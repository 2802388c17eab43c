"""Lease calls: the command, and reading the messages that it is granted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.lease import Lease
from millrace.client.lease_group import Keepalive, LeaseGroup
from millrace.client.message import sort_by_turn
from millrace.client.shards import Shards
from millrace.core import validate
from millrace.core.answers import Leased, ShardLeases
from millrace.core.commands import LeaseFromShards
from millrace.core.commands import LeaseMessages as LeaseCommand


def lease_command(
    count: int, seconds: float, wait: float, attempt: str | None, *, together: bool = False
) -> tuple[LeaseCommand, int]:
    """Validate the arguments of `Queue.lease`; return the command, and its wait in milliseconds."""
    count = validate.count(count, "count", limits.LEASE_MESSAGES_MAX)
    lease_ms = validate.millis(seconds, "seconds", limits.LEASE_MS_MAX)
    wait_ms = validate.millis(wait, "wait", limits.LEASE_WAIT_MS_MAX, least_ms=0)
    attempt = validate.id_text(attempt, "attempt") or ""
    return LeaseCommand(count, lease_ms, attempt, together), wait_ms


class LeaseResult(NamedTuple):
    """Result of a lease call."""

    leases: list[Lease]
    """In the order of delivery."""
    bounded: bool
    """True if it is empty because `max_in_flight` messages are leased."""


async def lease_messages(
    engine: Engine,
    keepalive: Keepalive,
    shards: Shards,
    command: LeaseCommand,
    wait_ms: int,
    room: int | None = None,
) -> LeaseResult:
    """Make a lease call and read its messages; if reading fails, nothing stays leased.

    `room`: maximum bytes of the result; None: `LEASE_BYTES_MAX`.
    """
    if room is None:
        room = limits.LEASE_BYTES_MAX
    telemetry = engine.telemetry
    if telemetry is None:
        return await _hand_out(engine, keepalive, shards, command, wait_ms, room)
    began = telemetry.began()
    try:
        result = await _hand_out(engine, keepalive, shards, command, wait_ms, room)
    except BaseException as error:
        telemetry.refused(shards.label, began, error)
        raise
    telemetry.received(shards.label, began, (lease.headers for lease in result.leases))
    return result


async def _hand_out(
    engine: Engine,
    keepalive: Keepalive,
    shards: Shards,
    command: LeaseCommand,
    wait_ms: int,
    room: int,
) -> LeaseResult:
    if shards.is_one:
        answer = await engine.ask(shards.first, command, Leased, wait_ms=wait_ms)
        parts, bounded = [(shards.first, answer)] if answer.seqs else [], answer.bounded
    else:
        if command.attempt:
            shards.only("a lease call with an attempt id", "attempt", "leave the id out")
        across = LeaseFromShards(shards.ids, command.count, command.lease_ms)
        answers = await engine.ask(shards.first, across, ShardLeases, wait_ms=wait_ms)
        parts, bounded = list(answers.parts), answers.bounded
    grants = [
        (LeaseGroup(engine, keepalive, shards, shard, part, command.lease_ms), part)
        for shard, part in parts
    ]
    return LeaseResult(await read_lease_groups(command, grants, room), bounded)


async def read_lease_groups(
    command: LeaseCommand,
    groups: Sequence[tuple[LeaseGroup, Leased]],
    room: int | None = None,
) -> list[Lease]:
    """Read the messages that a lease call was granted, up to `room` bytes.

    Messages that were not read are released without counting a delivery. With an attempt id they
    stay leased on errors: the call is repeated with the same id, or was itself a repeat, and its
    caller holds the messages.
    """
    leases: list[Lease] = []
    left = list(groups)
    if room is None:
        room = limits.LEASE_BYTES_MAX
    try:
        for group, leased in groups:
            if room <= 0:
                break
            rows = await group.engine.rows(
                group.shard, leased.seqs, room, group.lease, group.history
            )
            left.pop(0)
            if len(groups) > 1:
                room -= sum(row.size() for row in rows)
            if len(rows) < len(leased.seqs):
                if rows:
                    # The room is used up: release the rest for the next call.
                    group.give_back(BitMap64([seq for seq in leased.seqs if seq > rows[-1].seq]))
                # The missing ones were replaced by newer revisions of their keys.
                group.open = BitMap64([row.seq for row in rows])
            leases += [Lease(group, row) for row in sort_by_turn(rows, leased.turns)]
    except BaseException:
        # The caller was cancelled, or a row could not be read.
        for group, _ in groups if not command.attempt else ():
            group.give_back(group.open)
        raise
    for group, _ in left:
        group.give_back(group.open)
    return leases
