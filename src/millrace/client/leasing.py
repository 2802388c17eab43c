"""A lease call, and the messages that come with its answer."""

from __future__ import annotations

from pyroaring import BitMap64

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.grant import Grant, Keepalive
from millrace.client.lease import Lease
from millrace.client.message import by_turns
from millrace.core.commands import Lease as LeaseCommand
from millrace.core.commands import Leased
from millrace.core.model import ShardId


async def hand_out(
    engine: Engine, keepalive: Keepalive, shard: ShardId, command: LeaseCommand, wait_ms: int
) -> list[Lease]:
    """What the call is given, in the order of turns; where that cannot be read, nothing stays
    leased."""
    answer = await engine.ask(shard, command, Leased, wait_ms=wait_ms)
    if not answer.seqs:
        return []
    grant = Grant(engine, keepalive, shard, answer, command.lease_ms)
    try:
        rows = await engine.rows(shard, answer.seqs, limits.LEASE_BYTES_MAX)
    except BaseException:
        # Cancelled, or a row could not be read: nobody has seen these messages.
        grant.give_back(answer.seqs)
        raise
    if len(rows) < len(answer.seqs):
        if rows:
            # They were enough: what comes after them is for the next call.
            grant.give_back(BitMap64([seq for seq in answer.seqs if seq > rows[-1].seq]))
        # Newer revisions have replaced the others meanwhile.
        grant.open = BitMap64([row.seq for row in rows])
    return [Lease(grant, row) for row in by_turns(rows, answer.turns)]
