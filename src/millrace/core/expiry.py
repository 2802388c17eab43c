"""What goes by itself at a stated time, and is too much for memory: cells sorted by that time.

Rule 1: a cell names what goes at its time. Until then nobody looks at it.
Rule 2: time is checked where it matters; a tick only tidies up, so much at once, and may be late.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import islice

import msgspec

from millrace.core import bounds, points
from millrace.core.codec import decode_cell
from millrace.core.commands import Need
from millrace.core.draft import Draft
from millrace.core.model import DedupCell, ExpiryCell, Kind
from millrace.core.view import View

_KEY = struct.Struct(">QQL")


def expiry_key(due_ms: int, index: int, at: int) -> bytes:
    """Of the cells of a batch that go at the same time, `at` counts them."""
    return _KEY.pack(due_ms, index, at)


def expiry_of(key: bytes) -> int:
    """The time that a key of `Kind.EXPIRY` names."""
    return int(_KEY.unpack(key)[0])


def put_ids(draft: Draft, due_ms: int, ids: Sequence[bytes]) -> None:
    """These de-duplication ids are forgotten from then on."""
    left = iter(ids)
    while part := tuple(islice(left, bounds.EXPIRY_CELL_MAX)):
        _put(draft, due_ms, ExpiryCell(part))


def _put(draft: Draft, due_ms: int, cell: ExpiryCell) -> None:
    view = draft.view
    at = draft.expiries
    draft.expiries += 1
    points.put(draft, (Kind.EXPIRY, expiry_key(due_ms, draft.index, at)), cell)
    view.expiry_ms = due_ms if view.expiry_ms is None else min(view.expiry_ms, due_ms)
    if not view.pointers.expires:
        draft.put_pointers(msgspec.structs.replace(view.pointers, expires=1))


def tick_due(view: View, now: int) -> bool:
    """Whether something may be due."""
    return view.expiry_ms is not None and view.expiry_ms <= now


def check_tick(draft: Draft) -> Need | None:
    """What of that which is due the store must be asked for."""
    view = draft.view
    if not tick_due(view, draft.now) or not view.stored_index:
        return None
    if view.facts.expiry is None:
        return Need(view.shard, cells=(Kind.EXPIRY, b"", bounds.EXPIRY_CELLS_STEP))
    return points.need(draft, [(Kind.DEDUP, key) for _, cell in _due(draft) for key in cell.ids])


def _due(draft: Draft) -> list[tuple[bytes, ExpiryCell]]:
    found = draft.view.facts.expiry or ()
    return [(key, cell) for key, cell in found if expiry_of(key) <= draft.now]


def do_tick(draft: Draft) -> bool:
    """Let go of what is due, so much at once; whether there may be more."""
    view = draft.view
    if not tick_due(view, draft.now):
        return False
    due, found = _due(draft), view.facts.expiry or []
    view.facts.expiry = None
    for key, cell in due:
        for name in cell.ids:
            _forget_id(draft, name)
        points.put(draft, (Kind.EXPIRY, key), None)
    if len(due) == bounds.EXPIRY_CELLS_STEP:
        return True
    _set_next(draft, [expiry_of(key) for key, _ in found[len(due) :]])
    return False


def _forget_id(draft: Draft, key: bytes) -> None:
    """It may have been used again since: then another cell names it."""
    name = (Kind.DEDUP, key)
    cell = points.look(draft, name)
    if isinstance(cell, DedupCell) and cell.until_ms <= draft.now:
        points.put(draft, name, None)


def _set_next(draft: Draft, times: list[int]) -> None:
    """When a tick has something to do next: by the store, and by what it does not hold yet."""
    view = draft.view
    changed = [*(layer.points for layer in view.layers), draft.points]
    for names in changed:
        times += [
            expiry_of(key)
            for (kind, key), cell in names.items()
            if kind is Kind.EXPIRY and cell is not None
        ]
    view.expiry_ms = min(times, default=None)
    if view.expiry_ms is None and view.pointers.expires:
        draft.put_pointers(msgspec.structs.replace(view.pointers, expires=0))


def learn(draft: Draft, found: Sequence[tuple[bytes, bytes]]) -> None:
    """The store's answer to a need, without what was let go since."""
    gone = {
        key
        for names in (*(layer.points for layer in draft.view.layers), draft.points)
        for (kind, key), cell in names.items()
        if kind is Kind.EXPIRY and cell is None
    }
    cells: list[tuple[bytes, ExpiryCell]] = []
    for key, value in found:
        cell = decode_cell(Kind.EXPIRY, value)
        assert isinstance(cell, ExpiryCell)
        cells.append((key, cell if key not in gone else ExpiryCell()))
    draft.view.facts.expiry = cells
