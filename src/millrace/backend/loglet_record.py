"""Binary format of a loglet record; see docs/formats/backend.md.

Rule 1: a record names its loglet, number, writer and predecessor, so that a record of another
place, or of a second writer of the same loglet, is never taken for it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from millrace.errors import Corrupt

MAGIC = b"MRLR1\0\0\0"

_HEADER = struct.Struct("<8s16sQQII")
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size


class LogletRecord(NamedTuple):
    """A record of a loglet."""

    loglet: bytes
    incarnation: int
    """The run of the node that wrote it."""
    number: int
    previous: int
    """Checksum of the record before it; 0 for the first one."""
    payload: bytes

    def encode(self) -> bytes:
        """Encode the record: header, checksum, payload."""
        head = _HEADER.pack(
            MAGIC, self.loglet, self.incarnation, self.number, self.previous, len(self.payload)
        )
        return head + _CRC.pack(crc32c(self.payload, crc32c(head))) + self.payload


def checksum_of(record: bytes) -> int:
    """Return the checksum of an encoded record, which the next one names."""
    return int(_CRC.unpack_from(record, _HEADER.size)[0])


def decode_record(record: bytes, loglet: bytes, number: int) -> LogletRecord:
    """Decode the record at a place of a loglet.

    Raises:
        Corrupt: it is damaged, or the record of another place.
    """
    place = f"record {number} of loglet {loglet.hex()}"
    if len(record) < HEADER_BYTES:
        raise Corrupt(f"{place} is cut off", field="loglet")
    magic, of_loglet, incarnation, of_number, previous, size = _HEADER.unpack_from(record)
    payload = record[HEADER_BYTES:]
    crc = crc32c(payload, crc32c(record[: _HEADER.size]))
    if magic != MAGIC or size != len(payload) or checksum_of(record) != crc:
        raise Corrupt(f"{place} is damaged: its checksum is wrong", field="loglet")
    if (of_loglet, of_number) != (loglet, number):
        raise Corrupt(f"{place} is record {of_number} of loglet {of_loglet.hex()}", field="loglet")
    return LogletRecord(of_loglet, incarnation, of_number, previous, payload)
