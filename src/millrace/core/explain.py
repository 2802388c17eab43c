"""Why a message is not to be had."""

from __future__ import annotations

from typing import Literal

from pyroaring import BitMap64

from millrace.core import aside
from millrace.core.commands import Explain, Explanation, Need, RowFacts
from millrace.core.draft import Draft
from millrace.core.model import NEVER_MS, Seq
from millrace.core.view import LeaseState


def explain(draft: Draft, command: Explain) -> Explanation | Need:
    view, seq = draft.view, command.seq
    if seq < 1 or seq > view.last_seq:
        return Explanation(seq, "unknown")
    holder = view.holder.get(seq)
    if holder is not None:
        return _explain_leased(draft, seq, view.leases[holder])
    if seq > view.stored_seq:
        is_delete = seq in view.deletes.seqs
        facts = RowFacts(live=True, delete=is_delete, aside=aside.is_aside(draft, seq))
    elif seq in view.facts.rows:
        facts = view.facts.rows[seq]
    else:
        return Need(view.shard, rows=(seq,))
    if not facts.live or not draft.still_live(BitMap64([seq])):
        by = Seq(facts.superseded_by) if facts.superseded_by else None
        return Explanation(seq, "dead", superseded_by=by)
    if facts.delete:
        return Explanation(seq, "delete")
    if facts.aside and not (facts.kept or draft.is_kept(seq)):
        return aside.explain(draft, seq)
    is_ready = seq >= view.pointers.next and not facts.aside
    return Explanation(seq, "ready" if is_ready else "settled")


def _explain_leased(draft: Draft, seq: Seq, lease: LeaseState) -> Explanation:
    deliveries, failures = lease.counts_of(seq)
    until = lease.deadline_of(seq)
    waits = (seq in lease.open or seq in lease.deadlines) and until > draft.now
    if seq in lease.doomed:
        state: Literal["doomed", "leased", "delayed", "returned"] = "doomed"
    elif waits:
        state = "leased" if seq in lease.open else "delayed"
    else:
        state = "returned"
    return Explanation(
        seq,
        state,
        lease.id,
        until if waits and until < NEVER_MS else None,
        deliveries,
        failures,
        session=lease.session if lease.session and seq in lease.open else None,
    )
