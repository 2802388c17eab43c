"""Messages that wait apart: their cells as values, and the keys that sort them by their turn.

Rule 1: a key begins with the era, so that a purge, which begins another, leaves nothing to skip.
Rule 2: a key ends with the first seq of the cell, so that no two cells have the same.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pyroaring import BitMap64

from millrace import limits
from millrace.core.codec import decode_cell
from millrace.core.model import AsideCell, Kind
from millrace.core.seqs import pack_seqs, unpack_seqs

_DUE = struct.Struct(">QQQ")
_READY = struct.Struct(">QBQQ")


class Waiting(NamedTuple):
    """An `AsideCell` at work. Not to be changed."""

    seqs: BitMap64
    priority: int
    groups: tuple[int, ...] = ()

    def cell(self) -> AsideCell:
        """Of a single message the key alone tells which it is: of these there may be millions."""
        seqs = pack_seqs(self.seqs) if len(self.seqs) > 1 else b""
        return AsideCell(seqs, self.priority, self.groups)


Waits = dict[tuple[Kind, bytes], Waiting | None]
"""Kind and key → the cell that a batch has put, or None where it has deleted one."""


def load(kind: Kind, key: bytes, value: bytes) -> Waiting:
    """The cell that these bytes are."""
    cell = decode_cell(kind, value)
    assert isinstance(cell, AsideCell)
    return Waiting(seqs_in(key, cell), cell.priority, cell.groups)


def seqs_in(key: bytes, cell: AsideCell) -> BitMap64:
    """The messages of a cell with this key."""
    return unpack_seqs(cell.seqs) if cell.seqs else BitMap64((int.from_bytes(key[-8:], "big"),))


def due_key(era: int, due_ms: int, seq: int) -> bytes:
    """Of messages that wait for their time: the soonest come first."""
    return _DUE.pack(era, due_ms, seq)


def ready_key(era: int, priority: int, ready_ms: int, seq: int) -> bytes:
    """Of messages that wait for a worker: by priority, then who has waited longest."""
    return _READY.pack(era, limits.PRIORITY_MAX - priority, ready_ms, seq)


def due_of(key: bytes) -> int:
    """The time that a key of `Kind.DUE` names, or one just behind it."""
    return int(_DUE.unpack_from(key)[1])


def ready_since(key: bytes) -> int:
    """The time that a key of `Kind.READY` names."""
    return int(_READY.unpack(key)[2])
