"""Codecs of rows: a few small ones within the answer, others as a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pyarrow as pa

from millrace import limits
from millrace.core.format.block import SCHEMA, Block
from millrace.core.model import Headers, NewMessage, Row
from millrace.errors import Corrupt
from millrace.rpc.fast_codecs import message_bytes, read_headers
from millrace.rpc.field_codecs import (
    IntCodec,
    check_list,
    invalid_value,
    read_blob,
)
from millrace.rpc.frames import BlobReader, BlobWriter

_NUMBER = IntCodec()
_SMALL_ROWS_MAX = 64


class RowListCodec:
    """Rows in their order."""

    def pack(self, value: object, blobs: BlobWriter) -> list[object]:
        rows = cast("Sequence[Row]", value)
        if len(rows) <= _SMALL_ROWS_MAX and blobs.takes_inline(message_bytes(rows)):
            return [[row.seq, row.time_ms, row.body, row.key, row.headers] for row in rows]
        block = Block.of_messages([NewMessage(row.body, row.key, row.headers) for row in rows])
        buffers: list[bytes | bytearray | memoryview] = []
        size = block.encode_into(buffers)
        place = blobs.add(buffers, size)
        seqs = np.fromiter((row.seq for row in rows), np.int64, len(rows)).tobytes()
        times = np.fromiter((row.time_ms for row in rows), np.int64, len(rows)).tobytes()
        return [place, seqs, times]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> list[Row]:
        listed = check_list(raw, field, limits.LEASE_MESSAGES_MAX)
        if len(listed) == 3 and type(listed[1]) is bytes:
            return self._from_block(listed, field, blobs)
        return _read_rows(listed, field)

    def _from_block(self, raw: list[object], field: str, blobs: BlobReader) -> list[Row]:
        try:
            block, _ = Block.decode(read_blob(raw[0], field, blobs))
        except Corrupt as error:
            raise invalid_value(raw[0], field, "rows") from error
        seqs, times = (np.frombuffer(cast("bytes", one), np.int64).tolist() for one in raw[1:])
        if not len(seqs) == len(times) == block.count:
            raise invalid_value(raw, field, "rows")
        return [
            Row(seq, time_ms, row.body, row.key, row.headers)
            for seq, time_ms, row in zip(seqs, times, block.rows(0, block.count, 0, 0), strict=True)
        ]


def _read_rows(listed: list[object], field: str) -> list[Row]:
    rows: list[Row] = []
    last: object = []
    pairs: Headers = ()
    for raw in listed:
        if type(raw) is not list or len(raw) != 5:
            raise invalid_value(raw, field, "a row")
        seq, time_ms, body, key, headers = raw
        # Most rows have the headers of the previous one.
        if headers != last:
            last, pairs = headers, read_headers(headers, field)
        rows.append(Row(seq, time_ms, body, key, pairs))
    return rows


class ArrowBatchCodec:
    """Rows as an Arrow record batch."""

    def pack(self, value: object, blobs: BlobWriter) -> list[int]:
        data = cast("pa.RecordBatch", value).serialize()
        return blobs.add([memoryview(data)], data.size)

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> pa.RecordBatch:
        data = read_blob(raw, field, blobs)
        try:
            return pa.ipc.read_record_batch(pa.py_buffer(data), SCHEMA)
        except (pa.ArrowInvalid, OSError) as error:
            raise invalid_value(raw, field, "an Arrow batch") from error
