"""Bursts of calls and answers as frames, and back.

A call is [id, number, fields]; an answer [id, status, value]. All that is sent in one turn of an
event loop is one frame, so that each costs little. What cannot be read is refused: one call alone
where its id is known, else the whole frame.
"""

from __future__ import annotations

from enum import IntEnum
from typing import cast

import msgspec
import numpy as np

from millrace import limits
from millrace.decoding import msgpack_decoder
from millrace.errors import Invalid, MillraceError, Refused, TooLarge, detached
from millrace.rpc.calls import BY_NUMBER, CALLS, Call
from millrace.rpc.failures import FAILURE
from millrace.rpc.field_codecs import Shape, wrong
from millrace.rpc.frames import (
    Blobs,
    Buffer,
    Frame,
    Pieces,
    frame,
)
from millrace.rpc.rows import RowList

VERSION = 1
"""What both sides must speak."""


def _plain(value: object) -> object:
    """Numbers of a type of their own (a `Place`) as plain ones."""
    if isinstance(value, int | np.integer):
        return int(value)
    raise NotImplementedError


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
_DECODER = msgspec.msgpack.Decoder()
_CALLS = msgpack_decoder(list[msgspec.Raw])
ROWS = RowList()


class Status(IntEnum):
    """What an answer is. Numbers are part of the format."""

    DONE = 0
    FAILED = 1
    PART = 2
    """A batch of a stream, after which others come."""
    END = 3
    """The end of a stream."""
    WITH_ROWS = 4
    """A lease call's answer, and the messages that it names."""


class Sheet:
    """Calls or answers on their way out."""

    __slots__ = ("_blobs", "_frames", "_items", "size")

    def __init__(self) -> None:
        self._items: list[list[object]] = []
        self._blobs = Blobs()
        self._frames: list[Buffer] = []
        self.size = 0
        """Bytes of the frames that are full and not taken yet."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self._items and not self._frames

    @property
    def count(self) -> int:
        """Calls or answers of the frame that is being filled."""
        return len(self._items)

    def call(self, id_: int, call: Call) -> None:
        """Add a call.

        Raises:
            Refused: it cannot be sent.
        """
        entry = CALLS[type(call)]
        fields = entry.form.pack(call, self._blobs)
        self._add([id_, entry.number, fields])

    def answer(self, id_: int, shape: Shape, value: object) -> None:
        """Add an answer."""
        self._add([id_, 0, shape.pack(value, self._blobs)])

    def leased(self, id_: int, shape: Shape, value: object, rows: object) -> None:
        """Add the answer to a lease call, with its messages."""
        packed = shape.pack(value, self._blobs)
        self._add([id_, 4, packed, ROWS.pack(rows, self._blobs)])

    def failed(self, id_: int, error: MillraceError) -> None:
        """Add a refusal."""
        self._add([id_, 1, FAILURE.pack(error, self._blobs)])

    def part(self, id_: int, shape: Shape, value: object) -> None:
        """Add a batch of a stream."""
        self._add([id_, 2, shape.pack(value, self._blobs)])

    def end(self, id_: int) -> None:
        """Add the end of a stream."""
        self._add([id_, 3, None])

    def hello(self, now_ms: int) -> None:
        """Add what the first frame to a client says."""
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
        self._items, self._blobs = [], Blobs()
        self.size += len(head) + blobs.size
        self._frames += frame(head, blobs)

    def take(self) -> list[Buffer]:
        """All of it, to be written; the sheet is empty then."""
        if self._items:
            self._close()
        out, self._frames, self.size = self._frames, [], 0
        return out


def read_items(got: Frame) -> list[object]:
    """The calls or answers of a frame, not looked into.

    Raises:
        Invalid, TooLarge: there are none.
    """
    try:
        items = _DECODER.decode(got.head)
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise _unreadable(error) from error
    if type(items) is not list:
        raise wrong(items, "frame", "a list")
    if len(items) > limits.WIRE_CALLS_MAX:
        raise _too_many(len(items))
    return items


def read_answers(got: Frame) -> list[list[object]]:
    """The answers of a frame that came from far away: each has an id, a status and what it says.

    Raises:
        Invalid, TooLarge: there are none.
    """
    found: list[list[object]] = []
    for item in read_items(got):
        wanted = 4 if type(item) is list and item[1:2] == [Status.WITH_ROWS] else 3
        if type(item) is not list or len(item) != wanted or type(item[0]) is not int:
            raise wrong(item, "frame", "an answer")
        found.append(item)
    return found


def split_calls(got: Frame) -> list[msgspec.Raw]:
    """Return the calls of a frame, each still encoded.

    Their number is checked before an object is made for any of them.

    Raises:
        Invalid, TooLarge: the frame cannot be read.
    """
    _check_count(got.head)
    try:
        return _CALLS.decode(got.head)
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise _unreadable(error) from error


def read_call(raw: msgspec.Raw, blobs: Pieces) -> tuple[int, Call | Refused]:
    """Decode one call: its id, and the call or the reason why it is refused.

    Call by call, so that the objects of one are freed before those of the next are made.

    Raises:
        Invalid, TooLarge: it has no id that could be answered.
    """
    if len(raw) > limits.WIRE_CALL_LISTS_MAX:
        _check_lists(raw)
    try:
        item = _DECODER.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise _unreadable(error) from error
    return _call_of(item, blobs)


def _call_of(item: object, blobs: Pieces) -> tuple[int, Call | Refused]:
    if type(item) is not list or len(item) != 3 or type(item[0]) is not int or item[0] < 0:
        raise wrong(item, "call", "a call")
    id_, number, fields = item
    entry = BY_NUMBER.get(number) if type(number) is int else None
    if entry is None:
        return id_, wrong(number, "call", "the number of a call that is known here")
    try:
        return id_, cast("Call", entry.form.unpack(fields, "call", blobs))
    except (Invalid, TooLarge) as error:
        # With its traceback it would keep all of this alive for as long as the answer waits.
        return id_, detached(error)


def read_calls(got: Frame) -> list[tuple[int, Call | Refused]]:
    """Return the calls of a frame, with their ids; in the place of a refused one, the reason.

    For the socket of a folder; calls over a network are decoded one by one (`split_calls`).

    Raises:
        Invalid, TooLarge: the frame cannot be read.
    """
    blobs = got.blobs
    if len(got.head) > limits.WIRE_HEAD_STEP_BYTES:
        return [read_call(raw, blobs) for raw in split_calls(got)]
    _check_count(got.head)
    # Decoding a short head as a whole costs half as much, and makes no more than 5 MB of objects.
    return [_call_of(item, blobs) for item in read_items(got)]


def _check_count(head: Buffer) -> None:
    """Refuse a head that declares too many calls, before an object is made for any of them."""
    count = _count(head)
    if count > limits.WIRE_CALLS_MAX:
        raise _too_many(count)


def _count(head: Buffer) -> int:
    """Return the number of items that the head of a frame declares; 0: it is no list."""
    kind = head[0] if head else 0
    if kind & 0xF0 == _FIX_LIST:
        return kind & 0x0F
    size = {_LIST_16: 2, _LIST_32: 4}.get(kind, 0)
    return int.from_bytes(head[1 : 1 + size])


_FIX_LIST, _LIST_16, _LIST_32 = 0x90, 0xDC, 0xDD
_LISTS = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
"""First bytes of lists and maps in msgpack."""


def _check_lists(raw: msgspec.Raw) -> None:
    """Refuse a large call of lists that no command takes, before they are made.

    What is counted are bytes that may begin a list: those of texts and data count, too.
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
