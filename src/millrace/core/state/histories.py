"""Translates positions of earlier histories, after a restore or takeover.

A position names its history. The takeover table says up to which index and seq the present history
shares each earlier one; batches after that were never promised to anyone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from millrace import limits
from millrace.core.cells import CursorCell, Kind, TakeoverCell
from millrace.core.format.codec import decode_cell, encode_cell
from millrace.core.model import CursorPosition, History
from millrace.errors import CursorExpired, Invalid, Refused


def shared_seq(
    table: Sequence[TakeoverCell], history: bytes, current: History, high: int
) -> int | None:
    """Return the last seq that `history` shares with the current one, or None if it is unknown.

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
    """Return the last shared index of a batch, as `shared_seq`: it is confirmed by members of a
    chain."""
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
    position: CursorPosition,
) -> int | None:
    """Return the seq to which a follower has to go back, or None if it goes on at its position.

    - Behind the purge floor it may have missed a delete: it starts over, from 0.
    - An unknown history shares nothing: it starts from 0.
    - Inside a snapshot that is not shared to its end, it goes back to the snapshot's *start*: rows
      that were deduplicated away on its side may be needed again.
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


def locate(
    table: Sequence[TakeoverCell],
    current: History,
    high: int,
    floor: int,
    position: CursorPosition,
) -> CursorPosition | Refused:
    """Return the place in the present history for a follower that keeps its own position.

    The same seq: it goes on there. A lower seq: everything that the follower has read after it was
    rolled back, and must be undone first; an unknown history shares nothing. The position is
    refused if rows that the follower would have to read are gone.
    """
    seq, start, end = position.seq, position.snapshot_start, position.snapshot_end
    if not 0 <= start <= seq <= end:
        return Invalid("the position is damaged; take another one", field="position")
    if position.history == current and end > high:
        return Invalid(
            f"the position is at {end}, and the queue ends at {high}: it is of another queue",
            field="position",
            limit=high,
        )
    place = located(table, current, high, position)
    if 0 < seq < floor or 0 < place.seq < floor:
        return CursorExpired(
            f"the position is at {place.seq}, and rows up to {floor} are gone: start over, at the "
            "beginning",
            field="position",
            limit=floor,
        )
    return place


def located(
    table: Sequence[TakeoverCell], current: History, high: int, position: CursorPosition
) -> CursorPosition:
    """Return the place of a position in the present history, even if rows there are gone."""
    seq = position.seq
    if shared_seq(table, position.history, current, high) is None:
        return CursorPosition(current, 0, 0, 0)
    back = resume(table, current, high, 0, position)
    if back is not None:
        return CursorPosition(current, back, back, back)
    if seq in (position.snapshot_start, position.snapshot_end):
        return CursorPosition(current, seq, seq, seq)
    return msgspec.structs.replace(position, history=current)


def trim(table: Mapping[bytes, bytes], cursors: Iterable[bytes]) -> dict[bytes, bytes | None]:
    """Return the changes that trim a takeover table to its newest lines and those that cursors
    need.

    Table and cursors are cells, the table's in order; None: the line is deleted. Its index and seq
    still bound the older lines that stay, and are merged into the line before it.
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
