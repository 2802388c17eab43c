"""Histories: where a follower may go on after the one it followed was replaced.

A position names its history. The takeover table says, for each earlier history, up to which index
and seq the present one shares it; what lies beyond was never promised to anyone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millrace import limits
from millrace.core.codec import decode_cell, encode_cell
from millrace.core.model import CursorCell, History, Kind, Position, TakeoverCell


def shared_seq(
    table: Sequence[TakeoverCell], history: bytes, current: History, high: int
) -> int | None:
    """The last seq that `history` shares with the current one, or None if it is unknown.

    `table` is in the order of takeovers, oldest first. A seq counts as shared only if no later
    takeover went back behind it, hence the minimum over all that followed.
    """
    if history == current:
        return high
    for at, line in enumerate(table):
        if line.history == history:
            return min(later.seq for later in table[at:])
    return None


def shared_index(
    table: Sequence[TakeoverCell], history: bytes, current: History, high: int
) -> int | None:
    """As `shared_seq`, for the index of a batch: what members of a chain confirm."""
    if history == current:
        return high
    for at, line in enumerate(table):
        if line.history == history:
            return min(later.index for later in table[at:])
    return None


def resume(
    table: Sequence[TakeoverCell],
    current: History,
    high: int,
    floor: int,
    position: Position,
) -> int | None:
    """Where the follower at `position` goes on: None = where it is, else the seq to go back to.

    - Behind the purge floor it may have missed a delete: it starts over, from 0.
    - Of an unknown history nothing is shared: from 0.
    - Inside a snapshot that is not shared to its end, it goes back to the snapshot's *start*: rows
      that were de-duplicated away on its side may be needed again.
    """
    start, end, seq = position.snapshot_start, position.snapshot_end, position.seq
    if seq == 0:
        return None
    if seq < floor:
        return 0
    upper = shared_seq(table, position.history, current, high)
    if upper is None:
        return 0
    if seq == start:
        end = seq
    if seq == end:
        start = seq
    if end <= upper:
        return None
    return upper if upper < start else start


def trim(table: Mapping[bytes, bytes], cursors: Iterable[bytes]) -> dict[bytes, bytes | None]:
    """What changes when a table keeps its newest lines, and those that a cursor's history needs.

    Table and cursors are cells, the table's in order; None: the line goes. What it took back counts
    for the older lines that stay, and is handed on to the one before it.
    """
    older = list(table.items())[: max(len(table) - limits.HISTORIES_MAX, 0)]
    if not older:
        return {}
    named = {cell.position.history for cell in map(_cursor, cursors)}
    changed: dict[bytes, bytes | None] = {}
    before: tuple[bytes, TakeoverCell] | None = None
    for key, value in older:
        line = decode_cell(Kind.TAKEOVER, value)
        assert isinstance(line, TakeoverCell)
        if line.history in named:
            before = key, line
            continue
        changed[key] = None
        if before is not None:
            name, kept = before
            least = min(kept.index, line.index), min(kept.seq, line.seq)
            if least != (kept.index, kept.seq):
                before = name, TakeoverCell(kept.history, *least)
                changed[name] = encode_cell(before[1])
    return changed


def _cursor(value: bytes) -> CursorCell:
    cell = decode_cell(Kind.CURSOR, value)
    assert isinstance(cell, CursorCell)
    return cell
