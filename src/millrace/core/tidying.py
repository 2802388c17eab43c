"""Cells of `Kind.EXPIRY` whose messages have all ended before their time: they go early.

Rule 1: a few at a time, from where the last look ended, and again from the first one on. So who is
left at the front keeps none of the others.
Rule 2: one that names ids stays until it is due.
"""

from __future__ import annotations

from pyroaring import BitMap64

from millrace.core import bounds, points
from millrace.core.commands import Need
from millrace.core.draft import Draft
from millrace.core.expiry import range_of, set_next
from millrace.core.idcells import ExpiryCell, expiry_of
from millrace.core.model import Kind
from millrace.core.seqs import unpack_seqs
from millrace.core.view import View


def is_due(view: View, now: int) -> bool:
    """Whether it is time to look: something was changed since, and nothing goes by its time."""
    return (
        view.expiry_ms is not None
        and view.expiry_ms > now
        and view.tidied_index < view.index
        and view.tidied_ms + bounds.TIDY_MS <= now
    )


def check(draft: Draft) -> Need | None:
    """What the store must be asked for before `tidy`."""
    view, found = draft.view, draft.view.facts.expiry
    if not is_due(view, draft.now) or not view.stored_index:
        return None
    if found is None:
        return Need(view.shard, cells=(Kind.EXPIRY, view.tidied_to, bounds.TIDY_CELLS))
    ranges = dict.fromkeys(range_of(cell) for _, cell in found if _names_messages(cell))
    unknown = tuple(one for one in ranges if one not in view.facts.ended)
    return Need(view.shard, ended=unknown) if unknown else None


def tidy(draft: Draft) -> bool:
    """Drop those of the cells at hand that name nothing that is there; whether to go on at once."""
    view, found = draft.view, draft.view.facts.expiry
    if found is None or not is_due(view, draft.now):
        return False
    view.facts.expiry = None
    left: list[int] = []
    for key, cell in found:
        if _names_messages(cell) and not _live(draft, cell):
            points.put(draft, (Kind.EXPIRY, key), None)
        elif cell.ids or cell.seqs:
            left.append(expiry_of(key))
    is_all = len(found) < bounds.TIDY_CELLS
    if is_all and not view.tidied_to:
        set_next(draft, left)
    view.tidied_to = b"" if is_all else found[-1][0] + b"\0"
    if not is_all and len(left) < len(found):
        return True
    view.tidied_index, view.tidied_ms = view.index, draft.now
    return False


def _names_messages(cell: ExpiryCell) -> bool:
    return bool(cell.seqs) and not cell.ids


def _live(draft: Draft, cell: ExpiryCell) -> BitMap64:
    known = draft.view.facts.ended.get(range_of(cell), BitMap64())
    return draft.still_live(unpack_seqs(cell.seqs) - known) - draft.kept()
