"""Where rows lie: in a record of the log, or in a record batch of a sealed file.

A place is the value of a key in BLOCKS. The key says which seq comes first; a place says how far
the rows reach from there, so that the same place serves a stage before and after it is published.
"""

from __future__ import annotations

import struct

import msgspec

from millrace.errors import Corrupt
from millrace.wal.record import Position

RELATIVE = 16
"""Flag: the rows were staged when they were sealed; the key says their seqs, the place their time.
The lower flags are those of a block."""

COMPRESSED = 32
"""Flag: the buffers of the record batch are compressed."""

UNREADABLE = 64
"""Flag: the rows cannot be read; `number` names the file that keeps their bytes, `home` is 0."""

_LOG = struct.Struct(">BBIQQQq")
_SEALED = struct.Struct(">BBIQQQQqqII")
_LOG_TAG = 1
_SEALED_TAG = 2


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where consecutive rows lie, and what can be said of them without reading them."""

    home: int
    """A generation of the log, or the number of a sealed file."""
    offset: int
    length: int
    count: int
    """Rows that are there."""
    span: int
    """Seqs from the first row to the last; those that are not there are dead for everyone."""
    time_ms: int
    """Of the first row."""
    last_ms: int
    """Of the last row."""
    flags: int
    sealed: bool = False
    number: int = 0
    """Of the record batch within its file, from 0."""
    crc: int = 0
    """Of the record batch."""

    def position(self) -> Position:
        """Its bytes in the log."""
        return Position(self.home, self.offset, self.length)


def encode_place(place: Place) -> bytes:
    if place.sealed:
        return _SEALED.pack(
            _SEALED_TAG,
            place.flags,
            place.count,
            place.home,
            place.offset,
            place.length,
            place.span,
            place.time_ms,
            place.last_ms,
            place.number,
            place.crc,
        )
    return _LOG.pack(
        _LOG_TAG,
        place.flags,
        place.count,
        place.home,
        place.offset,
        place.length,
        place.time_ms,
    )


def decode_place(data: bytes) -> Place:
    try:
        if data[0] == _LOG_TAG:
            _, flags, count, home, offset, length, time_ms = _LOG.unpack(data)
            return Place(home, offset, length, count, count, time_ms, time_ms, flags)
        if data[0] == _SEALED_TAG:
            (_, flags, count, home, offset, length, span, time_ms, last_ms, number, crc) = (
                _SEALED.unpack(data)
            )
            return Place(
                home,
                offset,
                length,
                count,
                span,
                time_ms,
                last_ms,
                flags,
                sealed=True,
                number=number,
                crc=crc,
            )
    except struct.error as error:
        raise Corrupt(f"a place in the index does not decode: {error}") from error
    raise Corrupt(f"a place in the index has the unknown tag {data[0]}")


def republished(place: Place, time_ms: int) -> Place:
    """The place of staged rows once they are published."""
    return msgspec.structs.replace(place, time_ms=time_ms, last_ms=time_ms)
