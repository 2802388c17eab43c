"""Blocks: rows side by side, in Arrow's layout.

A block holds the keys, headers and bodies of consecutive rows as the buffers that Arrow would use,
so that the bytes a producer hands over are the bytes that a reader maps. A block knows neither seq
nor time: its batch does, and both are the same everywhere it is copied to.

Rule 1: building a block from a list of bodies costs a constant number of calls, not one per body.
Rule 2: every buffer begins at a multiple of 8 within the block, and a block is padded to 8.
Rule 3: a body that is null is a delete; an empty body is not null.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise, repeat
from typing import cast

import numpy as np
import pyarrow as pa

from millrace.core.column import PAIR, Array, Buffer, Column, offsets_of
from millrace.core.model import Headers, Message, Row
from millrace.core.squeeze import (
    LENGTH,
    NUMBERS,
    SQUEEZED_BYTES_MIN,
    Codec,
    expand,
    squeeze,
)
from millrace.errors import Corrupt, Invalid

HEADER = struct.Struct("<IHH10I")
"""Rows, flags, reserved, then the ten buffer lengths in the order of `Block._buffers`."""

FLAG_KEYS = 1
FLAG_HEADERS = 2
FLAG_DELETES = 4
FLAG_SQUEEZED = 8
"""The buffers are one compressed piece."""

VALUE = pa.binary()
HEADER_TYPE = pa.struct(
    [pa.field("name", pa.utf8(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
_FIELDS: list[pa.Field[pa.DataType]] = [
    pa.field("shard", pa.uint64(), nullable=False),
    pa.field("seq", pa.uint64(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("headers", pa.list_(pa.field("item", HEADER_TYPE, nullable=False))),
    pa.field("time", pa.timestamp("ms", tz="UTC"), nullable=False),
    pa.field("value", VALUE),
]
SCHEMA = pa.schema(_FIELDS)
"""What a row looks like in Arrow, everywhere."""

_ZEROS = bytes(8)


class Block:
    """The keys, headers and bodies of consecutive rows. Treat as frozen."""

    __slots__ = (
        "_key_list",
        "_parts",
        "bodies",
        "codec",
        "count",
        "header_lists",
        "header_names",
        "header_values",
        "is_squeezed",
        "keys",
    )

    def __init__(
        self,
        count: int,
        bodies: Column,
        keys: Column | None = None,
        header_lists: Buffer | None = None,
        header_names: Column | None = None,
        header_values: Column | None = None,
    ) -> None:
        self.count = count
        self.bodies = bodies
        self.keys = keys
        self.header_lists = header_lists
        self.header_names = header_names
        self.header_values = header_values
        self._key_list: list[bytes | None] | None = None
        self._parts: tuple[tuple[Buffer, ...], list[int], int] | None = None
        self.codec: Codec = ""
        """How it is to be compressed when it is written."""
        self.is_squeezed = False
        """Whether it was compressed when it was written last."""

    # --- Building ---------------------------------------------------------------------------

    @classmethod
    def of_bodies(cls, bodies: Sequence[bytes]) -> Block:
        """Rows without keys and headers."""
        return cls(len(bodies), Column.of(bodies))

    @classmethod
    def of_messages(cls, messages: Sequence[Message]) -> Block:
        count = len(messages)
        bodies = Column.of_optional([message.body for message in messages])
        keys = [message.key for message in messages]
        key_column = Column.of_optional(keys) if any(key is not None for key in keys) else None
        headers = [message.headers for message in messages]
        if any(headers):
            pairs = list(chain.from_iterable(headers))
            block = cls(
                count,
                bodies,
                key_column,
                offsets_of(map(len, headers), count),
                Column.of([name.encode() for name, _ in pairs]),
                Column.of([value for _, value in pairs]),
            )
        else:
            block = cls(count, bodies, key_column)
        block._key_list = keys
        return block

    @classmethod
    def of_arrow(cls, batch: pa.RecordBatch) -> Block:
        """Rows from the columns `value` and, where present, `key` and `headers`.

        Buffers of the right type are taken as they are, without a copy.
        """
        names = set(batch.schema.names)
        unknown = names - {"value", "key", "headers"}
        if unknown or "value" not in names or len(names) < len(batch.schema.names):
            raise Invalid(
                "an Arrow batch has the column 'value' and may have 'key' and 'headers', once; "
                f"this one has {', '.join(batch.schema.names)}",
                field="batch",
            )
        bodies = _column(batch.column("value"), "value")
        keys = _column(batch.column("key"), "key") if "key" in names else None
        if "headers" not in names:
            return cls(batch.num_rows, bodies, keys)
        lists = cast(
            "pa.ListArray[pa.StructScalar]",
            _cast(batch.column("headers"), SCHEMA.field("headers").type, "headers"),
        )
        pairs = cast(pa.StructArray, lists.flatten())
        if pairs.null_count or any(pairs.field(at).null_count for at in range(2)):
            raise Invalid("a header has no name or no value", field="headers")
        return cls(
            batch.num_rows,
            bodies,
            keys,
            offsets_of(lists.value_lengths().fill_null(0).to_numpy().tolist(), batch.num_rows),
            _column(pairs.field("name").cast(pa.binary()), "headers"),
            _column(pairs.field("value"), "headers"),
        )

    # --- Bytes ------------------------------------------------------------------------------

    def _buffers(self) -> tuple[Buffer, ...]:
        keys, names, values = self.keys, self.header_names, self.header_values
        return (
            self.bodies.validity,
            self.bodies.offsets,
            self.bodies.data,
            keys.validity if keys else b"",
            keys.offsets if keys else b"",
            keys.data if keys else b"",
            self.header_lists or b"",
            names.offsets if names else b"",
            names.data if names else b"",
            _header_values(values),
        )

    def _measured(self) -> tuple[tuple[Buffer, ...], list[int], int]:
        """Its buffers, their lengths and the bytes of all, found once: small ones are many."""
        if self._parts is None:
            buffers = self._buffers()
            lengths = [_length(buffer) for buffer in buffers]
            size = HEADER.size + sum([length + 7 & ~7 for length in lengths])
            self._parts = buffers, lengths, size
        return self._parts

    def size(self) -> int:
        """Bytes that `encode` will give."""
        return self._measured()[2]

    def squeezed(self, codec: Codec) -> Block:
        """The same rows, to be compressed when they are written, if they are worth it."""
        if not codec or self.size() < SQUEEZED_BYTES_MIN:
            return self
        parts = (self.keys, self.header_lists, self.header_names, self.header_values)
        block = Block(self.count, self.bodies, *parts)
        block._key_list, block.codec = self._key_list, codec
        return block

    def encode(self) -> list[Buffer]:
        """The block as buffers to be written one after the other."""
        out: list[Buffer] = []
        self.encode_into(out)
        return out

    def encode_into(self, out: list[Buffer]) -> int:
        """Append the block's buffers to `out`; returns how many bytes they are."""
        buffers, lengths, size = self._measured()
        flags = (FLAG_KEYS if self.keys else 0) | (FLAG_HEADERS if self.header_names else 0)
        flags |= FLAG_DELETES if len(self.bodies.validity) else 0
        begin = len(out)
        out.append(HEADER.pack(self.count, flags, 0, *lengths))
        for buffer, length in zip(buffers, lengths, strict=True):
            if length:
                out.append(buffer)
                if length & 7:
                    out.append(_ZEROS[length & 7 :])
        packed = squeeze(out[begin + 1 :], size - HEADER.size, self.codec) if self.codec else b""
        self.is_squeezed = bool(packed)
        if not packed:
            return size
        head = HEADER.pack(self.count, flags | FLAG_SQUEEZED, NUMBERS[self.codec], *lengths)
        pad = _ZEROS[len(packed) & 7 :] if len(packed) & 7 else b""
        out[begin:] = [head, LENGTH.pack(len(packed)), packed, pad]
        return HEADER.size + LENGTH.size + _round(len(packed))

    @classmethod
    def decode(cls, data: memoryview) -> tuple[Block, int]:
        """The block at the start of `data`, over the same bytes, and its length.

        Raises:
            Corrupt: it contradicts itself; a reader could be led outside its bytes.
        """
        if len(data) < HEADER.size:
            raise Corrupt("a block is shorter than its header")
        count, flags, codec, *lengths = HEADER.unpack_from(data)
        if flags & FLAG_SQUEEZED:
            size = sum(map(_round, lengths))
            whole, end, made = expand(data, HEADER.size, size, codec)
            head = HEADER.pack(count, flags & ~FLAG_SQUEEZED, 0, *lengths)
            block, _ = cls._decode(head, whole, 0)
            block.codec, block.is_squeezed = made, True
            if end > len(data):
                raise Corrupt("a block ends without its padding")
            return block, end
        return cls._decode(data, data, HEADER.size)

    @classmethod
    def _decode(cls, head: Buffer, data: memoryview, at: int) -> tuple[Block, int]:
        count, flags, _, *lengths = HEADER.unpack_from(head)
        parts: list[memoryview] = []
        for length in lengths:
            if at + length > len(data):
                raise Corrupt("a block is shorter than its header says")
            parts.append(data[at : at + length])
            at += _round(length)
        if at > len(data):
            raise Corrupt("a block ends without its padding")
        bodies = _checked(Column(parts[1], parts[2], parts[0]), count)
        keys = _checked(Column(parts[4], parts[5], parts[3]), count) if flags & FLAG_KEYS else None
        if not flags & FLAG_HEADERS:
            return cls(count, bodies, keys), at
        pairs = _check_offsets(parts[6], count)
        names = _checked(Column(parts[7], parts[8]), pairs)
        values = _checked(_split_header_values(parts[9], len(parts[7])), pairs)
        return cls(count, bodies, keys, parts[6], names, values), at

    # --- Reading ----------------------------------------------------------------------------

    def key_list(self) -> list[bytes | None]:
        """Every row's key; not to be changed. Found once: lookup, decision and fold all ask."""
        if self._key_list is None:
            self._key_list = self._find_keys()
        return self._key_list

    def _find_keys(self) -> list[bytes | None]:
        if self.keys is None:
            return [None] * self.count
        values: list[bytes | None] = list(self.keys.values(0, self.count))
        absent = self.keys.absent(self.count)
        if absent is not None:
            for at in np.flatnonzero(absent).tolist():
                values[at] = None
        return values

    def deletes(self) -> list[int]:
        """Which rows are deletes, counted from 0."""
        absent = self.bodies.absent(self.count)
        return [] if absent is None else np.flatnonzero(absent).tolist()

    def headers_of(self, at: int) -> Headers:
        if self.header_lists is None or self.header_names is None or self.header_values is None:
            return ()
        low, high = PAIR.unpack_from(self.header_lists, 4 * at)
        names = self.header_names.values(low, high)
        values = self.header_values.values(low, high)
        return tuple((name.decode(), value) for name, value in zip(names, values, strict=True))

    def row(self, at: int, seq: int, time_ms: int) -> Row:
        """One row, counted from 0."""
        key = self.keys.value(at) if self.keys is not None else None
        headers = self.headers_of(at) if self.header_lists is not None else ()
        return Row(seq, time_ms, self.bodies.value(at), key, headers)

    def rows(self, low: int, high: int, first_seq: int, time_ms: int) -> list[Row]:
        """The rows [low, high), counted from 0, of a block whose first seq is `first_seq`."""
        bodies: list[bytes | None] = list(self.bodies.values(low, high))
        absent = self.bodies.absent(self.count)
        if absent is not None:
            for at in np.flatnonzero(absent[low:high]).tolist():
                bodies[at] = None
        keys: list[bytes | None] = [None] * (high - low)
        if self.keys is not None:
            keys = list(self.keys.values(low, high))
            absent = self.keys.absent(self.count)
            if absent is not None:
                for at in np.flatnonzero(absent[low:high]).tolist():
                    keys[at] = None
        seqs = range(first_seq + low, first_seq + high)
        headers = self._headers_between(low, high)
        return [
            Row(seq, time_ms, body, key, pairs)
            for seq, body, key, pairs in zip(seqs, bodies, keys, headers, strict=True)
        ]

    def _headers_between(self, low: int, high: int) -> Iterable[Headers]:
        """Those of the rows [low, high)."""
        lists, names, values = self.header_lists, self.header_names, self.header_values
        if lists is None or names is None or values is None:
            return repeat((), high - low)
        out: list[Headers] = []
        bounds = np.frombuffer(lists, np.int32)[low : high + 1].tolist()
        first, last = bounds[0], bounds[-1]
        pairs = list(zip(names.values(first, last), values.values(first, last), strict=True))
        before: list[tuple[bytes, bytes]] = []
        headers: Headers = ()
        for begin, end in pairwise(bounds):
            found = pairs[begin - first : end - first]
            # Rows that follow each other mostly have the same.
            if found != before:
                before, headers = found, tuple((name.decode(), value) for name, value in found)
            out.append(headers)
        return out

    def arrow(self, shard: int, first_seq: int, time_ms: int) -> pa.RecordBatch:
        """The rows as Arrow arrays over the same bytes."""
        count = self.count
        shards = np.full(count, shard, np.uint64)
        seqs = np.arange(first_seq, first_seq + count, dtype=np.uint64)
        times = pa.array(np.full(count, time_ms, np.int64)).view(SCHEMA.field("time").type)
        keys = pa.nulls(count, VALUE) if self.keys is None else self.keys.array(pa.binary(), count)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(shards),
                pa.array(seqs),
                keys,
                self._headers_array(),
                times,
                self.bodies.array(VALUE, count),
            ],
            schema=SCHEMA,
        )

    def _headers_array(self) -> Array:
        kind = SCHEMA.field("headers").type
        if self.header_lists is None or self.header_names is None or self.header_values is None:
            return cast("Array", pa.nulls(self.count, kind))
        pairs = len(self.header_names.offsets) // 4 - 1
        items = pa.StructArray.from_arrays(
            [
                self.header_names.array(pa.utf8(), pairs),
                self.header_values.array(pa.binary(), pairs),
            ],
            fields=[HEADER_TYPE.field(0), HEADER_TYPE.field(1)],
        )
        lists: Array = pa.Array.from_buffers(
            kind, self.count, [None, pa.py_buffer(self.header_lists)], children=[items]
        )
        return lists


def key_list(rows: Block | Sequence[Message]) -> list[bytes | None]:
    """Every row's key."""
    if isinstance(rows, Block):
        return rows.key_list()
    return [message.key for message in rows]


def _length(buffer: Buffer) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def _round(length: int) -> int:
    return (length + 7) & ~7


def _header_values(values: Column | None) -> Buffer:
    # Offsets and bytes of the header values share one buffer: names and values are equally many.
    return b"" if values is None else b"".join((values.offsets, values.data))


def _check_offsets(offsets: memoryview, count: int) -> int:
    """Where `count` values end, if their offsets only ever rise."""
    if len(offsets) != 4 * (count + 1):
        raise Corrupt(f"a block has {len(offsets)} bytes of offsets for {count} values")
    bounds = np.frombuffer(offsets, np.int32)
    if bounds[0] < 0 or (bounds[1:] < bounds[:-1]).any():
        raise Corrupt("the offsets of a block fall")
    return int(bounds[-1])


def _checked(column: Column, count: int) -> Column:
    end = _check_offsets(memoryview(column.offsets), count)
    if end > len(column.data):
        raise Corrupt(f"the values of a block end at byte {end} of {len(column.data)}")
    if len(column.validity) not in (0, (count + 7) // 8):
        raise Corrupt(f"a block has {len(column.validity)} bytes of validity for {count} values")
    return column


def _split_header_values(data: memoryview, offsets_bytes: int) -> Column:
    return Column(data[:offsets_bytes], data[offsets_bytes:])


def _cast(array: Array, kind: pa.DataType, name: str) -> Array:
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise Invalid(f"the column '{name}' cannot be read as {kind}: {error}", field=name) from (
            error
        )


def _column(array: Array, name: str) -> Column:
    """The buffers of an Arrow array that begins at offset 0, cast to binary where needed."""
    binary = array if array.type == VALUE else _cast(array, VALUE, name)
    if binary.offset or len(binary.buffers()[1] or b"") < 4 * (len(binary) + 1):
        # A slice has its bytes in the middle of its parent's: copy what belongs to it.
        binary = pa.concat_arrays([binary, pa.array([], VALUE)])
        if binary.offset:
            binary = binary.take(pa.array(range(len(binary))))
    validity, offsets, data = binary.buffers()
    bounds = memoryview(offsets).cast("B")[: 4 * (len(binary) + 1)] if offsets else bytes(4)
    size = struct.unpack_from("<i", bounds, 4 * len(binary))[0]
    mask: Buffer = b""
    if binary.null_count and validity is not None:
        mask = memoryview(validity).cast("B")[: (len(binary) + 7) // 8]
    body: Buffer = memoryview(data).cast("B")[:size] if data is not None else b""
    return Column(bounds, body, mask)
