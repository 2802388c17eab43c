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
        after, upto = await self._after(subject), await self._upto(subject)
        # Nothing may be refused from here on: nobody would let go what is pinned.
        snapshot = await self._pinned(subject)
        lows, highs = self._narrowed(after, upto or snapshot.boundaries)
        if options.ending.ticket:
            lows = [max(pair) for pair in zip(lows, snapshot.afters, strict=True)]
        return split(
            snapshot,
            lows,
            highs,
            row_bytes=subject.row_bytes,
            partition_bytes=options.partition_bytes,
            partitions_min=options.partitions_min,
        )

    async def _after(self, subject: Subject) -> Sequence[int]:
        """Where the read begins in each shard, by the options and by what Spark has said of it."""
        after = await subject.places(self._options.starting, "startingOffsets")
        if self._narrow.time_ms is None:
            return after
        times = await subject.places(Start(time_ms=self._narrow.time_ms), "timestamp")
        return [max(pair) for pair in zip(after, times, strict=True)]

    async def _upto(self, subject: Subject) -> Sequence[int] | None:
        """Where the options say that it ends; None: where the snapshot does."""
        ending = self._options.ending
        if ending.ticket or ending.is_latest:
            return None
        return await subject.places(ending, "endingOffsets", is_end=True)

    def _narrowed(
        self, after: Sequence[int], upto: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Where the read begins and ends in each shard, with what Spark has said of seqs and
        shards."""
        narrow = self._narrow
        lows = [max(low, narrow.after) for low in after]
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
