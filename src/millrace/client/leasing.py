"""A lease call, and the messages that come with its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.grant import Grant, Keepalive
from millrace.client.lease import Lease
from millrace.client.message import by_turns
from millrace.client.shards import Shards
from millrace.core import check
from millrace.core.across_commands import LeaseAcross, LeasedAcross
from millrace.core.answers import Leased
from millrace.core.commands import Lease as LeaseCommand


def lease_command(
    count: int, seconds: float, wait: float, attempt: str | None, *, together: bool = False
) -> tuple[LeaseCommand, int]:
    """A lease call, and for how many milliseconds it waits; see `Queue.lease`."""
    count = check.count(count, "count", limits.LEASE_MESSAGES_MAX)
    lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX)
    wait_ms = check.millis(wait, "wait", limits.LEASE_WAIT_MS_MAX, least_ms=0)
    attempt = check.id_text(attempt, "attempt") or ""
    return LeaseCommand(count, lease_ms, attempt, together), wait_ms


class Handed(NamedTuple):
    """What a lease call is given."""

    leases: list[Lease]
    """In the order of turns."""
    bounded: bool
    """There are none because as many are with workers as `max_in_flight` allows."""


async def hand_out(
    engine: Engine,
    keepalive: Keepalive,
    shards: Shards,
    command: LeaseCommand,
    wait_ms: int,
    room: int | None = None,
) -> Handed:
    """What the call is given; where that cannot be read, nothing stays leased.

    `room`: bytes of an answer; None: as many as an answer may have.
    """
    if room is None:
        room = limits.LEASE_BYTES_MAX
    telemetry = engine.telemetry
    if telemetry is None:
        return await _hand_out(engine, keepalive, shards, command, wait_ms, room)
    began = telemetry.began()
    try:
        handed = await _hand_out(engine, keepalive, shards, command, wait_ms, room)
    except BaseException as error:
        telemetry.refused(shards.label, began, error)
        raise
    telemetry.received(shards.label, began, (lease.headers for lease in handed.leases))
    return handed


async def _hand_out(
    engine: Engine,
    keepalive: Keepalive,
    shards: Shards,
    command: LeaseCommand,
    wait_ms: int,
    room: int,
) -> Handed:
    if shards.is_one:
        answer = await engine.ask(shards.first, command, Leased, wait_ms=wait_ms)
        parts, bounded = [(shards.first, answer)] if answer.seqs else [], answer.bounded
    else:
        if command.attempt:
            shards.only("a lease call with an attempt id", "attempt", "leave the id out")
        across = LeaseAcross(shards.ids, command.count, command.lease_ms)
        answers = await engine.ask(shards.first, across, LeasedAcross, wait_ms=wait_ms)
        parts, bounded = list(answers.parts), answers.bounded
    grants = [
        (Grant(engine, keepalive, shards, shard, part, command.lease_ms), part)
        for shard, part in parts
    ]
    return Handed(await read_granted(command, grants, room), bounded)


async def read_granted(
    command: LeaseCommand,
    grants: Sequence[tuple[Grant, Leased]],
    room: int | None = None,
) -> list[Lease]:
    """The messages that a call was handed out, as many as one answer of `room` bytes should hold.

    What could not be read is given back: nobody has seen it. Not so where the call names an
    attempt: it is made again, or was a repeat, and whoever made it holds the messages.
    """
    leases: list[Lease] = []
    left = list(grants)
    if room is None:
        room = limits.LEASE_BYTES_MAX
    try:
        for grant, leased in grants:
            if room <= 0:
                break
            rows = await grant.engine.rows(
                grant.shard, leased.seqs, room, grant.lease, grant.history
            )
            left.pop(0)
            if len(grants) > 1:
                room -= sum(row.size() for row in rows)
            if len(rows) < len(leased.seqs):
                if rows:
                    # They were enough: what comes after them is for the next call.
                    grant.give_back(BitMap64([seq for seq in leased.seqs if seq > rows[-1].seq]))
                # Newer revisions have replaced the others meanwhile.
                grant.open = BitMap64([row.seq for row in rows])
            leases += [Lease(grant, row) for row in by_turns(rows, leased.turns)]
    except BaseException:
        # Cancelled, or a row could not be read.
        for grant, _ in grants if not command.attempt else ():
            grant.give_back(grant.open)
        raise
    for grant, _ in left:
        grant.give_back(grant.open)
    return leases
