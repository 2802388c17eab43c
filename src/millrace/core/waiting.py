"""Messages that wait apart: their cells as values, and the keys that sort them by their turn.

Rule 1: a key begins with the era, so that a purge, which begins another, leaves nothing to skip.
Rule 2: a key ends with the first seq of the cell, so that no two cells have the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.codec import decode_cell, encode_cell
from millrace.core.model import AsideCell, Kind
from millrace.core.seqs import pack_seqs, unpack_seqs

_DUE = struct.Struct(">QQQ")
_READY = struct.Struct(">QBQQ")

_ALONE = [encode_cell(AsideCell(b"", priority)) for priority in range(limits.PRIORITY_MAX + 1)]
"""By its priority, the cell of a message that waits alone."""
_PRIORITY_ALONE = {value: priority for priority, value in enumerate(_ALONE)}


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """An `AsideCell` at work. Of those that name a single message there may be millions."""

    first: int
    priority: int
    more: BitMap64 | None = None
    """All of them, if there are several."""
    groups: tuple[int, ...] = ()

    @classmethod
    def of(cls, seqs: BitMap64, priority: int, groups: tuple[int, ...] = ()) -> Waiting:
        """These wait; the set must not be changed any more."""
        return cls(seqs.min(), priority, seqs if len(seqs) > 1 else None, groups)

    @property
    def seqs(self) -> BitMap64:
        """The messages; not to be changed."""
        return BitMap64((self.first,)) if self.more is None else self.more

    def cell(self) -> AsideCell:
        """Of a single message the key alone tells which it is."""
        seqs = pack_seqs(self.more) if self.more is not None else b""
        return AsideCell(seqs, self.priority, self.groups)

    def encoded(self) -> bytes:
        """The bytes of the cell."""
        if self.more is None and not self.groups:
            return _ALONE[self.priority]
        return encode_cell(self.cell())


Waits = dict[tuple[Kind, bytes], Waiting | None]
"""Kind and key → the cell that a batch has put, or None where it has deleted one."""


def load(kind: Kind, key: bytes, value: bytes) -> Waiting:
    """The cell that these bytes are."""
    priority = _PRIORITY_ALONE.get(value)
    if priority is not None:
        return Waiting(int.from_bytes(key[-8:], "big"), priority)
    cell = decode_cell(kind, value)
    assert isinstance(cell, AsideCell)
    return Waiting.of(seqs_in(key, cell), cell.priority, cell.groups)


def union(cells: Sequence[Waiting]) -> BitMap64:
    """The messages of all of these cells."""
    alone = BitMap64([cell.first for cell in cells])
    return alone.union(*(cell.more for cell in cells if cell.more is not None))


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
