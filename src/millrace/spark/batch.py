"""`spark.read`: a queue as of one moment, or as of a snapshot that somebody has pinned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from millrace.client.cursor import Snapshot
from millrace.client.millrace import Millrace
from millrace.client.ticket import read_ticket
from millrace.spark.home import reach
from millrace.spark.options import Options
from millrace.spark.read import Part
from millrace.spark.rows import rows_of
from millrace.spark.split import split
from millrace.spark.subject import Subject, look

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class BatchReader(DataSourceReader):
    """Reads a queue once. What it reads stays pinned for a while: nobody says when Spark is done,
    and a task that is tried again must find the same rows."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

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
        return split(
            snapshot,
            after,
            upto,
            row_bytes=subject.row_bytes,
            partition_bytes=options.partition_bytes,
            partitions_min=options.partitions_min,
        )

    async def _pinned(self, subject: Subject) -> Snapshot:
        ending = self._options.ending
        if ending.ticket:
            return read_ticket(subject.queue, ending.ticket)
        pinned = subject.queue.snapshot(seconds=self._options.pin_seconds)
        return await pinned.__aenter__()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        if isinstance(partition, Part):
            yield from rows_of(self._options, self._schema, partition)
