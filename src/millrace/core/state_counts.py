"""Counts of a queue's messages by state, as `explain` names the states of single messages.

Rule: no count walks over messages or leases. Each is the size of a set that the view keeps anyway,
so that metrics may be scraped from a queue with a million messages in flight. Only delayed messages
that were never handed out are counted in their cells, of which the view has a bounded window.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from millrace import limits
from millrace.core import aside, groups, thinning
from millrace.core.commands import Need
from millrace.core.draft import Draft
from millrace.core.waiting import due_of, union


class StateCounts(NamedTuple):
    """How many messages are in which state."""

    leased: int
    """With a worker, whose time is not over."""
    postponed: int
    """Given back with a delay that is not over: `explain` says "delayed"."""
    delayed: int
    """Never handed out, with a delay that is not over; of very many, the next."""


def count_states(draft: Draft) -> StateCounts | Need:
    """The counts as of now.

    Leases whose time is over are noted first, as the next lease call would do: each is looked at
    once, however often this is asked.
    """
    delayed = _count_delayed(draft)
    if isinstance(delayed, Need):
        return delayed
    view = draft.view
    groups.return_due(draft)
    postponed = len(view.postponed)
    leased = len(view.holder) - len(view.returned) - len(view.doomed) - postponed
    return StateCounts(leased, postponed, delayed)


def _count_delayed(draft: Draft) -> int | Need:
    view = draft.view
    if not view.pointers.aside:
        return 0
    need = aside.need_due(view)
    if need is not None:
        return need
    seqs = union([cell for key, cell in view.due if due_of(key) > draft.now])
    if not seqs or not aside.may_have_died(view):
        return len(seqs)
    # The cell of a message that was replaced or has expired stays until its turn comes.
    seqs = draft.still_live(seqs) - view.doomed
    ranges = list(islice(thinning.ended_ranges(view, seqs), limits.THIN_RANGES_MAX))
    unknown = tuple(part for part in ranges if part not in view.facts.ended)
    if unknown:
        return Need(view.shard, ended=unknown)
    for part in ranges:
        seqs -= view.facts.ended[part]
    return len(seqs)
