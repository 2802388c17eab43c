"""How long messages live, and how a leased one is replaced; see `commands.py`."""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from millrace.core.model import LeaseId, Message


class Life(msgspec.Struct, frozen=True):
    """Rows of a publish that expire so long after it, unless they are settled."""

    at: int
    count: int
    ttl_ms: int


class Replace(msgspec.Struct, frozen=True):
    """Settle a message of a lease call, and publish and lease its successor. Answer: `Leased`."""

    lease: LeaseId
    seqs: BitMap64
    """The one message."""
    history: bytes
    message: Message
    lease_ms: int
