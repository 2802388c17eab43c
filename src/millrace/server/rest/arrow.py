"""Rows as Arrow IPC streams, over the store's own bytes: nothing is copied to be sent.

Sealed batches whose rows are all requested are sent exactly as they are stored in their files. The
columns are `seq`, `key`, `headers`, `time` and `value`. If rows of several shards are in one
stream, they are preceded by `shard`, the shard's number within its queue, from 0. A request that
names columns gets only these, in the order above.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from io import RawIOBase

import numpy as np
import pyarrow as pa

from millrace import limits
from millrace.client.engine import Engine
from millrace.core import validate
from millrace.core.format.block import SCHEMA
from millrace.core.model import ShardId
from millrace.core.state.fold import Reader
from millrace.errors import Invalid
from millrace.server.http.response import Buffer

SHARD_ROWS = pa.schema([SCHEMA.field(at) for at in range(1, len(SCHEMA.names))])
"""The schema of rows of one shard."""


@dataclass(frozen=True, slots=True)
class ShardRange:
    """A range of rows of one shard, as of a snapshot."""

    shard: ShardId
    number: int
    """The shard's number within its queue, from 0."""
    after: int
    upto: int
    reader: Reader


class _Sink(RawIOBase):
    """A writable file object that collects the buffers written to it without copying them."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[Buffer] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        assert isinstance(data, bytes | pa.Buffer)
        self._parts.append(data if isinstance(data, bytes) else memoryview(data))
        return len(data)

    def take(self) -> list[Buffer]:
        """Return the buffers written since the last call."""
        parts, self._parts = self._parts, []
        return parts


class RowStream:
    """The bytes of an Arrow IPC stream in parts; `let_go` is always awaited when it ends."""

    def __init__(
        self,
        engine: Engine,
        spans: Sequence[ShardRange],
        schema: pa.Schema,
        *,
        let_go: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._engine = engine
        self._spans = spans
        self._schema = schema
        self._is_whole = schema.names == SHARD_ROWS.names
        self._let_go = let_go
        self._parts = self._make()
        self._first: list[Buffer] | None = None

    async def begin(self) -> None:
        """Read the first rows, while the request can still be refused because nothing has been
        sent.

        Raises:
            SnapshotExpired: the rows are no longer pinned.
        """
        self._first = await anext(self._parts)

    def __aiter__(self) -> RowStream:
        return self

    async def __anext__(self) -> list[Buffer]:
        first, self._first = self._first, None
        return await anext(self._parts) if first is None else first

    async def aclose(self) -> None:
        """Close the stream at any point, and release what it holds."""
        try:
            await self._parts.aclose()
        finally:
            if self._let_go is not None:
                let_go, self._let_go = self._let_go, None
                await let_go()

    async def _make(self) -> AsyncGenerator[list[Buffer], None]:
        sink = _Sink()
        with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), self._schema) as writer:
            # Arrow writes the schema with the first batch that it is given, and not with one that
            # is sent as it is stored in its file.
            writer.write_batch(pa.RecordBatch.from_pylist([], self._schema))
            sink.take()
            sink.write(self._schema.serialize())
            for span in self._spans:
                async with aclosing(self._joined(span)) as batches:
                    async for batch in batches:
                        if isinstance(batch, pa.Buffer):
                            yield [*sink.take(), memoryview(batch)]
                            continue
                        writer.write_batch(self._shaped(batch, span.number))
                        yield sink.take()
        yield sink.take()

    async def _joined(self, span: ShardRange) -> AsyncGenerator[pa.RecordBatch | pa.Buffer, None]:
        """Yield the rows; small batches are combined into larger ones."""
        small: list[pa.RecordBatch] = []
        size = 0
        async with aclosing(self._found(span)) as batches:
            async for batch in batches:
                bytes_ = batch.size if isinstance(batch, pa.Buffer) else batch.nbytes
                if small and size + bytes_ > limits.ARROW_JOIN_BYTES:
                    yield _join(small)
                    small, size = [], 0
                if isinstance(batch, pa.Buffer) or bytes_ > limits.ARROW_JOIN_BYTES:
                    yield batch
                else:
                    small.append(batch)
                    size += bytes_
        if small:
            yield _join(small)

    def _found(self, span: ShardRange) -> AsyncGenerator[pa.RecordBatch | pa.Buffer, None]:
        # With the column `shard`, or without one of the others, no file has the bytes to be sent.
        least = limits.ARROW_JOIN_BYTES + 1 if self._is_whole else limits.SEGMENT_BYTES_MAX
        engine, reader = self._engine, span.reader
        return engine.packed(span.shard, span.after, span.upto, reader, least=least)

    def _shaped(self, batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
        columns = [
            pa.array(np.full(batch.num_rows, number, np.uint64))
            if name == "shard"
            else batch.column(name)
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def columns_of(names: str | None, *, with_shard: bool) -> pa.Schema:
    """Return the schema of a stream: all columns, or the named ones.

    Raises:
        Invalid: a name is not a column.
    """
    whole = SCHEMA if with_shard else SHARD_ROWS
    if names is None:
        return whole
    wanted = {name.strip() for name in names.split(",")}
    for name in sorted(wanted - set(whole.names)):
        raise Invalid(
            f"columns names {validate.shown(name)}; there are {', '.join(whole.names)}",
            field="columns",
        )
    return pa.schema([whole.field(name) for name in whole.names if name in wanted])


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    [joined] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
