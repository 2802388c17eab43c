"""Row locations: a block in a record of the log, or a record batch of a sealed file.

A location is the value of a key in the table BLOCKS. The key has the first seq, the location the
span of seqs from there, so that the same location serves a stage before and after publication.
"""

from __future__ import annotations

import struct

import msgspec

from millrace.errors import Corrupt
from millrace.wal.record import LogPosition

RELATIVE = 16
"""Flag: the rows were staged when they were sealed; the key has their seqs, the location has their
time. The lower flags are those of a block."""

COMPRESSED = 32
"""Flag: the buffers of the record batch are compressed."""

UNREADABLE = 64
"""Flag: the rows cannot be read; `number` is the quarantine file with their bytes, `home` is 0."""

_LOG = struct.Struct(">BBIQQQq")
_SEALED = struct.Struct(">BBIQQQQqqII")
_LOG_TAG = 1
_SEALED_TAG = 2


class RowLocation(msgspec.Struct, frozen=True, gc=False):
    """Location of consecutive rows, with metadata that avoids reading them."""

    home: int
    """Generation of the log, or number of the sealed file."""
    offset: int
    length: int
    count: int
    """Number of rows."""
    span: int
    """Number of seqs from the first row to the last; missing ones are dead for all readers."""
    time_ms: int
    """Time of the first row."""
    last_ms: int
    """Time of the last row."""
    flags: int
    sealed: bool = False
    number: int = 0
    """Number of the record batch within its file, from 0."""
    crc: int = 0
    """Checksum of the record batch."""

    def position(self) -> LogPosition:
        """Return the position of its bytes in the log."""
        return LogPosition(self.home, self.offset, self.length)


def encode_location(location: RowLocation) -> bytes:
    if location.sealed:
        return _SEALED.pack(
            _SEALED_TAG,
            location.flags,
            location.count,
            location.home,
            location.offset,
            location.length,
            location.span,
            location.time_ms,
            location.last_ms,
            location.number,
            location.crc,
        )
    return _LOG.pack(
        _LOG_TAG,
        location.flags,
        location.count,
        location.home,
        location.offset,
        location.length,
        location.time_ms,
    )


def decode_location(data: bytes) -> RowLocation:
    try:
        if data[0] == _LOG_TAG:
            _, flags, count, home, offset, length, time_ms = _LOG.unpack(data)
            return RowLocation(home, offset, length, count, count, time_ms, time_ms, flags)
        if data[0] == _SEALED_TAG:
            (_, flags, count, home, offset, length, span, time_ms, last_ms, number, crc) = (
                _SEALED.unpack(data)
            )
            return RowLocation(
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


def republished(location: RowLocation, time_ms: int) -> RowLocation:
    """Return the location of staged rows after their publication."""
    return msgspec.structs.replace(location, time_ms=time_ms, last_ms=time_ms)
