"""What is asked about rows that cannot be read, and the cell that remembers them."""

from __future__ import annotations

import msgspec


class QuarantineCell(msgspec.Struct, frozen=True, array_like=True):
    """Why a shard is quarantined. Its key is empty, or the first of some rows that are unreadable.

    Fields are positional on disk: append, never reorder.
    """

    since_ms: int
    reason: str
    last: int = 0
    """The last of the unreadable rows; 0 in the cell with the empty key."""
    shard: int = 0
    """The shard in which the first damage was found; 0 in the cells that name rows."""


class Quarantine(msgspec.Struct, frozen=True):
    """Rows of this shard cannot be read: quarantine its queue or topic.

    Answer: whether any of them is still wanted. If not, nothing is changed.
    """

    first: int
    last: int
    reason: str


class Mend(msgspec.Struct, frozen=True):
    """End the rows within these ranges, which cannot be read. Answer: how many were ended.

    Only a shard that is quarantined takes it.
    """

    ranges: tuple[tuple[int, int], ...]


class EndQuarantine(msgspec.Struct, frozen=True):
    """Every row of the queue or topic can be read again. Answer: whether it was quarantined."""
