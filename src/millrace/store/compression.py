"""Compression of record batches, buffer by buffer, in Arrow's IPC format.

Rule 1: a batch is compressed only if that makes it shorter.
Rule 2: the declared sizes of the buffers are checked against a limit before any allocation.
Rule 3: decompressed batches are on the heap, so that the cache for them is small.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Literal

import pyarrow as pa

from millrace import limits
from millrace.errors import Corrupt

Codec = Literal["zstd", "lz4"]
Key = tuple[bool, int, int]

UNPACKED_BYTES_MAX = 64 * 1024 * 1024
"""Size of the cache of decompressed batches in bytes; one batch is kept, however large."""

_HEAD = struct.Struct("<iI")
_INT = struct.Struct("<i")
_WORD = struct.Struct("<I")
_HALF = struct.Struct("<H")
_SPAN = struct.Struct("<qq")
_SIZE = struct.Struct("<q")
_UNPACKED = -1
"""Declared size of an uncompressed buffer."""


def compress_batch(batch: pa.RecordBatch, codec: Codec | None) -> tuple[pa.Buffer, bool]:
    """Return the batch as an IPC message, and True if it is compressed."""
    plain = batch.serialize()
    if codec is None:
        return plain, False
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        begin = sink.tell()
        stream.write_batch(batch)
        end = sink.tell()
    if not begin:
        begin = batch.schema.serialize().size
    packed = sink.getvalue().slice(begin, end - begin)
    return (packed, True) if packed.size < plain.size else (plain, False)


def decompress_batch(data: pa.Buffer, schema: pa.Schema, *, compressed: bool) -> pa.RecordBatch:
    """Decode the batch of an IPC message; a view of its bytes unless it is compressed.

    Raises:
        Corrupt: its size is above that of any batch, or it cannot be decoded.
    """
    if not compressed:
        return pa.ipc.read_record_batch(data, schema)
    size = sum(_declared(memoryview(data)))
    if size > limits.SEGMENT_BYTES_MAX:
        raise Corrupt(f"a record batch says that it has {size} bytes, more than any can have")
    try:
        return pa.ipc.read_record_batch(data, schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise Corrupt(f"a compressed record batch cannot be read: {error}") from error


def _declared(data: memoryview) -> Iterator[int]:
    """Yield the declared decompressed size of each buffer."""
    try:
        _, metadata = _HEAD.unpack_from(data)
        body = _HEAD.size + metadata
        message = _HEAD.size + _WORD.unpack_from(data, _HEAD.size)[0]
        header = _follow(data, _field(data, message, 2))
        buffers = _follow(data, _field(data, header, 2))
        (count,) = _WORD.unpack_from(data, buffers)
        for at in range(count):
            offset, length = _SPAN.unpack_from(data, buffers + _WORD.size + at * _SPAN.size)
            if length:
                (size,) = _SIZE.unpack_from(data, body + offset)
                yield length - _SIZE.size if size == _UNPACKED else abs(size)
    except struct.error as error:
        raise Corrupt(f"a compressed record batch contradicts itself: {error}") from error


def _field(data: memoryview, table: int, number: int) -> int:
    """Return the offset of a field of a flatbuffer's table."""
    fields = table - _INT.unpack_from(data, table)[0]
    return int(table + _HALF.unpack_from(data, fields + 4 + 2 * number)[0])


def _follow(data: memoryview, at: int) -> int:
    return int(at + _WORD.unpack_from(data, at)[0])


class UnpackedCache:
    """An LRU cache of decompressed batches by location, bounded in bytes."""

    def __init__(self) -> None:
        self._found: OrderedDict[Key, tuple[object, int]] = OrderedDict()
        self._bytes = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._found

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Key) -> object | None:
        entry = self._found.get(key)
        if entry is None:
            return None
        self._found.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: object, size: int) -> None:
        self.drop(key)
        self._found[key] = value, size
        self._bytes += size
        while self._bytes > UNPACKED_BYTES_MAX and len(self._found) > 1:
            self.drop(next(iter(self._found)))

    def drop(self, key: Key) -> None:
        self._bytes -= self._found.pop(key, (None, 0))[1]

    def forget(self, homes: set[tuple[bool, int]]) -> None:
        """Evict all batches of these generations and files."""
        for key in [key for key in self._found if key[:2] in homes]:
            self.drop(key)
