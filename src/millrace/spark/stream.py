"""`spark.readStream`: follows a queue, one snapshot range after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millrace.client.millrace import Millrace
from millrace.spark.follower import Follower
from millrace.spark.home import reach
from millrace.spark.limit import BatchLimit
from millrace.spark.offset import Offset
from millrace.spark.options import Options
from millrace.spark.read import ReadPartition
from millrace.spark.rows import PartitionReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a queue. Spark calls one instance at the driver, and copies of it read at the
    executors.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._rows = PartitionReader(options, schema)
        self._follower = Follower(options)

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        """Return the start of a query without a checkpoint: its cursor's position, or the options'
        start.
        """
        return reach(self._options.home).run(self._follower.begin).shown()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the present end of the queue as the end of the query."""
        reach(self._options.home).run(self._follower.aim)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of one micro-batch from the options."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802
        self, start: dict[str, object], limit: ReadLimit
    ) -> dict[str, object]:
        """Return the end of the next batch, or `start` itself if no rows follow it."""
        done, most = Offset.of(start), self._limit(limit)

        async def ask(m: Millrace) -> Offset | None:
            return await self._follower.next(m, done, most)

        found = reach(self._options.home).run(ask)
        return start if found is None else found.shown()

    def _limit(self, limit: ReadLimit) -> BatchLimit:
        if isinstance(limit, ReadAllAvailable) and not self._follower.is_aimed:
            return BatchLimit()
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.rows_max
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.bytes_max
        return BatchLimit(rows, size)

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """Split the batch that ends at `end` into tasks; the end also contains the start."""
        upto = Offset.of(end)

        async def plan(m: Millrace) -> list[ReadPartition]:
            return await self._follower.plan(m, upto)

        return list(reach(self._options.home).run(plan))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if isinstance(partition, ReadPartition):
            yield from self._rows.of(partition)

    def commit(self, end: dict[str, object]) -> None:
        """Move the cursor to the offset that Spark has committed. Spark calls this one batch late,
        and never for the last one; so the next read commits, too.
        """
        done = Offset.of(end)

        async def ask(m: Millrace) -> None:
            await self._follower.commit(m, done)

        reach(self._options.home).run(ask)

    def stop(self) -> None:
        """Do nothing, since connections are shared with other queries of the process."""
