"""Histories: where a follower may go on after the one it followed was replaced.

A position names its history. The takeover table says, for each earlier history, up to which index
and seq the present one shares it; what lies beyond was never promised to anyone.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.core.model import History, Position, TakeoverCell


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
