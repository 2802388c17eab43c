"""Writes a DataFrame into a queue: all rows become visible at once, or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace import sync
from millrace.core import validate
from millrace.errors import Invalid, NotFound, Unknown
from millrace.spark.contract import check_schema
from millrace.spark.options import Address
from millrace.spark.raw_options import HOME, RawOptions
from millrace.spark.staging import StagedRows, stage_rows


class BatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame; it is pickled to the tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        """Validate the write's columns and options; nothing is staged yet.

        Raises:
            Invalid: a column or an option is wrong.
            NotFound: the queue does not exist.
        """
        if overwrite:
            raise Invalid("a queue is only added to; write with mode('append')", field="mode")
        check_schema(schema)
        given = RawOptions(options, (*HOME, "producer", "number"), "write")
        self._address = Address.of(given)
        self._producer, self._number = _numbered(given)
        self._prefix = f"spark.{uuid4().hex[:16]}."
        self._address.reach()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:  # type: ignore[override]
        return stage_rows(self._address.reach(), self._prefix, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the stages of all tasks."""
        stages = stages_of(messages)
        queue = self._address.reach()
        if self._producer:
            queue.publish_staged(
                stages, producer=self._producer, number=self._number, mode="rising"
            )
        elif stages:
            _publish(queue, stages)
        self._clean(queue)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the stages that are left; published ones no longer exist."""
        self._clean(self._address.reach())

    def _clean(self, queue: sync.Queue) -> None:
        """Drop stages with this write's prefix, which only its abandoned attempts have."""
        for name in queue.stages():
            if name.startswith(self._prefix):
                queue.drop_stage(name)


def _numbered(given: RawOptions) -> tuple[str, int]:
    """Return the options that make a write idempotent."""
    producer, number = given.text("producer"), given.whole("number", 2**63 - 1)
    if bool(producer) != (number is not None):
        raise Invalid(
            "producer and number go together: give both, and the write may be repeated, or neither",
            field="number" if producer else "producer",
        )
    return (validate.name(producer, "producer"), number) if number is not None else ("", 0)


def stages_of(messages: list[WriterCommitMessage | None]) -> list[str]:
    """Return the stages of all tasks, in the order of the rows."""
    return [name for one in messages if isinstance(one, StagedRows) for name in one.stages]


def _publish(queue: sync.Queue, stages: list[str]) -> None:
    """Publish stages that only this write knows: after a lost response, their absence shows that
    they were published.

    Raises:
        NotFound: they disappeared before they were published.
    """
    is_asked_again = False
    while True:
        try:
            queue.publish_staged(stages)
        except (Unknown, NotFound) as error:
            left = queue.stages()
            if all(name in left for name in stages):
                is_asked_again = True
                continue
            is_answered = isinstance(error, NotFound) and not is_asked_again
            if is_answered or any(name in left for name in stages):
                raise NotFound(
                    f"{error.message}: what this write has staged is gone, and nothing was "
                    "published; write again",
                    field="stages",
                ) from error
        return
