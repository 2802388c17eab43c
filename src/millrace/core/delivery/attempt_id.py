"""Idempotent lease calls: a repeated call with the same attempt id gets the same messages.

Rule 1: the answer is repeated as long as all its messages are held: none was settled, released,
extended or replaced, and the deadline has not passed. Otherwise the call counts as a new one.
Rule 2: an empty call is not remembered: repeated, it may get messages.
"""

from __future__ import annotations

from pyroaring import BitMap64

from millrace.core import bounds
from millrace.core.answers import Leased
from millrace.core.cells import AttemptCell
from millrace.core.commands import LeaseMessages
from millrace.core.format.seq_sets import pack_seqs, unpack_seqs
from millrace.core.model import LeaseId
from millrace.core.state.draft import Draft
from millrace.core.state.lease_state import LeaseState
from millrace.core.state.view import View


def again(draft: Draft, command: LeaseMessages) -> Leased | None:
    """Return the answer of the first call; None if the call has to be decided."""
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


def remember(draft: Draft, command: LeaseMessages, answer: Leased) -> Leased:
    """Remember the answer of a call for its repetition."""
    if command.attempt and answer.seqs:
        turns = tuple(map(pack_seqs, answer.turns))
        cell = AttemptCell(answer.lease, answer.deadline_ms, draft.now, turns)
        draft.put_attempt(command.attempt, cell)
        while len(draft.view.attempts) > bounds.ATTEMPTS_REMEMBERED_MAX:
            forget(draft)
    return answer


def is_due(view: View, now: int) -> bool:
    """Return True if the oldest remembered attempt has expired."""
    oldest = next(iter(view.attempts.values()), None)
    return oldest is not None and _is_over(oldest, now)


def forget(draft: Draft) -> None:
    """Forget the oldest remembered attempt."""
    draft.put_attempt(next(iter(draft.view.attempts)), None)
