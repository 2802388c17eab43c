"""Making decoders, one thread at a time.

msgspec finds out about a Struct when something is first decoded or converted to it. Of two threads
that do so at once, one reads what the other has not written yet, and the process dies (msgspec
0.22). Modules are imported when they are used, on any thread: so all that makes a decoder of ours,
or converts, does so here.
"""

from __future__ import annotations

from threading import RLock
from typing import TypeVar

import msgspec

T = TypeVar("T")

_turn = RLock()


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """A decoder of JSON, which any thread may use."""
    with _turn:
        return msgspec.json.Decoder(kind)


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """A decoder of MessagePack, which any thread may use."""
    with _turn:
        return msgspec.msgpack.Decoder(kind)


def decode_json(data: bytes | bytearray | memoryview | str | msgspec.Raw, kind: type[T]) -> T:
    """What stands in some JSON.

    Raises:
        msgspec.MsgspecError: it is no JSON, or not of this kind.
    """
    return json_decoder(kind).decode(data)


def convert(value: object, kind: type[T], *, strict: bool = True) -> T:
    """A value of plain types as one of this kind.

    Raises:
        msgspec.ValidationError: it is none.
    """
    try:
        with _turn:
            return msgspec.convert(value, kind, strict=strict)
    except UnicodeEncodeError as error:
        # Bytes of the environment or of arguments that are no UTF-8 come as lone surrogates.
        raise msgspec.ValidationError("a text is no UTF-8") from error
