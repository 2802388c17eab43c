"""Writes a stream into a queue: every micro-batch becomes visible as a whole, exactly once.

Rule 1: a batch is published under the range of the sources from which it was made (`origin.py`).
The queue itself detects duplicates: a repeat changes nothing, even if the checkpoint was lost, and
an overlap is refused.

Rule 2: nothing is dropped that a commit may still publish. Abandoned stages are dropped when a
later batch of the same flow has been published, or expire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace import sync
from millrace.core import validate
from millrace.errors import Invalid, NotFound, OutOfOrder, Refused, TooLarge
from millrace.spark.address import Address
from millrace.spark.contract import check_schema
from millrace.spark.origin import NAME_CHARS_MAX, Checkpoint, Origin, flow_of
from millrace.spark.raw_options import HOME, RawOptions
from millrace.spark.staging import StagedRows, stage_rows
from millrace.spark.writer import stages_of

OF_QUERIES = (
    "checkpointLocation",
    "queryName",
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
)
"""Options of every query, which Spark passes to the sink, too."""


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a query; Spark makes one for every batch, and pickles it to the tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        """Validate the query's columns and options; nothing is staged yet.

        Raises:
            Invalid: a column or an option is wrong.
        """
        if overwrite:
            raise Invalid(
                "outputMode complete would replace what is there, and a queue is only added to; "
                "take update, and a keyed queue, which keeps the newest of each key",
                field="outputMode",
            )
        check_schema(schema)
        given = RawOptions(options, (*HOME, "producer", "number", *OF_QUERIES), "write")
        self._address = Address.of(given)
        self._producer = given.text("producer")
        if self._producer:
            validate.name(self._producer, "producer")
            if len(self._producer) > NAME_CHARS_MAX:
                raise TooLarge(
                    f"producer has {len(self._producer)} characters, up to {NAME_CHARS_MAX} are "
                    "allowed: which cursor it reads by is added to it",
                    field="producer",
                    limit=NAME_CHARS_MAX,
                )
        if given.has("number"):
            raise Invalid("number is told by the sources of a stream; drop it", field="number")
        location = given.text("checkpointLocation")
        if not location:
            raise Invalid(
                "checkpointLocation is missing: name it as an option of writeStream, not of the "
                "session, for what a batch was made from stands there",
                field="checkpointLocation",
            )
        self._checkpoint = Checkpoint(location)
        # Other queries may write under the same producer, by cursors of their own.
        self._prefix = flow_of([self._producer, location])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:  # type: ignore[override]
        """Stage the rows of one task."""
        return stage_rows(self._address.reach(), self._prefix, iterator)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        """Publish the stages of the tasks, unless that was done already."""
        queue, stages = self._address.reach(), stages_of(messages)
        older = [name for name in self._staged(queue) if name not in stages]
        origin = self._checkpoint.origin(batchId, self._producer)
        try:
            _publish(queue, stages, origin)
        except OutOfOrder as error:
            raise Refused(
                f"{error.message}. Producer {origin.producer!r} is used by another query, or its "
                "cursor was moved: have each query read by a cursor of its own, or name another "
                "producer to write this range all the same",
                field="producer",
            ) from error
        except NotFound as error:
            raise NotFound(
                f"{error.message}: what this batch has staged is gone; start the query again, "
                "which does the batch again",
                field="stages",
            ) from error
        left = self._staged(queue)
        is_new = bool(stages) and left.isdisjoint(stages)
        # Stages from before this batch was published belong to it, or overlap it: a later batch
        # stages its rows later. After a repeat, only its own stages can be judged.
        for name in older if is_new else stages:
            if name in left:
                queue.drop_stage(name)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        """Drop nothing, since a failed commit may still be in flight."""

    def _staged(self, queue: sync.Queue) -> set[str]:
        return {name for name in queue.stages() if name.startswith(self._prefix)}


def _publish(queue: sync.Queue, stages: list[str], origin: Origin) -> None:
    if origin.spans:
        queue.publish_staged(stages, producer=origin.producer, spans=origin.spans)
    else:
        queue.publish_staged(stages, producer=origin.producer, number=origin.number, mode="rising")
