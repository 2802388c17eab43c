"""Columnar blocks of rows in Arrow's layout.

A block holds the keys, headers and bodies of consecutive rows as the buffers that Arrow would use,
so that readers map the very bytes that the producer passed. A block knows neither seq nor time,
which its batch has; so its bytes are the same everywhere it is copied to.

Rule 1: building a block from a list of bodies costs a constant number of calls, not one per body.
Rule 2: every buffer begins at a multiple of 8 within the block, and a block is padded to 8.
Rule 3: a body that is null is a delete; an empty body is not null.
Rule 4: a block from outside was validated, by `decode` or by `of_columns`. All other functions
follow its offsets without validation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise, repeat
from typing import Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa

from millrace import limits
from millrace.core.format.column import (
    PAIR,
    Array,
    Buffer,
    Column,
    offsets_of,
    shown_type,
    validated,
)
from millrace.core.model import Headers, NewMessage, Row
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
"""The Arrow schema of rows, everywhere."""

_ZEROS = bytes(8)


class HeaderColumns(NamedTuple):
    """The headers of some rows, in their order."""

    counts: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Number of headers of each row."""
    names: Array
    """Binary arrays of all names and values."""
    values: Array

    @classmethod
    def of_lists(cls, lists: Array) -> HeaderColumns:
        """Return the headers of a validated list array of the type in `SCHEMA`.

        Raises:
            Invalid: a header has no name or no value.
        """
        listed = cast("pa.ListArray[pa.StructScalar]", lists)
        counts = np.asarray(listed.value_lengths().fill_null(0), np.int64)
        pairs = cast("pa.StructArray", listed.flatten())
        names = cast("Array", pairs.field("name").cast(VALUE))
        values = pairs.field("value")
        for array in (pairs, names, values):
            if array.null_count:
                raise Invalid("a header has no name or no value", field="headers")
        return cls(counts, names, values)


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
        """Compression to use when it is written."""
        self.is_squeezed = False
        """True if it was compressed when it was last written."""

    # --- Building ---------------------------------------------------------------------------

    @classmethod
    def of_bodies(cls, bodies: Sequence[bytes]) -> Block:
        """Return a block of rows without keys and headers."""
        return cls(len(bodies), Column.of(bodies))

    @classmethod
    def of_messages(cls, messages: Sequence[NewMessage]) -> Block:
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
        """Return a block of the columns `value` and, where present, `key` and `headers`, as in
        `SCHEMA`.

        Raises:
            Invalid: another column or type, or arrays that contradict themselves.
        """
        names = batch.schema.names
        if "value" not in names or not set(names) <= {"value", "key", "headers"}:
            raise Invalid(f"a block is not made of {', '.join(names)}", field="batch")
        arrays = {name: validated(batch.column(name), name) for name in names}
        for name, array in arrays.items():
            if array.type != SCHEMA.field(name).type:
                raise Invalid(f"column {name!r} of a block is {shown_type(array.type)}", field=name)
        lists = arrays.get("headers")
        return cls.of_columns(
            arrays["value"],
            arrays.get("key"),
            None if lists is None else HeaderColumns.of_lists(lists),
        )

    @classmethod
    def of_columns(
        cls, value: Array, key: Array | None = None, headers: HeaderColumns | None = None
    ) -> Block:
        """Return a block over validated binary arrays, without a copy.

        Raises:
            Invalid: they contradict themselves.
        """
        count = len(value)
        block = cls(count, column_of(value), None if key is None else column_of(key))
        if headers is not None:
            ends = np.zeros(count + 1, np.int64)
            np.cumsum(headers.counts, out=ends[1:])
            block.header_lists = ends.astype(np.int32).tobytes()
            block.header_names = column_of(headers.names)
            block.header_values = column_of(headers.values)
        try:
            block.check()
        except Corrupt as error:
            raise Invalid(f"the columns contradict themselves: {error}", field="batch") from error
        return block

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
        """Return its buffers, their lengths and their total size, cached: there are many small
        blocks."""
        if self._parts is None:
            buffers = self._buffers()
            lengths = [_length(buffer) for buffer in buffers]
            size = HEADER.size + sum([length + 7 & ~7 for length in lengths])
            self._parts = buffers, lengths, size
        return self._parts

    def size(self) -> int:
        """Return the number of bytes that `encode` will give."""
        return self._measured()[2]

    def squeezed(self, codec: Codec) -> Block:
        """Return the same rows, to be compressed when they are written, if that makes them
        smaller."""
        if not codec or self.size() < SQUEEZED_BYTES_MIN:
            return self
        parts = (self.keys, self.header_lists, self.header_names, self.header_values)
        block = Block(self.count, self.bodies, *parts)
        block._key_list, block.codec = self._key_list, codec
        return block

    def encode(self) -> list[Buffer]:
        """Return the block as buffers to be written one after the other."""
        out: list[Buffer] = []
        self.encode_into(out)
        return out

    def encode_into(self, out: list[Buffer]) -> int:
        """Append the block's buffers to `out`; returns their size in bytes."""
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
        packed = compress(out[begin + 1 :], size - HEADER.size, self.codec) if self.codec else b""
        self.is_squeezed = bool(packed)
        if not packed:
            return size
        head = HEADER.pack(self.count, flags | FLAG_SQUEEZED, NUMBERS[self.codec], *lengths)
        pad = _ZEROS[len(packed) & 7 :] if len(packed) & 7 else b""
        out[begin:] = [head, LENGTH.pack(len(packed)), packed, pad]
        return HEADER.size + LENGTH.size + _round(len(packed))

    @classmethod
    def decode(cls, data: memoryview) -> tuple[Block, int]:
        """Return the block at the start of `data`, over the same bytes, and its length.

        Raises:
            Corrupt: it contradicts itself; a reader could be led outside its bytes.
        """
        if len(data) < HEADER.size:
            raise Corrupt("a block is shorter than its header")
        count, flags, codec, *lengths = HEADER.unpack_from(data)
        if flags & FLAG_SQUEEZED:
            size = sum(map(_round, lengths))
            whole, end, made = decompress(data, HEADER.size, size, codec)
            head = HEADER.pack(count, flags & ~FLAG_SQUEEZED, 0, *lengths)
            block, _ = cls._decode(head, whole, 0)
            block.codec, block.is_squeezed = made, True
            if end > len(data):
                raise Corrupt("a block ends without its padding")
            return block, end
        return cls._decode(data, data, HEADER.size)

    @classmethod
    def decode_or_damaged(cls, data: memoryview) -> tuple[Block, int]:
        """Decode bytes that a checksum covers, as `decode`; a block that contradicts itself is
        returned as a `DamagedBlock`, so that only its own rows are lost.

        Raises:
            Corrupt: not even its length can be known.
        """
        try:
            return cls.decode(data)
        except Corrupt as error:
            count, size = _extent(data)
            return DamagedBlock(count, data[:size], error), size

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
        bodies = Column(parts[1], parts[2], parts[0])
        keys = Column(parts[4], parts[5], parts[3]) if flags & FLAG_KEYS else None
        block = cls(count, bodies, keys)
        if flags & FLAG_HEADERS:
            block.header_lists = parts[6]
            block.header_names = Column(parts[7], parts[8])
            block.header_values = _split_header_values(parts[9], len(parts[7]))
        block.check()
        if block.header_names is not None:
            _check_text(block.header_names)
        return block, at

    def check(self) -> None:
        """Check that no offset leads outside the block's bytes.

        Raises:
            Corrupt: it contradicts itself; a reader could be led outside its bytes.
        """
        count, lists = self.count, self.header_lists
        _check_column(self.bodies, count)
        if self.keys is not None:
            _check_column(self.keys, count)
        if lists is not None and self.header_names is not None and self.header_values is not None:
            pairs = _check_offsets(lists, count)
            _check_column(self.header_names, pairs)
            _check_column(self.header_values, pairs)

    # --- Reading ----------------------------------------------------------------------------

    def key_list(self) -> list[bytes | None]:
        """Return every row's key, cached for lookup, decision and fold; read-only."""
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
        """Return the row numbers of the deletes, from 0."""
        absent = self.bodies.absent(self.count)
        return [] if absent is None else np.flatnonzero(absent).tolist()

    def headers_of(self, at: int) -> Headers:
        if self.header_lists is None or self.header_names is None or self.header_values is None:
            return ()
        low, high = PAIR.unpack_from(self.header_lists, 4 * at)
        names = self.header_names.texts(low, high)
        values = self.header_values.values(low, high)
        return tuple(zip(names, values, strict=True))

    def row(self, at: int, seq: int, time_ms: int) -> Row:
        """Return one row, counted from 0."""
        key = self.keys.value(at) if self.keys is not None else None
        headers = self.headers_of(at) if self.header_lists is not None else ()
        return Row(seq, time_ms, self.bodies.value(at), key, headers)

    def rows(self, low: int, high: int, first_seq: int, time_ms: int) -> list[Row]:
        """Return the rows [low, high), counted from 0, of a block whose first seq is
        `first_seq`."""
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
        """Return the headers of the rows [low, high)."""
        lists, names, values = self.header_lists, self.header_names, self.header_values
        if lists is None or names is None or values is None:
            return repeat((), high - low)
        out: list[Headers] = []
        bounds = np.frombuffer(lists, np.int32)[low : high + 1].tolist()
        first, last = bounds[0], bounds[-1]
        pairs = list(zip(names.texts(first, last), values.values(first, last), strict=True))
        before: list[tuple[str, bytes]] = []
        headers: Headers = ()
        for begin, end in pairwise(bounds):
            found = pairs[begin - first : end - first]
            # Consecutive rows mostly have the same ones.
            if found != before:
                before, headers = found, tuple(found)
            out.append(headers)
        return out

    def arrow(self, shard: int, first_seq: int, time_ms: int) -> pa.RecordBatch:
        """Return the rows as Arrow arrays over the same bytes."""
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


class DamagedBlock(Block):
    """A block whose rows cannot be read: it has a length, a number of rows, and no contents.

    It is written again with the bytes that it was read from.
    """

    __slots__ = ("error", "raw")

    def __init__(self, count: int, raw: memoryview, error: Corrupt) -> None:
        super().__init__(count, Column(bytes(4), memoryview(b"")))
        self.raw = raw
        self.error = error

    def size(self) -> int:
        return self.raw.nbytes

    def squeezed(self, codec: Codec) -> Block:
        return self

    def encode_into(self, out: list[Buffer]) -> int:
        out.append(self.raw)
        return self.raw.nbytes

    def key_list(self) -> list[bytes | None]:
        return [None] * self.count

    def deletes(self) -> list[int]:
        return []

    def headers_of(self, at: int) -> Headers:
        raise self.error.again()

    def row(self, at: int, seq: int, time_ms: int) -> Row:
        raise self.error.again()

    def rows(self, low: int, high: int, first_seq: int, time_ms: int) -> list[Row]:
        raise self.error.again()

    def arrow(self, shard: int, first_seq: int, time_ms: int) -> pa.RecordBatch:
        raise self.error.again()


def key_list(rows: Block | Sequence[NewMessage]) -> list[bytes | None]:
    """Return every row's key."""
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


def _extent(data: memoryview) -> tuple[int, int]:
    """Return the number of rows and the size in bytes of the block at the start of `data`.

    Raises:
        Corrupt: the header contradicts the data after it.
    """
    if len(data) < HEADER.size:
        raise Corrupt("a block is shorter than its header")
    count, flags, _, *lengths = HEADER.unpack_from(data)
    if lengths[1] != 4 * (count + 1):
        raise Corrupt(f"a block has {lengths[1]} bytes of offsets for {count} values")
    size = HEADER.size + sum(map(_round, lengths))
    if flags & FLAG_SQUEEZED:
        if len(data) < HEADER.size + LENGTH.size:
            raise Corrupt("a compressed block is shorter than its header")
        size = HEADER.size + LENGTH.size + _round(LENGTH.unpack_from(data, HEADER.size)[0])
    if size > len(data):
        raise Corrupt("a block is shorter than its header says")
    return count, size


def _check_text(column: Column) -> None:
    """Check that the names of headers, which readers decode, are UTF-8."""
    if not bytes(column.data).isascii():
        try:
            column.array(pa.utf8(), len(column.bounds()) - 1).validate(full=True)
        except pa.ArrowInvalid as error:
            raise Corrupt(f"the name of a header is no UTF-8: {error}") from error


def _check_offsets(offsets: Buffer, count: int) -> int:
    """Return the end of `count` values, after a check that their offsets only ever rise."""
    if _length(offsets) != 4 * (count + 1):
        raise Corrupt(f"a block has {_length(offsets)} bytes of offsets for {count} values")
    bounds = np.frombuffer(offsets, np.int32)
    if bounds[0] < 0 or (bounds[1:] < bounds[:-1]).any():
        raise Corrupt("the offsets of a block fall")
    return int(bounds[-1])


def _check_column(column: Column, count: int) -> None:
    end = _check_offsets(column.offsets, count)
    if end > len(column.data):
        raise Corrupt(f"the values of a block end at byte {end} of {len(column.data)}")
    if len(column.validity) not in (0, (count + 7) // 8):
        raise Corrupt(f"a block has {len(column.validity)} bytes of validity for {count} values")


def _split_header_values(data: memoryview, offsets_bytes: int) -> Column:
    return Column(data[:offsets_bytes], data[offsets_bytes:])


def column_of(binary: Array) -> Column:
    """Return the buffers of a validated binary array."""
    if binary.offset or len(binary.buffers()[1] or b"") < 4 * (len(binary) + 1):
        # A slice has its bytes within its parent's: copy only its own.
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


# --- Compression of the buffers of a block as one piece ---
# Rule 1: a block is compressed only if that makes it shorter.
# Rule 2: its uncompressed size is in its header, and is validated before anything is allocated.

Codec = Literal["", "zstd", "lz4"]

SQUEEZED_BYTES_MIN = 64 * 1024
"""Smaller blocks are not compressed: their cost is the commit, not the bytes."""

LENGTH = struct.Struct("<Q")
"""Bytes of the compressed piece, which follows it."""

NUMBERS: dict[Codec, int] = {"zstd": 1, "lz4": 2}
_ARROW: dict[int, Literal["zstd", "lz4_raw"]] = {1: "zstd", 2: "lz4_raw"}
_CODECS: dict[int, Codec] = {number: codec for codec, number in NUMBERS.items()}


def compress(buffers: Sequence[bytes | bytearray | memoryview], size: int, codec: Codec) -> bytes:
    """Return the buffers, padded as in a block, compressed; empty if that is not shorter."""
    whole = b"".join(buffers)
    packed: bytes = pa.compress(whole, codec=_ARROW[NUMBERS[codec]], asbytes=True)
    return packed if len(packed) + LENGTH.size < size else b""


def decompress(data: memoryview, at: int, size: int, number: int) -> tuple[memoryview, int, Codec]:
    """Decompress the piece at `at`; returns its `size` bytes, its end, and its codec.

    Raises:
        Corrupt: it is larger than any block, longer than its container, or does not decompress.
    """
    codec = _CODECS.get(number)
    if codec is None or size > limits.SEGMENT_BYTES_MAX or at + LENGTH.size > len(data):
        raise Corrupt(f"a compressed block of {size} bytes by codec {number} cannot be")
    (length,) = LENGTH.unpack_from(data, at)
    begin = at + LENGTH.size
    if begin + length > len(data):
        raise Corrupt("a compressed block is shorter than it says")
    try:
        whole = pa.decompress(data[begin : begin + length], size, codec=_ARROW[number])
    except (pa.ArrowInvalid, OSError) as error:
        raise Corrupt(f"a compressed block does not unpack: {error}") from error
    if whole.size != size:
        raise Corrupt(f"a compressed block has {whole.size} bytes, not {size}")
    return memoryview(whole), begin + ((length + 7) & ~7), codec
