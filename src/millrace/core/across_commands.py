"""What is asked of all shards of a queue at once, and what is answered for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millrace.core.model import ShardId

if TYPE_CHECKING:
    from millrace.core.answers import Leased, SnapshotRef
    from millrace.core.commands import NextSnapshot


class LeaseAcross(msgspec.Struct, frozen=True):
    """As `Lease`, from all shards of a queue, those first that were served longest ago.

    Answer: `LeasedAcross`, perhaps empty.
    """

    shards: tuple[ShardId, ...]
    count: int
    lease_ms: int


class SnapshotAcross(msgspec.Struct, frozen=True):
    """Pin what lies after a cursor on all shards of a queue, at one moment.

    Answer: `Vector`, or None where nothing lies there.
    """

    parts: tuple[tuple[ShardId, NextSnapshot], ...]


class LeasedAcross(msgspec.Struct, frozen=True):
    """What a lease call handed out, by shard, in the order in which they were served."""

    parts: tuple[tuple[ShardId, Leased], ...]
    bounded: bool = False
    """There are none, on one of the shards because `max_in_flight` allows no more."""


class Vector(msgspec.Struct, frozen=True):
    """A snapshot of all shards of a queue, in their order, taken at one moment."""

    number: int
    """The cursor's own count of them."""
    refs: tuple[SnapshotRef, ...]
    """Without a pin where nothing is left to read."""
