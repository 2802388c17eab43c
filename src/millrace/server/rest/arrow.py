"""Rows as Arrow IPC streams, over the store's own bytes: nothing is copied to be sent.

Sealed batches whose rows are all wanted are sent as they lie in their files.

The columns are `seq`, `key`, `headers`, `time` and `value`. Where rows of several shards come in
one stream, `shard` stands before them: the number of the shard within its queue, from 0. Whoever
names columns gets these alone, in the order that they have here.
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
from millrace.core import check
from millrace.core.block import SCHEMA
from millrace.core.fold import Reader
from millrace.core.model import ShardId
from millrace.errors import Invalid
from millrace.server.http.response import Buffer

SHARD_ROWS = pa.schema([SCHEMA.field(at) for at in range(1, len(SCHEMA.names))])
"""Rows of one shard."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of one shard, as of a snapshot."""

    shard: ShardId
    number: int
    """Which one of the queue's shards it is, from 0."""
    after: int
    upto: int
    reader: Reader


class _Sink(RawIOBase):
    """A file that keeps what is written to it: buffers as they are."""

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
        """What was written since the last time."""
        parts, self._parts = self._parts, []
        return parts


class RowStream:
    """The bytes of an Arrow IPC stream, some at a time; `let_go` is awaited at its end, always."""

    def __init__(
        self,
        engine: Engine,
        spans: Sequence[Span],
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
        """Find the first rows: what is refused can be said as long as nothing was sent.

        Raises:
            SnapshotExpired: they are no longer pinned.
        """
        self._first = await anext(self._parts)

    def __aiter__(self) -> RowStream:
        return self

    async def __anext__(self) -> list[Buffer]:
        first, self._first = self._first, None
        return await anext(self._parts) if first is None else first

    async def aclose(self) -> None:
        """End it, wherever it is."""
        try:
            await self._parts.aclose()
        finally:
            if self._let_go is not None:
                let_go, self._let_go = self._let_go, None
                await let_go()

    async def _make(self) -> AsyncGenerator[list[Buffer], None]:
        sink = _Sink()
        with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), self._schema) as writer:
            # Arrow writes the schema with the first batch that it is given: not with one that is
            # sent as it lies.
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

    async def _joined(self, span: Span) -> AsyncGenerator[pa.RecordBatch | pa.Buffer, None]:
        """The rows; small batches are made into larger ones."""
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

    def _found(self, span: Span) -> AsyncGenerator[pa.RecordBatch | pa.Buffer, None]:
        # With the column `shard`, or without another one, nothing lies in files as it is sent.
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
    """The columns of a stream: all of them, or those that are named.

    Raises:
        Invalid: one of them is none.
    """
    whole = SCHEMA if with_shard else SHARD_ROWS
    if names is None:
        return whole
    wanted = {name.strip() for name in names.split(",")}
    for name in sorted(wanted - set(whole.names)):
        raise Invalid(
            f"columns names {check.shown(name)}; there are {', '.join(whole.names)}",
            field="columns",
        )
    return pa.schema([whole.field(name) for name in whole.names if name in wanted])


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    [joined] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
