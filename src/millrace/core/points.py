"""Cells of which a view holds nothing: each is asked for by its key, when a command needs it.

Rule 1: a check names all that it needs at once (`need`); only then may it look.
Rule 2: the store answers as of the last folded batch. What was decided since lies above its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millrace.core.codec import decode_cell
from millrace.core.commands import Need
from millrace.core.draft import Draft
from millrace.core.group_cells import TurnCell
from millrace.core.model import ASKED, Cell, Kind
from millrace.core.view import View

Name = tuple[Kind, bytes]
"""Kind and key of a cell."""


def need(draft: Draft, names: Iterable[Name]) -> Need | None:
    """What the store must be asked for before `look` can tell of these."""
    view = draft.view
    if not view.stored_index:
        # The store does not know the shard yet.
        return None
    missing = list(dict.fromkeys(names))
    for known in (draft.points, view.facts.points, *(layer.points for layer in view.layers)):
        if known:
            missing = [name for name in missing if name not in known]
    return Need(view.shard, points=tuple(missing)) if missing else None


def look(draft: Draft, name: Name) -> Cell | None:
    """The cell as the commands before this one have left it, or None."""
    if name in draft.points:
        return draft.points[name]
    for layer in reversed(draft.view.layers):
        if name in layer.points:
            return layer.points[name]
    if not draft.view.stored_index:
        return None
    return draft.view.facts.points[name]


def put(draft: Draft, name: Name, cell: Cell | None) -> None:
    """The cell is new or was changed, or (None) is no longer there."""
    assert name[0] in ASKED
    draft.points[name] = cell


def learn(view: View, names: Sequence[Name], found: Sequence[bytes | None]) -> None:
    """The store's answer to a need.

    Cells of groups are remembered, as long as every change of them is: see `Groups.cells`.
    """
    facts, groups = view.facts.points, view.groups.cells
    for name, value in zip(names, found, strict=True):
        kind, key = name
        cell = None if value is None else decode_cell(kind, value)
        if kind is Kind.TURN:
            assert cell is None or isinstance(cell, TurnCell)
            groups[int.from_bytes(key[8:], "big")] = cell
        else:
            facts[name] = cell
