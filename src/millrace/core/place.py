"""Where a message is within its queue, as one number.

A seq counts within a shard. What a program is told of a message must name both; in a queue with one
shard that is the seq itself.
"""

from __future__ import annotations

from typing import Literal

Route = Literal["key", "group", "spread"]
"""By the hash of the key, by that of the group (else the key), or in turns."""

ROUTES: tuple[Route, ...] = ("key", "group", "spread")

GROUP_HEADER = "millrace-group"
"""The header that names a message's group, where that is not its key."""

SEQ_BITS = 48
"""Seqs stay far below: a million messages a second for nine years."""

_SEQ_MASK = (1 << SEQ_BITS) - 1


class Place(int):
    """A number that is the message's own within its queue, and tells shard and seq.

    Places are ordered by shard, then by seq. The shard is counted from 0 within the queue.
    """

    __slots__ = ()

    @classmethod
    def of(cls, shard: int, seq: int) -> Place:
        """The place of the seq in this shard of the queue."""
        return cls(shard << SEQ_BITS | seq)

    @property
    def shard(self) -> int:
        """Which shard of its queue, from 0."""
        return int(self) >> SEQ_BITS

    @property
    def seq(self) -> int:
        """The message's number within the shard."""
        return int(self) & _SEQ_MASK

    def __repr__(self) -> str:
        return f"Place(shard={self.shard}, seq={self.seq})"

    def __str__(self) -> str:
        return f"{self.shard}:{self.seq}"
