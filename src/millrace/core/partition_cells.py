"""The cells of partitions; see `model.py`. Fields are positional on disk."""

from __future__ import annotations

from typing import Literal

import msgspec

Delivery = Literal["messages", "partitions"]
"""What a lease call takes: messages as they wait, or some of a partition, which it locks."""

DELIVERIES: tuple[Delivery, ...] = ("messages", "partitions")


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """A partition: one of equal slices of all ids."""

    served: int = 0
    """Its last turn; the least recently served one goes first."""
    leases: tuple[int, ...] = ()
    """The lease calls that lock it, as long as anything of theirs is held."""


class PartitionCell(msgspec.Struct, frozen=True, array_like=True):
    """The partitions of a queue."""

    key: int
    """What its messages' ids are made with."""
    slices: tuple[Slice, ...]
    waiting: int = 0
    """Messages that were never handed out."""
    turn: int = 0
    """The newest turn."""
    resized: int = 0
    """The newest turn when their number was changed last."""
    peak: int = 0
    """So many were locked at once, at most, since `since_ms`."""
    since_ms: int = 0


class IdCell(msgspec.Struct, frozen=True, array_like=True):
    """A message that has not ended, under its id."""

    seq: int
