"""`spark.read`: a queue as of one moment, or as of a snapshot that somebody has pinned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from millrace.client.cursor import Snapshot
from millrace.client.millrace import Millrace
from millrace.client.ticket import read_ticket
from millrace.spark.home import reach
from millrace.spark.options import Options
from millrace.spark.pushdown import Narrow, narrowed
from millrace.spark.read import Part
from millrace.spark.rows import Rows
from millrace.spark.split import split
from millrace.spark.start import Start
from millrace.spark.subject import Subject, look

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class BatchReader(DataSourceReader):
    """Reads a queue once. What it reads stays pinned for a while: nobody says when Spark is done,
    and a task that is tried again must find the same rows."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._narrow = Narrow()
        self._rows = Rows(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Pin the queue, and say which task reads what of it."""
        return list(reach(self._options.home).run(self._plan))

    async def _plan(self, m: Millrace) -> list[Part]:
        options = self._options
        subject = await look(m, options)
        snapshot = await self._pinned(subject)
        after = await subject.places(options.starting, "startingOffsets")
        upto = snapshot.boundaries
        if not options.ending.ticket and not options.ending.is_latest:
            upto = await subject.places(options.ending, "endingOffsets")
        lows, highs = await self._narrowed(subject, after, upto)
        return split(
            snapshot,
            lows,
            highs,
            row_bytes=subject.row_bytes,
            partition_bytes=options.partition_bytes,
            partitions_min=options.partitions_min,
        )

    async def _narrowed(
        self, subject: Subject, after: Sequence[int], upto: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Where the read begins and ends in each shard, with what Spark has said of it."""
        narrow = self._narrow
        lows = [max(low, narrow.after) for low in after]
        if narrow.time_ms is not None:
            times = await subject.places(Start(time_ms=narrow.time_ms), "timestamp")
            lows = [max(low, time) for low, time in zip(lows, times, strict=True)]
        highs = [high if narrow.upto is None else min(high, narrow.upto) for high in upto]
        if narrow.shards is not None:
            pairs = enumerate(zip(lows, highs, strict=True))
            highs = [high if at in narrow.shards else low for at, (low, high) in pairs]
        return lows, highs

    async def _pinned(self, subject: Subject) -> Snapshot:
        ending = self._options.ending
        if ending.ticket:
            return read_ticket(subject.queue, ending.ticket)
        pinned = subject.queue.snapshot(seconds=self._options.pin_seconds)
        return await pinned.__aenter__()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        if isinstance(partition, Part):
            yield from self._rows.of(partition)


class NarrowReader(BatchReader):
    """The same with filters that Spark hands down. It is a class of its own, as Spark refuses one
    that takes filters where they are switched off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Read less, where a filter says so; Spark applies all of them itself."""
        keys = self._options.keys
        self._narrow = narrowed(filters, Narrow(keys=keys))
        if self._narrow.keys != keys:
            self._options = msgspec.structs.replace(self._options, keys=self._narrow.keys)
            self._rows = Rows(self._options, self._schema)
        return filters
