"""Values shared by the whole core: ids, messages, rows and positions."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Literal, NewType

import msgspec

Seq = NewType("Seq", int)
"""Number of a message within its shard, from 1; 0 means "before the first"."""

Index = NewType("Index", int)
"""Number of a batch within its shard, from 1."""

ShardId = NewType("ShardId", int)
"""Number of a shard; never used twice, so that it is the shard's incarnation too."""

LeaseId = NewType("LeaseId", int)
"""Number of a lease call within its shard, from 1; the version that a receipt names."""

PinId = NewType("PinId", int)
"""Number of a pin within its shard, from 1."""

GroupId = NewType("GroupId", int)
"""Number of a commit group on its node."""

Epoch = NewType("Epoch", int)
"""Number of a commit group's decider; it only rises."""

Millis = NewType("Millis", int)
"""Milliseconds since 1970, as stamped by the decider: never falling within a shard."""

History = NewType("History", bytes)
"""UUID (16 bytes) of an unbroken sequence of batches."""

CATALOG = ShardId(0)
"""The shard that holds the names of a group's queues."""

NEVER_MS = 1 << 62
"""The deadline of leases that end with their session."""

Headers = tuple[tuple[str, bytes], ...]
"""Names and values, in order; duplicates are allowed."""

Route = Literal["key", "group", "spread"]
"""Routing by the hash of the key, by that of the group (else the key), or in turns."""

ROUTES: tuple[Route, ...] = ("key", "group", "spread")

GROUP_HEADER = "millrace-group"
"""The header that names a message's group, if that is not its key."""

SEQ_BITS = 48
"""Bits of a seq within a place: enough for a million messages per second over nine years."""

_SEQ_MASK = (1 << SEQ_BITS) - 1


def group_of(key: bytes | None, headers: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the group header, else the key, else the empty group."""
    for name, value in headers:
        if name == GROUP_HEADER:
            return value
    return key or b""


class NewMessage(msgspec.Struct, frozen=True):
    """A message of a producer. Without a body it deletes its key."""

    body: bytes | None
    key: bytes | None = None
    headers: Headers = ()


class Row(msgspec.Struct, frozen=True):
    """A published message with its seq and time."""

    seq: int
    time_ms: int
    body: bytes | None
    key: bytes | None
    headers: Headers

    def size(self) -> int:
        """Return the bytes of body, key and headers."""
        size = len(self.body or b"") + len(self.key or b"")
        if self.headers:
            names, values = zip(*self.headers, strict=True)
            size += len("".join(names).encode()) + sum(map(len, values))
        return size

    @property
    def group(self) -> bytes:
        """The message group, which matters if the queue's order has groups."""
        return group_of(self.key, self.headers)


class DeadLetterReason(IntEnum):
    """The reason why a message is a dead letter. Numbers are part of the format."""

    FAILURES = 1
    DELIVERIES = 2
    DISCARDED = 3
    EXPIRED = 4
    LENGTH = 5


class Death(IntEnum):
    """The reason for the end of a row. Numbers are part of the format."""

    SETTLED = 1
    SUPERSEDED = 2
    EXPIRED = 3
    DEAD_LETTERED = 4
    DROPPED = 5
    PURGED = 6


class CursorPosition(msgspec.Struct, frozen=True, array_like=True):
    """A follower's position: exact across takeovers, because it names its history and snapshot."""

    history: bytes
    seq: int
    snapshot_start: int
    snapshot_end: int


class Place(int):
    """The position of a message in its queue: shard and seq in one number.

    Places are ordered by shard, then by seq. The shard is counted from 0 within the queue.
    """

    __slots__ = ()

    @classmethod
    def of(cls, shard: int, seq: int) -> Place:
        """Return the place of a seq in this shard of the queue."""
        return cls(shard << SEQ_BITS | seq)

    @property
    def shard(self) -> int:
        """Number of the shard within its queue, from 0."""
        return int(self) >> SEQ_BITS

    @property
    def seq(self) -> int:
        """The message's number within the shard."""
        return int(self) & _SEQ_MASK

    def __repr__(self) -> str:
        return f"Place(shard={self.shard}, seq={self.seq})"

    def __str__(self) -> str:
        return f"{self.shard}:{self.seq}"


class StartPoint(Enum):
    """The start of a new cursor, if it is neither a seq nor a time."""

    BEGINNING = "beginning"
    END = "end"
