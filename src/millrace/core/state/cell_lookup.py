"""Point lookups of cells that a view does not hold, by key.

Rule 1: a check names all cells that it needs at once (`need`); only then may it look.
Rule 2: the store answers as of the last folded batch. Later decisions lie above its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millrace.core.cells import (
    LOOKUP_KINDS,
    Cell,
    Kind,
    TurnCell,
)
from millrace.core.format.codec import decode_cell
from millrace.core.needs import Need
from millrace.core.state.draft import Draft
from millrace.core.state.view import View

CellName = tuple[Kind, bytes]
"""Kind and key of a cell."""


def need(draft: Draft, names: Iterable[CellName]) -> Need | None:
    """Return the Need of those cells that are neither cached nor decided since; None if all are."""
    view = draft.view
    if not view.stored_index:
        # The store does not know the shard yet.
        return None
    missing = list(dict.fromkeys(names))
    for cells in (draft.points, view.facts.points, *(layer.points for layer in view.layers)):
        if cells:
            missing = [name for name in missing if name not in cells]
    return Need(view.shard, points=tuple(missing)) if missing else None


def look(draft: Draft, name: CellName) -> Cell | None:
    """Return the cell as left by the commands before this one, or None."""
    if name in draft.points:
        return draft.points[name]
    for layer in reversed(draft.view.layers):
        if name in layer.points:
            return layer.points[name]
    if not draft.view.stored_index:
        return None
    return draft.view.facts.points[name]


def put(draft: Draft, name: CellName, cell: Cell | None) -> None:
    """Note a cell that is new or was changed, or (None) was deleted."""
    assert name[0] in LOOKUP_KINDS
    draft.points[name] = cell


def learn(view: View, names: Sequence[CellName], values: Sequence[bytes | None]) -> None:
    """Cache the store's answer to a need.

    Cells of groups stay cached, as long as every change of them is: see `GroupIndex.cells`.
    """
    facts, groups = view.facts.points, view.groups.cells
    for name, value in zip(names, values, strict=True):
        kind, key = name
        cell = None if value is None else decode_cell(kind, value)
        if kind is Kind.TURN:
            assert cell is None or isinstance(cell, TurnCell)
            groups[int.from_bytes(key[8:], "big")] = cell
        else:
            facts[name] = cell
