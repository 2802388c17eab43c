"""Deferred messages (delayed, or with a priority): their cells, and keys that sort them by turn.

Rule 1: a key begins with the era, so that a purge, which begins another, leaves nothing to skip.
Rule 2: a key ends with the first seq of the cell, so that keys are unique.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import DeferredCell, Kind
from millrace.core.format.codec import decode_cell, encode_cell
from millrace.core.format.seq_sets import pack_seqs, unpack_seqs

_DUE = struct.Struct(">QQQ")
_READY = struct.Struct(">QBQQ")

_ALONE = [encode_cell(DeferredCell(b"", priority)) for priority in range(limits.PRIORITY_MAX + 1)]
"""Encoded cells of a single message, by priority."""
_PRIORITY_ALONE = {value: priority for priority, value in enumerate(_ALONE)}


class DeferredMessages(msgspec.Struct, frozen=True, gc=False):
    """The in-memory form of a `DeferredCell`. There may be millions with a single message."""

    first: int
    priority: int
    more: BitMap64 | None = None
    """All of them, if there are several."""
    groups: tuple[int, ...] = ()

    @classmethod
    def of(cls, seqs: BitMap64, priority: int, groups: tuple[int, ...] = ()) -> DeferredMessages:
        """Return the value for these seqs; the set must not be modified any more."""
        return cls(seqs.min(), priority, seqs if len(seqs) > 1 else None, groups)

    @property
    def seqs(self) -> BitMap64:
        """The messages; not to be changed."""
        return BitMap64((self.first,)) if self.more is None else self.more

    def cell(self) -> DeferredCell:
        """Return the cell; a single message is named by the key alone."""
        seqs = pack_seqs(self.more) if self.more is not None else b""
        return DeferredCell(seqs, self.priority, self.groups)

    def encoded(self) -> bytes:
        """Return the cell as bytes."""
        if self.more is None and not self.groups:
            return _ALONE[self.priority]
        return encode_cell(self.cell())


DeferredChanges = dict[tuple[Kind, bytes], DeferredMessages | None]
"""Kind and key → the cell that a batch has put, or None where it has deleted one."""


def load(kind: Kind, key: bytes, value: bytes) -> DeferredMessages:
    """Decode a cell."""
    priority = _PRIORITY_ALONE.get(value)
    if priority is not None:
        return DeferredMessages(int.from_bytes(key[-8:], "big"), priority)
    cell = decode_cell(kind, value)
    assert isinstance(cell, DeferredCell)
    return DeferredMessages.of(seqs_in(key, cell), cell.priority, cell.groups)


def union(cells: Sequence[DeferredMessages]) -> BitMap64:
    """Return the messages of all of these cells."""
    alone = BitMap64([cell.first for cell in cells])
    return alone.union(*(cell.more for cell in cells if cell.more is not None))


def seqs_in(key: bytes, cell: DeferredCell) -> BitMap64:
    """Return the messages of a cell with this key."""
    return unpack_seqs(cell.seqs) if cell.seqs else BitMap64((int.from_bytes(key[-8:], "big"),))


def due_key(era: int, due_ms: int, seq: int) -> bytes:
    """Return the key of messages that wait for their time: the earliest come first."""
    return _DUE.pack(era, due_ms, seq)


def ready_key(era: int, priority: int, ready_ms: int, seq: int) -> bytes:
    """Return the key of messages that are ready: by priority, then by time of becoming ready."""
    return _READY.pack(era, limits.PRIORITY_MAX - priority, ready_ms, seq)


def due_of(key: bytes) -> int:
    """Return the time in a key of kind DUE, or in one just after it."""
    return int(_DUE.unpack_from(key)[1])


def ready_since(key: bytes) -> int:
    """Return the time in a key of kind READY."""
    return int(_READY.unpack(key)[2])
