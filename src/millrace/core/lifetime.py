"""The time that a queue lets all its messages live: what is over is found by when it was published.

Rule 1: nothing is written down for it. Rows have their times, which never fall from seq to seq, so
that all up to some seq are over, and none after it.
Rule 2: the view knows up to where all is done (`aged`), and a time before which none of the others
was published (`eldest_ms`). Both are lost with the view, and found again by asking the store.
Rule 3: whatever the queue says now counts, for all that is there.
"""

from __future__ import annotations

from pyroaring import BitMap64

from millrace.core import bounds
from millrace.core.commands import Need
from millrace.core.draft import Draft
from millrace.core.view import View


def is_due(view: View, now: int) -> bool:
    """Whether messages may be there that have lived for as long as the queue lets them."""
    ttl_ms = view.spec.ttl_ms
    return ttl_ms > 0 and view.eldest_ms + ttl_ms <= now and view.aged < view.last_seq


def check(draft: Draft, most: int) -> Need | None:
    """What the store must be asked for before `take`, which takes so many at once."""
    view = draft.view
    if view.facts.outlived is not None or view.aged >= view.stored_seq:
        return None
    before_ms = max(draft.now - view.spec.ttl_ms + 1, 0)
    return Need(view.shard, outlived=(view.aged, before_ms, most))


def take(draft: Draft) -> BitMap64:
    """Messages whose time is over, and that have not ended; those up to the last one are done.

    Some of them may be with workers. Where there are more, it is still due afterwards.
    """
    view, found = draft.view, draft.view.facts.outlived
    view.facts.outlived = None
    over = BitMap64()
    if found is not None:
        over |= found.seqs
        view.aged = max(view.aged, found.upto)
        if found.next_ms is not None:
            view.eldest_ms = max(view.eldest_ms, found.next_ms)
            return _left(draft, over)
        view.aged = max(view.aged, view.stored_seq)
    over |= _take_unfolded(draft)
    return _left(draft, over)


def _take_unfolded(draft: Draft) -> BitMap64:
    """Those of batches that are not folded yet; of this one none is over."""
    view, over = draft.view, BitMap64()
    for layer in view.layers:
        if layer.last_seq <= view.aged:
            continue
        if layer.time_ms + view.spec.ttl_ms > draft.now:
            view.eldest_ms = max(view.eldest_ms, layer.time_ms)
            return over
        over.add_range(view.aged + 1, layer.last_seq + 1)
        view.aged = layer.last_seq
    view.eldest_ms = draft.now
    return over


def _left(draft: Draft, seqs: BitMap64) -> BitMap64:
    """Those that were not ended or settled since; deletes go by their own age."""
    if not seqs:
        return seqs
    left = draft.still_live(seqs) - draft.kept()
    return left - draft.view.deletes.seqs if draft.view.deletes else left


# --- Whether anything is left --------------------------------------------------------------------


def tick_due(view: View, now: int) -> bool:
    """Whether a tick has something to do here."""
    return is_due(view, now) or (_may_look(view) and view.time_ms + bounds.LOOK_MS <= now)


def _may_look(view: View) -> bool:
    """Whether it may be that nothing is left, and nobody has seen it."""
    return (
        view.spec.ttl_ms > 0
        and view.aged < view.last_seq
        and not view.holder
        and view.looked_index < view.index
    )


def check_look(draft: Draft) -> Need | None:
    """What the store must be asked for before `look`."""
    view = draft.view
    if view.facts.live is None and _may_look(view) and view.stored_seq == view.last_seq:
        return Need(view.shard, live=True)
    return None


def look(draft: Draft) -> None:
    """See whether the queue is empty: then nothing in it will ever be over."""
    view = draft.view
    if view.facts.live is None or not _may_look(view) or view.stored_seq < view.last_seq:
        return
    view.looked_index = view.index
    if not view.facts.live:
        view.aged, view.eldest_ms = view.last_seq, draft.now
