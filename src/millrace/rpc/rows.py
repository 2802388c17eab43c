"""Rows as they stand in a frame: few small ones among the answers, others as a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pyarrow as pa

from millrace import limits
from millrace.core.block import SCHEMA, Block
from millrace.core.model import Headers, Message, Row
from millrace.errors import Corrupt
from millrace.rpc.fast_codecs import pairs_of, weigh
from millrace.rpc.field_codecs import (
    Whole,
    listed_of,
    piece,
    wrong,
)
from millrace.rpc.frames import Blobs, Pieces

_NUMBER = Whole()
_SMALL_ROWS_MAX = 64


class RowList:
    """Rows in their order."""

    def pack(self, value: object, blobs: Blobs) -> list[object]:
        rows = cast("Sequence[Row]", value)
        if len(rows) <= _SMALL_ROWS_MAX and blobs.takes_inline(weigh(rows)):
            return [[row.seq, row.time_ms, row.body, row.key, row.headers] for row in rows]
        block = Block.of_messages([Message(row.body, row.key, row.headers) for row in rows])
        buffers: list[bytes | bytearray | memoryview] = []
        size = block.encode_into(buffers)
        place = blobs.add(buffers, size)
        seqs = np.fromiter((row.seq for row in rows), np.int64, len(rows)).tobytes()
        times = np.fromiter((row.time_ms for row in rows), np.int64, len(rows)).tobytes()
        return [place, seqs, times]

    def unpack(self, raw: object, field: str, blobs: Pieces) -> list[Row]:
        listed = listed_of(raw, field, limits.LEASE_MESSAGES_MAX)
        if len(listed) == 3 and type(listed[1]) is bytes:
            return self._from_block(listed, field, blobs)
        return _read_rows(listed, field)

    def _from_block(self, raw: list[object], field: str, blobs: Pieces) -> list[Row]:
        try:
            block, _ = Block.decode(piece(raw[0], field, blobs))
        except Corrupt as error:
            raise wrong(raw[0], field, "rows") from error
        seqs, times = (np.frombuffer(cast("bytes", one), np.int64).tolist() for one in raw[1:])
        if not len(seqs) == len(times) == block.count:
            raise wrong(raw, field, "rows")
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
            raise wrong(raw, field, "a row")
        seq, time_ms, body, key, headers = raw
        # Mostly they are those of the row before.
        if headers != last:
            last, pairs = headers, pairs_of(headers, field)
        rows.append(Row(seq, time_ms, body, key, pairs))
    return rows


class Batch:
    """Rows as an Arrow batch."""

    def pack(self, value: object, blobs: Blobs) -> list[int]:
        data = cast("pa.RecordBatch", value).serialize()
        return blobs.add([memoryview(data)], data.size)

    def unpack(self, raw: object, field: str, blobs: Pieces) -> pa.RecordBatch:
        data = piece(raw, field, blobs)
        try:
            return pa.ipc.read_record_batch(pa.py_buffer(data), SCHEMA)
        except (pa.ArrowInvalid, OSError) as error:
            raise wrong(raw, field, "an Arrow batch") from error
