"""Encodes calls and answers as frames, and decodes and validates them.

A call is [id, number, fields]; an answer [id, status, value]. All messages of one turn of the event
loop share a frame, which makes each of them cheap. Invalid input is refused: a single call if its
id is known, otherwise the whole frame.
"""

from __future__ import annotations

from enum import IntEnum
from typing import cast

import msgspec
import numpy as np

from millrace import limits
from millrace.decoding import msgpack_decoder
from millrace.errors import Invalid, MillraceError, Refused, TooLarge, detached
from millrace.rpc.calls import CALLS, CALLS_BY_NUMBER, Call
from millrace.rpc.error_codec import ERROR
from millrace.rpc.field_codecs import FieldCodec, invalid_value
from millrace.rpc.frames import (
    BlobReader,
    BlobWriter,
    Buffer,
    Frame,
    encode_frame,
)
from millrace.rpc.row_codecs import RowListCodec

VERSION = 1
"""Protocol version, which must be equal on both sides."""


def _plain(value: object) -> object:
    """Encode int subclasses and NumPy integers (a `Place`) as plain integers."""
    if isinstance(value, int | np.integer):
        return int(value)
    raise NotImplementedError


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
_DECODER = msgspec.msgpack.Decoder()
_CALLS = msgpack_decoder(list[msgspec.Raw])
ROWS = RowListCodec()


class AnswerStatus(IntEnum):
    """Kind of an answer. Numbers are part of the format."""

    DONE = 0
    FAILED = 1
    PART = 2
    """One batch of a stream; more follow."""
    END = 3
    """End of a stream."""
    WITH_ROWS = 4
    """Answer to a lease call, together with its messages."""


class FrameWriter:
    """Collects outgoing calls or answers and encodes them as frames."""

    __slots__ = ("_blobs", "_frames", "_items", "size")

    def __init__(self) -> None:
        self._items: list[list[object]] = []
        self._blobs = BlobWriter()
        self._frames: list[Buffer] = []
        self.size = 0
        """Bytes of full frames that were not taken yet."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to send."""
        return not self._items and not self._frames

    @property
    def count(self) -> int:
        """Number of calls or answers in the frame being filled."""
        return len(self._items)

    def call(self, id_: int, call: Call) -> None:
        """Append a call.

        Raises:
            Refused: the call cannot be sent.
        """
        call_codec = CALLS[type(call)]
        fields = call_codec.form.pack(call, self._blobs)
        self._add([id_, call_codec.number, fields])

    def answer(self, id_: int, shape: FieldCodec, value: object) -> None:
        """Append an answer to a call."""
        self._add([id_, 0, shape.pack(value, self._blobs)])

    def leased(self, id_: int, shape: FieldCodec, value: object, rows: object) -> None:
        """Append the answer to a lease call, with its messages."""
        packed = shape.pack(value, self._blobs)
        self._add([id_, 4, packed, ROWS.pack(rows, self._blobs)])

    def failed(self, id_: int, error: MillraceError) -> None:
        """Append an error as the answer to a call."""
        self._add([id_, 1, ERROR.pack(error, self._blobs)])

    def part(self, id_: int, shape: FieldCodec, value: object) -> None:
        """Append one batch of a stream."""
        self._add([id_, 2, shape.pack(value, self._blobs)])

    def end(self, id_: int) -> None:
        """Append the end of a stream."""
        self._add([id_, 3, None])

    def hello(self, now_ms: int) -> None:
        """Append the greeting, the first frame to a client."""
        self._add([0, VERSION, now_ms])

    def _add(self, item: list[object]) -> None:
        self._items.append(item)
        blobs = self._blobs
        if (
            len(self._items) >= limits.WIRE_CALLS_MAX
            or blobs.inline + blobs.size > limits.WIRE_BURST_BYTES
        ):
            self._close()

    def _close(self) -> None:
        head = _ENCODER.encode(self._items)
        blobs = self._blobs
        self._items, self._blobs = [], BlobWriter()
        self.size += len(head) + blobs.size
        self._frames += encode_frame(head, blobs)

    def take(self) -> list[Buffer]:
        """Return all frames for writing, and empty the writer."""
        if self._items:
            self._close()
        out, self._frames, self.size = self._frames, [], 0
        return out


def read_items(got: Frame) -> list[object]:
    """Decode the calls or answers of a frame, without validating each of them.

    Raises:
        Invalid, TooLarge: the frame cannot be decoded.
    """
    try:
        items = _DECODER.decode(got.head)
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise _unreadable(error) from error
    if type(items) is not list:
        raise invalid_value(items, "frame", "a list")
    if len(items) > limits.WIRE_CALLS_MAX:
        raise _too_many(len(items))
    return items


def read_answers(got: Frame) -> list[list[object]]:
    """Decode the answers of a frame from a remote server: each has an id, a status and a value.

    Raises:
        Invalid, TooLarge: the frame cannot be decoded.
    """
    answers: list[list[object]] = []
    for item in read_items(got):
        length = 4 if type(item) is list and item[1:2] == [AnswerStatus.WITH_ROWS] else 3
        if type(item) is not list or len(item) != length or type(item[0]) is not int:
            raise invalid_value(item, "frame", "an answer")
        answers.append(item)
    return answers


def split_calls(got: Frame) -> list[msgspec.Raw]:
    """Split a frame into calls, each still encoded.

    Their number is checked before an object is allocated for any of them.

    Raises:
        Invalid, TooLarge: the frame cannot be decoded.
    """
    _check_count(got.head)
    try:
        return _CALLS.decode(got.head)
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise _unreadable(error) from error


def read_call(raw: msgspec.Raw, blobs: BlobReader) -> tuple[int, Call | Refused]:
    """Decode one call; return its id, and the call or the reason to refuse it.

    Calls are decoded one by one, so that the objects of one are freed before the next is decoded.

    Raises:
        Invalid, TooLarge: it has no id for an answer.
    """
    if len(raw) > limits.WIRE_CALL_LISTS_MAX:
        _check_lists(raw)
    try:
        item = _DECODER.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise _unreadable(error) from error
    return _call_of(item, blobs)


def _call_of(item: object, blobs: BlobReader) -> tuple[int, Call | Refused]:
    if type(item) is not list or len(item) != 3 or type(item[0]) is not int or item[0] < 0:
        raise invalid_value(item, "call", "a call")
    id_, number, fields = item
    call_codec = CALLS_BY_NUMBER.get(number) if type(number) is int else None
    if call_codec is None:
        return id_, invalid_value(number, "call", "the number of a call that is known here")
    try:
        return id_, cast("Call", call_codec.form.unpack(fields, "call", blobs))
    except (Invalid, TooLarge) as error:
        # A traceback would keep all of this alive as long as the answer waits.
        return id_, detached(error)


def read_calls(got: Frame) -> list[tuple[int, Call | Refused]]:
    """Decode the calls of a frame with their ids; a refused call is replaced by the reason.

    For the socket of a folder; calls over a network are decoded one by one (`split_calls`).

    Raises:
        Invalid, TooLarge: the frame cannot be decoded.
    """
    blobs = got.blobs
    if len(got.head) > limits.WIRE_HEAD_STEP_BYTES:
        return [read_call(raw, blobs) for raw in split_calls(got)]
    _check_count(got.head)
    # Decoding a short head as a whole costs half as much, and allocates at most 5 MB of objects.
    return [_call_of(item, blobs) for item in read_items(got)]


def _check_count(head: Buffer) -> None:
    """Refuse a head that declares too many calls, before an object is allocated for any of them."""
    count = _count(head)
    if count > limits.WIRE_CALLS_MAX:
        raise _too_many(count)


def _count(head: Buffer) -> int:
    """Return the number of items that the head of a frame declares; 0 if it is not a list."""
    kind = head[0] if head else 0
    if kind & 0xF0 == _FIX_LIST:
        return kind & 0x0F
    size = {_LIST_16: 2, _LIST_32: 4}.get(kind, 0)
    return int.from_bytes(head[1 : 1 + size])


_FIX_LIST, _LIST_16, _LIST_32 = 0x90, 0xDC, 0xDD
_LISTS = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
"""First bytes of lists and maps in MessagePack."""


def _check_lists(raw: msgspec.Raw) -> None:
    """Refuse a large call with more lists than any command has, before they are allocated.

    This counts all bytes that can begin a list, also those within texts and data.
    """
    data = bytes(raw)
    count = len(data) - len(data.translate(None, _LISTS))
    if count > limits.WIRE_CALL_LISTS_MAX:
        raise TooLarge(
            f"a call has about {count} lists, up to {limits.WIRE_CALL_LISTS_MAX} are allowed; send "
            "it in parts",
            field="call",
            limit=limits.WIRE_CALL_LISTS_MAX,
        )


def _too_many(count: int) -> TooLarge:
    return TooLarge(
        f"a frame has {count} calls, up to {limits.WIRE_CALLS_MAX} are allowed",
        field="frame",
        limit=limits.WIRE_CALLS_MAX,
    )


def _unreadable(error: Exception) -> Invalid:
    return Invalid(f"a frame cannot be read: {error}", field="frame")
