"""Validation of received Arrow IPC streams, message by message, before any array is made.

Rule 1: the schema is validated first. Types that decode into more bytes than were sent, and types
whose code has had defects, are refused (`arrow_input.check_types`).
Rule 2: a record batch is validated by its metadata: its rows count towards the limit of one
publish, its buffers lie within its body and are together no larger, and nothing is compressed. So
the arrays of a body are never larger than the body.
Rule 3: the contents of the arrays are validated when a block is made of them
(`arrow_rows.block_of`).
"""

from __future__ import annotations

import struct
from typing import NoReturn

import pyarrow as pa

from millrace import limits
from millrace.client.arrow_input import check_types
from millrace.core.publishing import validate_rows
from millrace.errors import Invalid, TooLarge

_ERRORS = (
    pa.ArrowException,
    ValueError,
    TypeError,
    LookupError,
    OSError,
    SystemError,
    StopIteration,
    struct.error,
)
"""Exceptions of pyarrow for malformed streams; its documentation does not list them exactly."""

_BUFFER = struct.Struct("<qq")
"""The offset and length of a buffer; also the length and null count of an array."""

_LITTLE_ENDIAN = 0
"""The value of little-endian byte order in a schema."""


def read_table(body: bytes | bytearray | memoryview) -> pa.Table:
    """Return the rows of an IPC stream, over the same bytes.

    Raises:
        Invalid: the stream is malformed or compressed, or a column has an unsupported type.
        TooLarge: it has too many rows, batches, or bytes of metadata.
    """
    try:
        return _read(body)
    except _ERRORS as error:
        raise _bad(f"the body is no Arrow stream: {error}"[:500]) from error


def _read(body: bytes | bytearray | memoryview) -> pa.Table:
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    schema = _schema(reader)
    batches: list[pa.RecordBatch] = []
    rows = 0
    for message in reader:
        metadata = _metadata(message)
        if message.type != "record batch":
            raise _bad(f"the Arrow stream has a {message.type}; send record batches alone")
        rows += _check_batch(metadata, message.body)
        validate_rows.check_count(rows)
        if len(batches) >= limits.ARROW_BATCHES_MAX:
            raise TooLarge(
                f"the Arrow stream has more than {limits.ARROW_BATCHES_MAX} record batches; "
                "combine them before they are sent (Table.combine_chunks)",
                field="body",
                limit=limits.ARROW_BATCHES_MAX,
            )
        batches.append(pa.ipc.read_record_batch(message, schema))
    return pa.Table.from_batches(batches, schema)


def _schema(reader: pa.ipc.MessageReader) -> pa.Schema:
    message = reader.read_next_message()
    metadata = _metadata(message)
    if message.type != "schema":
        raise _bad(f"the Arrow stream begins with a {message.type}, not with its schema")
    if _Table.of_message(metadata).short(0) != _LITTLE_ENDIAN:
        raise _bad("the Arrow stream is big-endian; send it little-endian")
    schema = pa.ipc.read_schema(message)
    check_types(schema)
    return schema


def _metadata(message: pa.ipc.Message) -> memoryview:
    metadata = memoryview(message.metadata).cast("B")
    if len(metadata) > limits.ARROW_METADATA_BYTES_MAX:
        limit = limits.ARROW_METADATA_BYTES_MAX
        raise TooLarge(
            f"a message of the Arrow stream has {len(metadata)} bytes of metadata, up to {limit} "
            "are allowed",
            field="body",
            limit=limit,
        )
    return metadata


def _check_batch(metadata: memoryview, body: pa.Buffer | None) -> int:
    """Check the buffers of a record batch; return the number of rows in its metadata."""
    size = 0 if body is None else body.size
    batch = _Table.of_message(metadata)
    if batch.table(3) is not None:
        raise _bad(
            "the Arrow stream is compressed, which is not unpacked here; send it without "
            "compression (pyarrow.ipc.IpcWriteOptions(compression=None))"
        )
    rows = batch.long(0)
    if rows < 0:
        raise _bad(f"a record batch of the Arrow stream has {rows} rows")
    total = 0
    for offset, length in batch.pairs(2):
        total += length
        if not 0 <= offset <= offset + length <= size or total > size:
            raise _bad(
                f"a record batch of the Arrow stream has buffers beyond its body of {size} bytes"
            )
    return rows


def _bad(text: str) -> Invalid:
    return Invalid(text, field="body")


class _Table:
    """A table of a flatbuffer, the encoding of Arrow's metadata; Arrow itself has verified it.

    It begins with a reference to the offsets of its fields; a field without an offset is 0.
    """

    __slots__ = ("_at", "_data", "_fields", "_places")

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._places = at - struct.unpack_from("<i", data, at)[0]
        if self._places < 0:
            _no_metadata()
        self._fields = struct.unpack_from("<H", data, self._places)[0]

    @classmethod
    def of_message(cls, metadata: memoryview) -> _Table:
        """Return the header of a message: its schema or record batch."""
        message = cls(metadata, struct.unpack_from("<I", metadata)[0])
        header = message.table(2)
        return header if header is not None else _no_metadata()

    def _place(self, field: int) -> int:
        """Return the position of a field's value; 0 if the field is absent."""
        at = 4 + 2 * field
        if at + 2 > self._fields:
            return 0
        place: int = struct.unpack_from("<H", self._data, self._places + at)[0]
        return self._at + place if place else 0

    def _value(self, field: int, form: str) -> int:
        place = self._place(field)
        return struct.unpack_from(form, self._data, place)[0] if place else 0

    def short(self, field: int) -> int:
        """Return a field's 16-bit number."""
        return self._value(field, "<h")

    def long(self, field: int) -> int:
        """Return a field's 64-bit number."""
        return self._value(field, "<q")

    def table(self, field: int) -> _Table | None:
        """Return the table that a field points to, or None."""
        place = self._place(field)
        return _Table(self._data, place + self._value(field, "<I")) if place else None

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """Return a vector of pairs of 64-bit numbers."""
        place = self._place(field)
        if not place:
            return []
        at = place + self._value(field, "<I")
        count = struct.unpack_from("<I", self._data, at)[0]
        data = self._data[at + 4 : at + 4 + count * _BUFFER.size]
        if len(data) != count * _BUFFER.size:
            _no_metadata()
        return list(_BUFFER.iter_unpack(data))


def _no_metadata() -> NoReturn:
    raise _bad("the metadata of an Arrow message cannot be read")
