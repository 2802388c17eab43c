"""The cells of ids, and of what goes by itself at a stated time; see `model.py`."""

from __future__ import annotations

import struct

import msgspec

_EXPIRY_KEY = struct.Struct(">QQL")


class DedupCell(msgspec.Struct, frozen=True, array_like=True):
    """A de-duplication id that was used: another message with it is a repeat of the first."""

    seq: int
    until_ms: int
    """From then on it is as if it had never been used."""


class AttemptCell(msgspec.Struct, frozen=True, array_like=True):
    """A lease call that may be made again: what it was answered."""

    lease: int
    deadline_ms: int
    """If the lease has another one by now, it was extended."""
    time_ms: int
    turns: tuple[bytes, ...] = ()
    """Its seqs in the order in which they came to their turn; empty: in their own."""


class ExpiryCell(msgspec.Struct, frozen=True, array_like=True):
    """What goes by itself at the time that the cell's key names."""

    ids: tuple[bytes, ...] = ()
    """Keys of `Kind.DEDUP`; one that was used again since stays."""
    seqs: bytes = b""
    """Messages whose time to live is over."""


def expiry_key(due_ms: int, index: int, at: int) -> bytes:
    """Of the cells of a batch that go at the same time, `at` counts them."""
    return _EXPIRY_KEY.pack(due_ms, index, at)


def expiry_of(key: bytes) -> int:
    """The time that a key of `Kind.EXPIRY` names."""
    return int(_EXPIRY_KEY.unpack(key)[0])
