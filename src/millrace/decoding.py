"""Thread-safe construction of msgspec decoders.

msgspec inspects a Struct when it is first decoded or converted to. If two threads do so at once,
one reads what the other has not written yet, and the process crashes (msgspec 0.22). Modules are
imported lazily on any thread, so that all decoders and conversions are made here, under a lock.
"""

from __future__ import annotations

from threading import RLock
from typing import TypeVar

import msgspec

T = TypeVar("T")

_turn = RLock()


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Create a JSON decoder, on any thread."""
    with _turn:
        return msgspec.json.Decoder(kind)


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """Create a MessagePack decoder, on any thread."""
    with _turn:
        return msgspec.msgpack.Decoder(kind)


def decode_json(data: bytes | bytearray | memoryview | str | msgspec.Raw, kind: type[T]) -> T:
    """Decode JSON into a value of type `kind`.

    Raises:
        msgspec.MsgspecError: it is not JSON, or does not match the type.
    """
    return json_decoder(kind).decode(data)


def convert(value: object, kind: type[T], *, strict: bool = True) -> T:
    """Convert a value of plain types to type `kind`.

    Raises:
        msgspec.ValidationError: it does not match the type.
    """
    try:
        with _turn:
            return msgspec.convert(value, kind, strict=strict)
    except UnicodeEncodeError as error:
        # Environment variables or arguments that are not UTF-8 contain lone surrogates.
        raise msgspec.ValidationError("a text is no UTF-8") from error
