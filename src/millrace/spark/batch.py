"""`spark.read`: reads a queue as of one moment, or as of a snapshot that was pinned by the
caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from millrace.client.cursor import Snapshot
from millrace.client.millrace import Millrace
from millrace.client.snapshot_token import read_snapshot_token
from millrace.spark.home import reach
from millrace.spark.options import Options
from millrace.spark.read import ReadPartition, split
from millrace.spark.rows import PartitionReader
from millrace.spark.start import Start
from millrace.spark.subject import Subject, look

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class BatchReader(DataSourceReader):
    """Reads a queue once. The rows stay pinned for a while: Spark does not report the end of a
    query, and a retried task must get the same rows.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._narrow = Narrow()
        self._rows = PartitionReader(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Pin the queue, and split its rows into tasks."""
        return list(reach(self._options.home).run(self._plan))

    async def _plan(self, m: Millrace) -> list[ReadPartition]:
        options = self._options
        subject = await look(m, options)
        after, upto = await self._after(subject), await self._upto(subject)
        # Nothing may be refused from here on, since the pin would not be removed.
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
        """Return the start of the read in each shard, from the options and Spark's filters."""
        after = await subject.places(self._options.starting, "startingOffsets")
        if self._narrow.time_ms is None:
            return after
        times = await subject.places(Start(time_ms=self._narrow.time_ms), "timestamp")
        return [max(pair) for pair in zip(after, times, strict=True)]

    async def _upto(self, subject: Subject) -> Sequence[int] | None:
        """Return the end of the read from the options, or None for the end of the snapshot."""
        ending = self._options.ending
        if ending.ticket or ending.is_latest:
            return None
        return await subject.places(ending, "endingOffsets", is_end=True)

    def _narrowed(
        self, after: Sequence[int], upto: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Return start and end of the read in each shard, narrowed by Spark's filters on seqs and
        shards.
        """
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
            return read_snapshot_token(subject.queue, ending.ticket)
        pinned = subject.queue.snapshot(seconds=self._options.pin_seconds)
        return await pinned.__aenter__()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if isinstance(partition, ReadPartition):
            yield from self._rows.of(partition)


class NarrowReader(BatchReader):
    """A batch reader with filter pushdown. It is a separate class, since Spark refuses a reader
    with `pushFilters` if the feature is switched off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Narrow the read by the filters; Spark applies all of them again."""
        keys = self._options.keys
        self._narrow = narrowed(filters, Narrow(keys=keys))
        if self._narrow.keys != keys:
            self._options = msgspec.structs.replace(self._options, keys=self._narrow.keys)
            self._rows = PartitionReader(self._options, self._schema)
        return filters


# --- Filter pushdown of batch reads: skips rows that Spark's filters exclude ---------------------
#
# Rule 1: Spark applies all filters again. The read may return too many rows, never too few: an
# unsupported filter narrows nothing.

_Compared = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
_LOWER = (EqualTo, GreaterThan, GreaterThanOrEqual)
_UPPER = (EqualTo, LessThan, LessThanOrEqual)


class Narrow(msgspec.Struct, frozen=True):
    """The range of a queue that a read is narrowed to."""

    shards: tuple[int, ...] | None = None
    after: int = 0
    upto: int | None = None
    time_ms: int | None = None
    """The earliest time of rows in milliseconds."""
    keys: tuple[bytes, ...] | None = None

    def with_seq(self, low: int | None, high: int | None) -> Narrow:
        """Narrow the read to seqs from `low` to `high`."""
        after = self.after if low is None else max(self.after, low - 1)
        upto = self.upto
        if high is not None:
            upto = high if upto is None else min(upto, high)
        return msgspec.structs.replace(self, after=after, upto=upto)

    def with_shards(self, shards: Iterable[int]) -> Narrow:
        """Narrow the read to these shards."""
        found = tuple(one for one in shards if self.shards is None or one in self.shards)
        return msgspec.structs.replace(self, shards=found)

    def with_keys(self, keys: Iterable[bytes]) -> Narrow:
        """Narrow the read to these keys."""
        found = tuple(one for one in keys if self.keys is None or one in self.keys)
        return msgspec.structs.replace(self, keys=found)


def narrowed(filters: Iterable[Filter], narrow: Narrow) -> Narrow:
    """Narrow the read by the filters, all of which hold for every wanted row."""
    for one in filters:
        if isinstance(one, In):
            narrow = _among(narrow, one.attribute, list(one.value))
        elif isinstance(one, EqualTo) and one.attribute != ("seq",):
            narrow = _among(narrow, one.attribute, [one.value])
        if isinstance(one, _Compared):
            narrow = _compared(narrow, one)
    return narrow


def _among(narrow: Narrow, attribute: tuple[str, ...], values: list[object]) -> Narrow:
    numbers = [value for value in values if type(value) is int]
    keys = [bytes(value) for value in values if isinstance(value, bytes | bytearray)]
    if attribute == ("shard",) and len(numbers) == len(values):
        return narrow.with_shards(numbers)
    if attribute == ("key",) and len(keys) == len(values):
        return narrow.with_keys(keys)
    if attribute == ("seq",) and numbers and len(numbers) == len(values):
        return narrow.with_seq(min(numbers), max(numbers))
    return narrow


def _compared(narrow: Narrow, one: _Compared) -> Narrow:
    value = one.value
    if one.attribute == ("seq",) and type(value) is int:
        low = value + isinstance(one, GreaterThan) if isinstance(one, _LOWER) else None
        high = value - isinstance(one, LessThan) if isinstance(one, _UPPER) else None
        return narrow.with_seq(low, high)
    is_time = one.attribute == ("timestamp",) and isinstance(value, datetime)
    if is_time and isinstance(one, _LOWER) and value.tzinfo is not None:
        time_ms = int(value.timestamp() * 1000)
        if narrow.time_ms is None or time_ms > narrow.time_ms:
            return msgspec.structs.replace(narrow, time_ms=time_ms)
    return narrow
