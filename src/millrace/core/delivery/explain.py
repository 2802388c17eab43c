"""Explains the state of a message: ready, leased, delayed, blocked, settled ..."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pyroaring import BitMap64

from millrace.core import token_bucket
from millrace.core.answers import Explanation
from millrace.core.commands import Explain
from millrace.core.delivery import lease
from millrace.core.model import NEVER_MS, Seq
from millrace.core.needs import Need, RowFacts
from millrace.core.ordering import deferred, groups, partitions
from millrace.core.ordering.group_numbers import number_of
from millrace.core.state.draft import Draft
from millrace.core.state.lease_state import LeaseState


def explain(draft: Draft, command: Explain) -> Explanation | Need:
    view, seq = draft.view, command.seq
    if seq < 1 or seq > view.last_seq:
        return Explanation(seq, "unknown")
    holder = view.holder.get(seq)
    if holder is not None:
        return _explain_leased(draft, seq, view.leases[holder])
    if seq > view.stored_seq:
        is_delete = seq in view.deletes.seqs
        facts = RowFacts(live=True, delete=is_delete, aside=deferred.is_deferred(draft, seq))
    elif seq in view.facts.rows:
        facts = view.facts.rows[seq]
    else:
        return Need(view.shard, rows=(seq,))
    if not facts.live or not draft.still_live(BitMap64([seq])):
        by = Seq(facts.superseded_by) if facts.superseded_by else None
        if by is None and _is_known_settled(draft, seq):
            return Explanation(seq, "settled")
        return Explanation(seq, "dead", superseded_by=by)
    if facts.delete:
        return Explanation(seq, "delete")
    is_kept = facts.kept or seq in draft.kept()
    if view.spec.is_grouped and not is_kept:
        return _explain_grouped(draft, command, is_aside=facts.aside)
    if view.partition is not None and not is_kept:
        return _explain_partition(draft, seq)
    if facts.aside and not is_kept:
        answer = deferred.explain(draft, seq)
        is_ready = isinstance(answer, Explanation) and answer.state == "ready"
        return _explain_ready(draft, seq) if is_ready else answer
    if seq >= view.pointers.next and not facts.aside:
        return _explain_ready(draft, seq)
    return Explanation(seq, "settled")


def _is_known_settled(draft: Draft, seq: int) -> bool:
    """Return True if a remembered lease has ended it; the rows of a log end otherwise."""
    view = draft.view
    return view.spec.retention == "work" and any(
        seq in lease.settled for lease in view.leases.values()
    )


def _explain_ready(draft: Draft, seq: Seq) -> Explanation:
    """Explain a message that waits for a worker, unless a limit of the queue blocks it."""
    view, spec = draft.view, draft.view.spec
    if lease.is_blocked(view):
        held = [(view.leases[number], seq_held) for seq_held, number in view.holder.items()]
        return _blocked(draft, seq, held)
    if lease.is_full(view):
        return Explanation(seq, "blocked")
    paid_us = view.pointers.paid_us
    if (
        spec.rate_us
        and token_bucket.allowed(paid_us, draft.now, spec.rate_us, spec.rate_burst) <= 0
    ):
        until = token_bucket.ready_ms(paid_us, spec.rate_us, spec.rate_burst)
        return Explanation(seq, "limited", until_ms=until)
    return Explanation(seq, "ready")


def _explain_partition(draft: Draft, seq: Seq) -> Explanation:
    """Explain a message that waits for its partition, which may be locked."""
    leases = partitions.locked_by(draft.view, seq, draft.now)
    if leases:
        return _blocked(draft, seq, [(lock, other) for lock in leases for other in lock.open])
    return _explain_ready(draft, seq)


def _explain_grouped(draft: Draft, command: Explain, *, is_aside: bool) -> Explanation | Need:
    """Explain a message that waits in its group; the group must be given, or be known."""
    view, spec, seq = draft.view, draft.view.spec, command.seq
    if is_aside:
        answer = deferred.explain(draft, seq)
        if isinstance(answer, Need) or answer.state == "delayed":
            return answer
    if command.group is None:
        return _explain_ready(draft, seq)
    group = number_of(command.group)
    flight = view.groups.flights.get(group)
    if flight is not None and groups.is_blocking(view, flight):
        held = [
            (lease_state, other)
            for lease_state in view.leases.values()
            for other, number in lease_state.groups.items()
            if number == group
        ]
        return _blocked(draft, seq, held)
    need = groups.need_cells(draft, [group])
    if need is not None:
        return need
    cell = groups.turn_cell(draft, group)
    if cell is not None:
        # It waits for its bucket, even if the rate was changed since.
        until = cell.due_ms
        if spec.group_rate_us:
            paid_us = token_bucket.owed(
                cell.paid_us, draft.now, spec.group_rate_us, spec.group_burst
            )
            until = max(until, token_bucket.ready_ms(paid_us, spec.group_rate_us, spec.group_burst))
        if until > draft.now:
            return Explanation(seq, "limited", until_ms=until)
    return _explain_ready(draft, seq)


def _blocked(draft: Draft, seq: Seq, held: Sequence[tuple[LeaseState, int]]) -> Explanation:
    """Explain a blocked message by the blocking lease that is held longest."""
    ends = [
        (lease_state.deadline_of(other), lease_state.id)
        for lease_state, other in held
        if other not in draft.view.returned and other not in lease_state.doomed
    ]
    if not ends:
        return Explanation(seq, "blocked")
    until, number = max(ends)
    return Explanation(seq, "blocked", number, until if draft.now < until < NEVER_MS else None)


def _explain_leased(draft: Draft, seq: Seq, held: LeaseState) -> Explanation:
    deliveries, failures = held.counts_of(seq)
    until = held.deadline_of(seq)
    waits = (seq in held.open or seq in held.deadlines) and until > draft.now
    if seq in held.doomed:
        state: Literal["doomed", "leased", "delayed", "returned"] = "doomed"
    elif waits:
        state = "leased" if seq in held.open else "delayed"
    else:
        state = "returned"
    return Explanation(
        seq,
        state,
        held.id,
        until if waits and until < NEVER_MS else None,
        deliveries,
        failures,
        session=held.session if held.session and seq in held.open else None,
        first_ms=held.first_of(seq) if deliveries else 0,
    )
