"""The rules of attempt ids: a lease call that is made again is given the same messages.

Rule 1: the same answer comes as long as nothing became of what it handed out: it is held, none of
it was settled, given back, extended or replaced, and its time is not over. Otherwise the call is
a new one.
Rule 2: a call that got nothing is not remembered: made again, it may get something.
"""

from __future__ import annotations

from pyroaring import BitMap64

from millrace.core import bounds
from millrace.core.answers import Leased
from millrace.core.commands import Lease
from millrace.core.draft import Draft
from millrace.core.idcells import AttemptCell
from millrace.core.lease_state import LeaseState
from millrace.core.model import LeaseId
from millrace.core.seqs import pack_seqs, unpack_seqs
from millrace.core.view import View


def again(draft: Draft, command: Lease) -> Leased | None:
    """What the call was answered when it was first made; None if it is to be decided."""
    view = draft.view
    cell = view.attempts.get(command.attempt) if command.attempt else None
    if cell is None or _is_over(cell, draft.now):
        return None
    lease = view.leases.get(cell.lease)
    if lease is None or not _is_untouched(lease, cell, draft.now):
        return None
    turns = tuple(map(unpack_seqs, cell.turns))
    return Leased(
        LeaseId(cell.lease),
        BitMap64(lease.open),
        lease.deadline_ms,
        dict(lease.counts),
        turns,
        firsts=dict(lease.firsts),
    )


def _is_over(cell: AttemptCell, now: int) -> bool:
    return cell.time_ms + bounds.ATTEMPT_REMEMBERED_MS <= now


def _is_untouched(lease: LeaseState, cell: AttemptCell, now: int) -> bool:
    ended = (lease.freed, lease.settled, lease.overtaken, lease.superseded, lease.buried)
    return (
        bool(lease.open)
        and not any(ended)
        and not lease.doomed
        and not lease.deadlines
        and lease.deadline_ms == cell.deadline_ms > now
    )


def remember(draft: Draft, command: Lease, answer: Leased) -> Leased:
    """The call was decided: made again, it is answered as it is now."""
    if command.attempt and answer.seqs:
        turns = tuple(map(pack_seqs, answer.turns))
        cell = AttemptCell(answer.lease, answer.deadline_ms, draft.now, turns)
        draft.put_attempt(command.attempt, cell)
        while len(draft.view.attempts) > bounds.ATTEMPTS_REMEMBERED_MAX:
            forget(draft)
    return answer


def is_due(view: View, now: int) -> bool:
    """Whether the oldest one is remembered no longer."""
    oldest = next(iter(view.attempts.values()), None)
    return oldest is not None and _is_over(oldest, now)


def forget(draft: Draft) -> None:
    """The oldest one is no longer remembered."""
    draft.put_attempt(next(iter(draft.view.attempts)), None)
