"""Thinning: what waits in groups and has died is taken out before it could be handed out.

A newer revision or its time may have ended a message that waits. Nobody looks for it in its group
then: it is found when it comes to its turn.

Rule 1: the store is asked for whole ranges of seqs, and for so many at once and no more.
Rule 2: where many have died, more groups are looked at than the call asks for, so that a ring of
dead ones is passed in few steps.
"""

from __future__ import annotations

from pyroaring import BitMap64

from millrace import limits
from millrace.core import aside, group_rate, groups
from millrace.core.commands import Need
from millrace.core.draft import Draft
from millrace.core.flight import Chosen
from millrace.core.group_cells import TurnCell
from millrace.core.view import View


def ahead(view: View) -> int:
    """How many groups are to be looked at together at least; a rate is asked for what it must."""
    if not aside.may_have_died(view) or view.spec.group_rate_us:
        return 0
    return limits.THIN_GROUPS_AHEAD


def thin(draft: Draft, chosen: list[Chosen], count: int, *, together: bool) -> Need | None:
    """Leave those that may give something that is there; the dead wait no longer.

    They give no more than was looked at: so many that `count` is reached, if they are alive, by all
    of them or, `together`, by each.
    """
    view = draft.view
    if not aside.may_have_died(view):
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
    left = [_live(one, dead) for one in looked] if dead else looked
    _put(draft, [one for one, before in zip(left, looked, strict=True) if one is not before])
    chosen[:] = [one for one in left if one.seqs]
    return None


def _within_reach(view: View, chosen: list[Chosen], depth: int) -> tuple[list[Chosen], BitMap64]:
    """As many of these as may be looked at together, and what of them is to be looked at."""
    looked: list[Chosen] = []
    seqs: list[int] = []
    chunks: set[int] = set()
    for one in chosen:
        if one.turn or len(one.seqs) > one.again:
            if len(chunks) >= limits.THIN_RANGES_MAX or len(seqs) >= limits.THIN_SEQS_MAX:
                break
            reach = one.seqs[: one.again + depth]
            one = Chosen(one.turn, one.group, reach, one.cell, one.again)
            waiting = reach[one.again :]
            seqs += waiting
            chunks.update(seq // limits.CHUNK_ROWS for seq in waiting)
        looked.append(one)
    return looked, BitMap64(seqs)


def ended_ranges(view: View, seqs: BitMap64) -> list[tuple[int, int]]:
    """Where the store must be asked: it knows rows up to some seq, and only some may have died."""
    most = view.stored_seq
    if not view.spec.keyed:
        most = min(most, view.pointers.gaps)
    step = limits.CHUNK_ROWS
    chunks = dict.fromkeys(seq // step for seq in seqs if seq <= most)
    return [(at * step, at * step + step - 1) for at in chunks]


def _live(one: Chosen, dead: BitMap64) -> Chosen:
    """A group without its dead; the same if none of them is among those that were looked at."""
    back, waiting = one.seqs[: one.again], one.seqs[one.again :]
    if not waiting or dead.isdisjoint(BitMap64(waiting)):
        return one
    cell = one.cell
    assert cell is not None
    seqs = tuple(seq for seq in cell.seqs if seq not in dead)
    cell = TurnCell(seqs, cell.head, cell.tail, cell.paid_us, cell.due_ms)
    left = [*back, *(seq for seq in waiting if seq not in dead)]
    return Chosen(one.turn, one.group, left, cell, one.again)


def _put(draft: Draft, left: list[Chosen]) -> None:
    """So much is left of these groups; who has nothing else has no turn."""
    over: list[int] = []
    for one in left:
        assert one.cell is not None
        if not groups.waits(one.cell):
            if one.turn:
                over.append(one.turn)
            else:
                groups.nothing_waits(draft, one.group)
        group_rate.put_left(draft, one.group, one.cell)
    groups.drop_turns(draft, over)
