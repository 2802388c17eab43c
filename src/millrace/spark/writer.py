"""Writing a DataFrame into a queue: all of it becomes visible at once, or nothing does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace import sync
from millrace.core import check
from millrace.errors import Invalid, NotFound, Unknown
from millrace.spark.address import Address
from millrace.spark.contract import check_schema
from millrace.spark.given import HOME, Given
from millrace.spark.staging import Staged, stage_rows


class BatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame; it is pickled to the tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        """Judge the write; nothing is staged yet.

        Raises:
            Invalid: a column or an option.
            NotFound: there is no such queue.
        """
        if overwrite:
            raise Invalid("a queue is only added to; write with mode('append')", field="mode")
        check_schema(schema)
        given = Given(options, (*HOME, "producer", "number"), "write")
        self._address = Address.of(given)
        self._producer, self._number = _numbered(given)
        self._prefix = f"spark.{uuid4().hex[:16]}."
        self._address.reach()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        return stage_rows(self._address.reach(), self._prefix, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have staged."""
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
        """Drop what was staged; what a commit has published is no stage any more."""
        self._clean(self._address.reach())

    def _clean(self, queue: sync.Queue) -> None:
        """No other write has stages with these names: attempts that were given up have."""
        for name in queue.stages():
            if name.startswith(self._prefix):
                queue.drop_stage(name)


def _numbered(given: Given) -> tuple[str, int]:
    """The options that make a write one that may be repeated."""
    producer, number = given.text("producer"), given.whole("number", 2**63 - 1)
    if bool(producer) != (number is not None):
        raise Invalid(
            "producer and number go together: give both, and the write may be repeated, or neither",
            field="number" if producer else "producer",
        )
    return (check.name(producer, "producer"), number) if number is not None else ("", 0)


def stages_of(messages: list[WriterCommitMessage | None]) -> list[str]:
    """The stages of all tasks, in the order of the rows."""
    return [name for one in messages if isinstance(one, Staged) for name in one.stages]


def _publish(queue: sync.Queue, stages: list[str]) -> None:
    """Publish stages that nobody else knows: where the answer was lost, they tell what was done.

    Raises:
        NotFound: they have gone before they were published.
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
