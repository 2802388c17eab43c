"""Commands on all shards of a queue at once: leases and snapshots.

Rule 1: all shards are checked before anything is changed on one of them.
Rule 2: the least recently served shard is served first.
Rule 3: a snapshot of a queue pins every shard in one entry, also those without new rows, so that a
transaction is in all of them or in none. The same snapshot is offered until all of it was read; if
one of its pins is lost before, all shards are pinned again.
"""

from __future__ import annotations

from millrace.core.answers import Leased, MultiShardSnapshot, ShardLeases
from millrace.core.commands import (
    LeaseFromShards,
    LeaseMessages,
    NextSnapshot,
    SnapshotShards,
)
from millrace.core.delivery import lease, quarantine
from millrace.core.delivery.settle import queue_deleted
from millrace.core.followers import cursors
from millrace.core.followers.cursors import CursorState
from millrace.core.model import ShardId
from millrace.core.needs import Need
from millrace.core.state.draft import BatchContext, Draft
from millrace.errors import Refused, Retry


def lease_from_shards(
    context: BatchContext, command: LeaseFromShards
) -> ShardLeases | Refused | Retry | Need:
    """Lease messages from the shards, up to the requested total."""
    drafts: list[Draft] = []
    for shard in command.shards:
        draft = context.draft(shard)
        if draft is None:
            return queue_deleted()
        refused_here = quarantine.refusal(draft.view)
        if refused_here is not None:
            return refused_here
        drafts.append(draft)
    # The sort is stable: shards with equal times keep the queue's order.
    drafts.sort(key=lambda draft: draft.view.served)
    most = LeaseMessages(command.count, command.lease_ms)
    refused: Retry | None = None
    able: list[Draft] = []
    for draft in drafts:
        if not lease.may_have_work(draft.view, draft.now):
            continue
        checked = lease.check_lease(draft, most)
        if isinstance(checked, Need):
            return checked
        if checked is None:
            able.append(draft)
        else:
            refused = checked
    turn = drafts[-1].view.served
    parts: list[tuple[ShardId, Leased]] = []
    left = command.count
    for draft in able:
        if left <= 0:
            break
        leased = lease.do_lease(draft, LeaseMessages(left, command.lease_ms))
        if leased.seqs:
            turn += 1
            draft.view.served = turn
            left -= len(leased.seqs)
            parts.append((draft.view.shard, leased))
    if refused is not None and not parts:
        return refused
    bounded = not parts and any(lease.is_bounded(draft.view, draft.now) for draft in drafts)
    return ShardLeases(tuple(parts), bounded)


def snapshot_shards(
    context: BatchContext, command: SnapshotShards
) -> MultiShardSnapshot | Refused | Retry | None:
    """Return the next snapshot of the cursor; an unfinished one is offered again, unchanged."""
    looks: list[tuple[Draft, NextSnapshot, CursorState]] = []
    for shard, part in command.parts:
        draft = context.draft(shard)
        if draft is None:
            return queue_deleted()
        state = cursors.look(draft, part)
        if isinstance(state, Refused):
            return state
        looks.append((draft, part, state))
    number = max(state.cell.vector for _, _, state in looks)
    is_whole = all(
        state.cell.vector == number
        and not cursors.is_torn(draft.view, state.cell)
        and state.position == state.cell.position
        for draft, _, state in looks
    )
    if number and is_whole and any(state.is_unread for _, _, state in looks):
        return MultiShardSnapshot(number, tuple(cursors.offer(*look) for look in looks))
    if not any(state.has_rows for _, _, state in looks):
        return None
    for draft, _, state in looks:
        full = cursors.check_room(draft, state)
        if full is not None:
            return full
    return MultiShardSnapshot(number + 1, tuple(cursors.take(*look, number + 1) for look in looks))
