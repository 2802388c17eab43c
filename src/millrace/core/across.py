"""The rules of what is asked of all shards of a queue at once.

Rule 1: all shards are judged before anything is changed on one of them.
Rule 2: the shard that was served longest ago is served first.
Rule 3: a snapshot of a queue pins every shard in one entry, also those that have nothing new: no
transaction is ever in one of them and not in another. It is offered again until all of it was read;
if one of its pins is gone before, all shards are pinned anew.
"""

from __future__ import annotations

from millrace.core import follow, lease, quarantine
from millrace.core.across_commands import LeaseAcross, LeasedAcross, SnapshotAcross, Vector
from millrace.core.answers import Leased
from millrace.core.commands import Lease, Need, NextSnapshot
from millrace.core.desk import Desk
from millrace.core.draft import Draft
from millrace.core.follow import Look
from millrace.core.model import ShardId
from millrace.core.work import deleted
from millrace.errors import Refused, Retry


def lease_across(desk: Desk, command: LeaseAcross) -> LeasedAcross | Refused | Retry | Need:
    """Hand out what the shards have, up to the number that is asked for in all."""
    drafts: list[Draft] = []
    for shard in command.shards:
        draft = desk.draft(shard)
        if draft is None:
            return deleted()
        refused_here = quarantine.refusal(draft.view)
        if refused_here is not None:
            return refused_here
        drafts.append(draft)
    # The sort is stable: those that were served at the same time keep the queue's order.
    drafts.sort(key=lambda draft: draft.view.served)
    most = Lease(command.count, command.lease_ms)
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
        found = lease.do_lease(draft, Lease(left, command.lease_ms))
        if found.seqs:
            turn += 1
            draft.view.served = turn
            left -= len(found.seqs)
            parts.append((draft.view.shard, found))
    if refused is not None and not parts:
        return refused
    bounded = not parts and any(lease.is_bounded(draft.view, draft.now) for draft in drafts)
    return LeasedAcross(tuple(parts), bounded)


def snapshot_across(desk: Desk, command: SnapshotAcross) -> Vector | Refused | Retry | None:
    """The snapshot that the cursor reads next; an unfinished one is offered again, unchanged."""
    looks: list[tuple[Draft, NextSnapshot, Look]] = []
    for shard, part in command.parts:
        draft = desk.draft(shard)
        if draft is None:
            return deleted()
        found = follow.look(draft, part)
        if isinstance(found, Refused):
            return found
        looks.append((draft, part, found))
    number = max(found.cell.vector for _, _, found in looks)
    is_whole = all(
        found.cell.vector == number
        and not follow.is_torn(draft.view, found.cell)
        and found.position == found.cell.position
        for draft, _, found in looks
    )
    if number and is_whole and any(found.is_unread for _, _, found in looks):
        return Vector(number, tuple(follow.offer(*one) for one in looks))
    if not any(found.has_rows for _, _, found in looks):
        return None
    for draft, _, found in looks:
        full = follow.check_room(draft, found)
        if full is not None:
            return full
    return Vector(number + 1, tuple(follow.take(*one, number + 1) for one in looks))
