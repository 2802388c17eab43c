"""TTL of all messages of a queue: expired messages are found by their publish time.

Rule 1: nothing is stored for it. The times of rows never fall from seq to seq, so that all messages
up to some seq have expired, and none after it.
Rule 2: the view knows up to which seq all expired messages were processed (`aged`), and a lower
bound of the publish time of all others (`eldest_ms`). Both are lost with the view, and read from
the store again.
Rule 3: a changed TTL applies to all messages in the queue.
"""

from __future__ import annotations

from pyroaring import BitMap64

from millrace.core import bounds
from millrace.core.needs import Need
from millrace.core.state.draft import Draft
from millrace.core.state.view import View


def is_due(view: View, now: int) -> bool:
    """Return True if messages may have exceeded the queue's TTL."""
    ttl_ms = view.spec.ttl_ms
    return ttl_ms > 0 and view.eldest_ms + ttl_ms <= now and view.aged < view.last_seq


def check(draft: Draft, limit: int) -> Need | None:
    """Return the Need of up to `limit` expired messages for `take`, or None."""
    view = draft.view
    if view.facts.outlived is not None or view.aged >= view.stored_seq:
        return None
    before_ms = max(draft.now - view.spec.ttl_ms + 1, 0)
    return Need(view.shard, outlived=(view.aged, before_ms, limit))


def take(draft: Draft) -> BitMap64:
    """Return expired messages that have not ended, and mark all up to the last one as processed.

    Some of them may be in flight. If there are more, `is_due` stays true.
    """
    view, expired = draft.view, draft.view.facts.outlived
    view.facts.outlived = None
    over = BitMap64()
    if expired is not None:
        over |= expired.seqs
        view.aged = max(view.aged, expired.upto)
        if expired.next_ms is not None:
            view.eldest_ms = max(view.eldest_ms, expired.next_ms)
            return _left(draft, over)
        view.aged = max(view.aged, view.stored_seq)
    over |= _take_unfolded(draft)
    return _left(draft, over)


def _take_unfolded(draft: Draft) -> BitMap64:
    """Return the expired messages of batches that are not folded yet; this batch has none."""
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
    """Return the messages that were not ended or settled since; deletes expire by their own age."""
    if not seqs:
        return seqs
    left = draft.still_live(seqs) - draft.kept()
    return left - draft.view.deletes.seqs if draft.view.deletes else left


# --- Check for an empty queue --------------------------------------------------------------------


def tick_due(view: View, now: int) -> bool:
    """Return True if a tick has expired messages to process."""
    return is_due(view, now) or (_may_look(view) and view.time_ms + bounds.EMPTY_CHECK_MS <= now)


def _may_look(view: View) -> bool:
    """Return True if the queue may be empty without its view knowing it."""
    return (
        view.spec.ttl_ms > 0
        and view.aged < view.last_seq
        and not view.holder
        and view.looked_index < view.index
    )


def need_check_empty(draft: Draft) -> Need | None:
    """Return the Need of `check_empty`, or None."""
    view = draft.view
    if view.facts.live is None and _may_look(view) and view.stored_seq == view.last_seq:
        return Need(view.shard, live=True)
    return None


def check_empty(draft: Draft) -> None:
    """Check whether the queue is empty: then nothing in it can expire."""
    view = draft.view
    if view.facts.live is None or not _may_look(view) or view.stored_seq < view.last_seq:
        return
    view.looked_index = view.index
    if not view.facts.live:
        view.aged, view.eldest_ms = view.last_seq, draft.now
