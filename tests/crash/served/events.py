"""What clients of a server tell the ledger, besides what a program tells that has its own engine.

Rule 1: all clients tell it through one socket, each event in one packet: the ledger hears them in
the order in which they were said, whoever said them.
Rule 2: a chore is a message of a queue that a publisher with a window fills and a worker empties.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tests.crash.events import AnyEvent, Duty, Event


class Assign(Event):
    """A chore is being published."""

    tag: int


class Assigned(Event):
    """It was confirmed at this seq; 0 where it is a repeat from too long ago."""

    tag: int
    seq: int


class Worked(Event):
    """The worker's function was called with it."""

    tag: int
    seq: int
    at_ms: int
    deadline_ms: int
    """Until then nobody else may get it."""


class LookChores(Event):
    """All chores that are there while nothing else happens."""

    at_ms: int
    rows: list[tuple[int, int]]
    """Seqs and tags."""
    published: int
    """What was ever published."""


class Rested(Event):
    """A client has done what it was told to, and waits."""

    client: int


AnyChore = Assign | Assigned | Worked | LookChores
Said = AnyEvent | AnyChore | Rested

_decoder = msgspec.msgpack.Decoder(Said)
_PREFIX_BYTES = 4


def said_in(packet: bytes) -> Said:
    """The one event of a packet."""
    found: Said = _decoder.decode(memoryview(packet)[_PREFIX_BYTES:])
    return found


class Order(msgspec.Struct):
    """What a client is told to do."""

    do: Literal["play", "rest", "look", "drain"]
    duty: Duty | None = None
    """To look: what is to be shown, and done again."""
