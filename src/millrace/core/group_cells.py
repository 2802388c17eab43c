"""The group of a message, and the cells by which groups take turns.

Their fields are positional on disk (`docs/formats/cell.md`): append, never reorder.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from millrace.core.place import GROUP_HEADER as GROUP_HEADER

Order = Literal["none", "strict", "group", "fair"]
"""Who waits for whom: nobody, all for one another, or each for its group."""

ORDERS: tuple[Order, ...] = ("none", "strict", "group", "fair")

Blocking = Literal["lease", "message"]
"""How messages in flight block their group in the order `group`: `lease`, all of it until the whole
lease call has ended; `message`, what comes after the first message that is not visible."""

BLOCKINGS: tuple[Blocking, ...] = ("lease", "message")


def group_of(key: bytes | None, headers: Iterable[tuple[str, bytes]]) -> bytes:
    """The group that is named, else the key, else the empty group."""
    for name, value in headers:
        if name == GROUP_HEADER:
            return value
    return key or b""


class TurnCell(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What waits of a group, in the order in which it comes to its turn."""

    seqs: tuple[int, ...]
    head: int = 0
    """Then come those of its cells of kind GROUP from this number on."""
    tail: int = 0
    """The number of the next such cell."""
    paid_us: int = 0
    """The group's rate allows what was handed out so far by this time."""
    due_ms: int = 0
    """Its cell of kind BUCKET, if it waits for its rate or is only remembered for it."""


class GroupCell(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Messages of a group that come to their turn one after the other."""

    seqs: tuple[int, ...]


class RingCell(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A page of the ring: who comes to its turn, one after the other."""

    groups: tuple[int | None, ...]
    """By their numbers, from the turn on that the key names; None: that turn is over. Of a group
    that waits for its rate: that one alone."""


GroupedCell = TurnCell | GroupCell | RingCell
"""What groups are written down in."""
