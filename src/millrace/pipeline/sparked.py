"""Views that Spark makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millrace.errors import Invalid, MillraceError
from millrace.pipeline.declaration import SOURCE, Pipeline
from millrace.pipeline.feed import Stretch
from millrace.pipeline.frames import Frames, arrow_schema, expectation_of
from millrace.pipeline.outlet import Outlet
from millrace.pipeline.rows import COLUMNS
from millrace.sinks.base import Held
from millrace.sinks.boundary import Span


@contextmanager
def session(pipeline: Pipeline) -> Iterator[SparkSession]:
    """A session with the settings of the declaration, until the context ends."""
    builder = SparkSession.builder.appName(f"millrace {pipeline.name}")
    for name, value in pipeline.spark.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


class Sparked:
    """A pipeline with steps."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self._frames = Frames(spark, pipeline)
        empty = self._frame(COLUMNS.empty_table())
        with _said():
            views = self._frames.make({SOURCE: empty})
            self._schemas = {name: arrow_schema(frame) for name, frame in views.items()}

    def _frame(self, table: pa.Table) -> DataFrame:
        return self._spark.createDataFrame(table)

    def schema(self, view: str) -> pa.Schema:
        """See `Maker.schema`."""
        return self._schemas[view]

    def here(self, table: pa.Table, views: Sequence[str]) -> Mapping[str, pa.Table]:
        """See `Maker.here`."""
        with _said():
            frames = self._frames.make({SOURCE: self._frame(table)})
            return {
                view: table if view == SOURCE else frames[view].toArrow().cast(self._schemas[view])
                for view in dict.fromkeys(views)
            }

    def stage(
        self, stretch: Stretch, span: Span, view: str, outlet: Outlet, held: Held
    ) -> Sequence[bytes]:
        """See `Maker.stage`."""
        raise NotImplementedError


@contextmanager
def _said() -> Iterator[None]:
    """What Spark says, in our words where they are known."""
    try:
        yield
    except PySparkException as error:
        broken: MillraceError | None = expectation_of(error)
        if broken is None:
            said = str(error).strip().partition("\n\nJVM stacktrace")[0]
            broken = Invalid(f"Spark refuses a step: {said}", field="steps")
        raise broken from error
