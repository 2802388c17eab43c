"""Garbage collection of expiry cells whose messages have all ended early.

Rule 1: a few cells at a time, from the end of the last scan on, wrapping to the first one. So
messages that stay long keep no other cells from being collected.
Rule 2: a cell that names ids stays until it is due.
"""

from __future__ import annotations

from pyroaring import BitMap64

from millrace.core import bounds
from millrace.core.cells import ExpiryCell, Kind, expiry_of
from millrace.core.format.seq_sets import unpack_seqs
from millrace.core.needs import Need
from millrace.core.retention.expiry import range_of, set_next
from millrace.core.state import cell_lookup
from millrace.core.state.draft import Draft
from millrace.core.state.view import View


def is_due(view: View, now: int) -> bool:
    """Return True if a scan is due: there were changes since the last one, and cells are not
    expiring anyway."""
    return (
        view.expiry_ms is not None
        and view.expiry_ms > now
        and view.tidied_index < view.index
        and view.tidied_ms + bounds.EXPIRY_GC_MS <= now
    )


def check(draft: Draft) -> Need | None:
    """Return the Need of the cells for `collect`, or None."""
    view, cells = draft.view, draft.view.facts.expiry
    if not is_due(view, draft.now) or not view.stored_index:
        return None
    if cells is None:
        return Need(view.shard, cells=(Kind.EXPIRY, view.tidied_to, bounds.EXPIRY_GC_CELLS))
    ranges = dict.fromkeys(range_of(cell) for _, cell in cells if _names_messages(cell))
    unknown = tuple(seq_range for seq_range in ranges if seq_range not in view.facts.ended)
    return Need(view.shard, ended=unknown) if unknown else None


def collect(draft: Draft) -> bool:
    """Delete cells that name nothing alive; returns True if the scan should go on at once."""
    view, cells = draft.view, draft.view.facts.expiry
    if cells is None or not is_due(view, draft.now):
        return False
    view.facts.expiry = None
    left: list[int] = []
    for key, cell in cells:
        if _names_messages(cell) and not _live(draft, cell):
            cell_lookup.put(draft, (Kind.EXPIRY, key), None)
        elif cell.ids or cell.seqs:
            left.append(expiry_of(key))
    is_all = len(cells) < bounds.EXPIRY_GC_CELLS
    if is_all and not view.tidied_to:
        set_next(draft, left)
    view.tidied_to = b"" if is_all else cells[-1][0] + b"\0"
    if not is_all and len(left) < len(cells):
        return True
    view.tidied_index, view.tidied_ms = view.index, draft.now
    return False


def _names_messages(cell: ExpiryCell) -> bool:
    return bool(cell.seqs) and not cell.ids


def _live(draft: Draft, cell: ExpiryCell) -> BitMap64:
    ended = draft.view.facts.ended.get(range_of(cell), BitMap64())
    return draft.still_live(unpack_seqs(cell.seqs) - ended) - draft.kept()
