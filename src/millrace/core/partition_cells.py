"""The cells of partitions; see `model.py`. Fields are positional on disk."""

from __future__ import annotations

from typing import Literal

import msgspec

Delivery = Literal["messages", "partitions"]
"""What a lease call takes: messages as they wait, or some of a partition, which it locks."""

DELIVERIES: tuple[Delivery, ...] = ("messages", "partitions")


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """A partition: a slice of all ids."""

    served: int = 0
    """Its last turn; the least recently served one goes first."""
    leases: tuple[int, ...] = ()
    """The lease calls that lock it, as long as anything of theirs is held."""


class SlicesCell(msgspec.Struct, frozen=True, array_like=True):
    """A page: partitions whose numbers follow each other."""

    slices: tuple[Slice, ...]


class PartitionCell(msgspec.Struct, frozen=True, array_like=True):
    """The partitions of a queue, and what is counted of them."""

    key: int
    """What its messages' ids are made with."""
    slices: tuple[Slice, ...] = ()
    """In folders of earlier versions: all of them, which are equal; else none, pages have them."""
    waiting: int = 0
    """Messages that were never handed out."""
    turn: int = 0
    """The newest turn."""
    resized: int = 0
    """The newest turn when their number was changed last."""
    peak: int = 0
    """So many were locked at once, at most, since `since_ms`."""
    since_ms: int = 0
    count: int = 0
    """How many there are, where pages have them."""
    base: int = 0
    """With so many equal ones they began; see `partition_layout.py`."""
    first: int = 0
    """No message before this seq waits that was never handed out."""

    @property
    def size(self) -> int:
        """How many partitions there are."""
        return self.count or len(self.slices)

    @property
    def root(self) -> int:
        """With how many equal ones they began."""
        return self.base or len(self.slices)


class IdCell(msgspec.Struct, frozen=True, array_like=True):
    """A message that has not ended, under its id."""

    seq: int
