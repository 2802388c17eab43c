"""Small state files: JSON with a checksum, replaced atomically."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from crc32c import crc32c

from millrace.decoding import decode_json
from millrace.errors import Corrupt
from millrace.wal.disk import Disk

_Value = TypeVar("_Value", bound=msgspec.Struct)


class _Summed(msgspec.Struct, frozen=True):
    value: msgspec.Raw
    crc: int
    """CRC-32C of the bytes of `value` in the file."""


def encode(value: msgspec.Struct) -> bytes:
    """Encode a value with its checksum."""
    body = msgspec.json.encode(value)
    return msgspec.json.encode(_Summed(msgspec.Raw(body), crc32c(body)))


def read(disk: Disk, name: str, kind: type[_Value], *, hint: str) -> _Value:
    """Read and verify a file.

    Raises:
        Corrupt: the file is damaged; the error ends with the hint.
        NotFound: the file does not exist.
    """
    file = disk.open(name)
    try:
        data = file.read(file.size, 0)
    finally:
        file.close()
    try:
        summed = decode_json(data, _Summed)
        if crc32c(bytes(summed.value)) != summed.crc:
            raise Corrupt(f"{name} is damaged; {hint}", field=name)
        return decode_json(summed.value, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"{name} is damaged: {error}; {hint}", field=name) from error
