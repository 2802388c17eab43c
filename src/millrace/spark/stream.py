"""`spark.readStream`: a queue, one snapshot range after another."""

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
from millrace.spark.limit import Limit
from millrace.spark.offset import Offset
from millrace.spark.options import Options
from millrace.spark.read import Part
from millrace.spark.rows import Rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a queue. Spark asks one of these at the driver, and has copies of it read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._rows = Rows(options, schema)
        self._follower = Follower(options)

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        """Where a query without a checkpoint begins: where its cursor is, or where it is told."""
        return reach(self._options.home).run(self._follower.begin).shown()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note how far the queue is: the query ends once it has read so far."""
        reach(self._options.home).run(self._follower.aim)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the options say of one micro-batch."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802
        self, start: dict[str, object], limit: ReadLimit
    ) -> dict[str, object]:
        """The end of the next batch; `start` itself where there is nothing after it."""
        done, most = Offset.of(start), self._limit(limit)

        async def ask(m: Millrace) -> Offset | None:
            return await self._follower.next(m, done, most)

        found = reach(self._options.home).run(ask)
        return start if found is None else found.shown()

    def _limit(self, limit: ReadLimit) -> Limit:
        if isinstance(limit, ReadAllAvailable) and not self._follower.is_aimed:
            return Limit()
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.rows_max
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.bytes_max
        return Limit(rows, size)

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """Which task reads what of the batch that ends there; the end says where it begins."""
        upto = Offset.of(end)

        async def plan(m: Millrace) -> list[Part]:
            return await self._follower.plan(m, upto)

        return list(reach(self._options.home).run(plan))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        if isinstance(partition, Part):
            yield from self._rows.of(partition)

    def commit(self, end: dict[str, object]) -> None:
        """Spark is done with everything up to there. It says so one batch late, and never of the
        last one; so what comes next says it, too."""
        done = Offset.of(end)

        async def ask(m: Millrace) -> None:
            await self._follower.commit(m, done)

        reach(self._options.home).run(ask)

    def stop(self) -> None:
        """Nothing is held but connections, which others of the process may use."""
