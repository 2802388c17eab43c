"""Garbage collection in message groups: removes dead messages before they are delivered.

A waiting message may have ended by a newer revision or its TTL. It is not searched in its group
then, but found when its turn comes.

Rule 1: the store is asked for whole ranges of seqs, in a bounded number of rows.
Rule 2: where many have died, more groups are examined than the call asks for, so that a ring of
dead ones is passed in few steps.
"""

from __future__ import annotations

from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import TurnCell
from millrace.core.needs import Need
from millrace.core.ordering import deferred, group_rate, groups
from millrace.core.state.draft import Draft
from millrace.core.state.group_state import ChosenGroup
from millrace.core.state.view import View


def ahead(view: View) -> int:
    """Return the least number of groups to examine together; 0 with a rate limit, which allows
    no surplus."""
    if not deferred.may_have_died(view) or view.spec.group_rate_us:
        return 0
    return limits.THIN_GROUPS_AHEAD


def collect_dead(
    draft: Draft, chosen: list[ChosenGroup], count: int, *, together: bool
) -> Need | None:
    """Remove dead messages from these groups, and groups without live ones from `chosen`.

    The groups keep only the messages that were examined: enough to reach `count`, if all are alive,
    from all groups together or, with `together`, from each.
    """
    view = draft.view
    if not deferred.may_have_died(view):
        return None
    share = count if together else -(-count // max(len(chosen), 1))
    depth = max(share, limits.THIN_DEPTH)
    looked, seqs = _within_reach(view, chosen, depth)
    unknown = tuple(r for r in ended_ranges(view, seqs) if r not in view.facts.ended)
    if unknown:
        return Need(view.shard, ended=unknown)
    dead = seqs - draft.still_live(seqs) | seqs & view.doomed
    for low, high in ended_ranges(view, seqs):
        dead |= seqs & view.facts.ended[low, high]
    draft.passed += len(dead)
    left = [_live(group, dead) for group in looked] if dead else looked
    _put(draft, [group for group, before in zip(left, looked, strict=True) if group is not before])
    chosen[:] = [group for group in left if group.seqs]
    return None


def _within_reach(
    view: View, chosen: list[ChosenGroup], depth: int
) -> tuple[list[ChosenGroup], BitMap64]:
    """Return as many groups as may be examined together, and their seqs to examine."""
    looked: list[ChosenGroup] = []
    seqs: list[int] = []
    chunks: set[int] = set()
    for group in chosen:
        if group.turn or len(group.seqs) > group.again:
            if len(chunks) >= limits.THIN_RANGES_MAX or len(seqs) >= limits.THIN_SEQS_MAX:
                break
            reach = group.seqs[: group.again + depth]
            group = ChosenGroup(group.turn, group.group, reach, group.cell, group.again)
            waiting = reach[group.again :]
            seqs += waiting
            chunks.update(seq // limits.CHUNK_ROWS for seq in waiting)
        looked.append(group)
    return looked, BitMap64(seqs)


def ended_ranges(view: View, seqs: BitMap64) -> list[tuple[int, int]]:
    """Return the ranges of seqs for which the store must be read: rows that it has, and that may
    have died."""
    limit = view.stored_seq
    if not view.spec.keyed:
        limit = min(limit, view.pointers.gaps)
    step = limits.CHUNK_ROWS
    chunks = dict.fromkeys(seq // step for seq in seqs if seq <= limit)
    return [(at * step, at * step + step - 1) for at in chunks]


def _live(group: ChosenGroup, dead: BitMap64) -> ChosenGroup:
    """Return the group without its dead messages; the same object if it had none."""
    back, waiting = group.seqs[: group.again], group.seqs[group.again :]
    if not waiting or dead.isdisjoint(BitMap64(waiting)):
        return group
    cell = group.cell
    assert cell is not None
    seqs = tuple(seq for seq in cell.seqs if seq not in dead)
    cell = TurnCell(seqs, cell.head, cell.tail, cell.paid_us, cell.due_ms)
    left = [*back, *(seq for seq in waiting if seq not in dead)]
    return ChosenGroup(group.turn, group.group, left, cell, group.again)


def _put(draft: Draft, left: list[ChosenGroup]) -> None:
    """Write back the remaining messages of these groups; a group without any loses its turn."""
    over: list[int] = []
    for group in left:
        assert group.cell is not None
        if not groups.waits(group.cell):
            if group.turn:
                over.append(group.turn)
            else:
                groups.nothing_waits(draft, group.group)
        group_rate.put_left(draft, group.group, group.cell)
    groups.drop_turns(draft, over)
