"""The steps of a pipeline as Spark's DataFrames.

Rule 1: each step is a temporary view, which later steps read by its name.
Rule 2: a row that breaks a condition is not in the view; where it goes is the step's to say. Rows
that delete have no body to judge, and keep every condition.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from millrace.errors import Invalid, Refused
from millrace.pipeline.dead import (
    HEADER_BROKEN,
    HEADER_PIPELINE,
    HEADER_QUEUE,
    HEADER_SEQ,
    HEADER_SHARD,
    HEADER_STEP,
    bad_rows,
)
from millrace.pipeline.declaration import SOURCE, Pipeline, Step
from millrace.sinks.base import DELETE, OP

Function = Callable[..., DataFrame]

_MARK = "millrace expectation: "
"""Begins what Spark is told to say of a row that breaks a condition."""


class Frames:
    """What a pipeline makes of rows, on one session."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._functions = {
            step.name: _function(pipeline, step) for step in pipeline.steps if step.python
        }

    def make(self, views: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """All views, from those of the sources; an error of Spark's has a note of the step."""
        found = dict(views)
        for name, frame in views.items():
            frame.createOrReplaceTempView(name)
        for step in self._pipeline.steps:
            try:
                frame = self._step(step, found)
                if step.expect:
                    frame = self._expect(step, frame, found)
                frame.createOrReplaceTempView(step.name)
            except PySparkException as error:
                error.add_note(f"step {step.name!r}")
                raise
            found[step.name] = frame
        return found

    def _step(self, step: Step, views: Mapping[str, DataFrame]) -> DataFrame:
        if step.sql:
            return self._spark.sql(step.sql)
        function = self._functions[step.name]
        taken = {name: views[name] for name in inspect.signature(function).parameters}
        made = function(**taken)
        if not hasattr(made, "createOrReplaceTempView"):
            raise Invalid(
                f"step {step.name!r}: {step.python} returned {type(made).__name__}, not a "
                "DataFrame",
                field="python",
            )
        return made

    def _expect(self, step: Step, frame: DataFrame, views: dict[str, DataFrame]) -> DataFrame:
        tests = {name: _kept(condition, frame) for name, condition in step.expect.items()}
        whole = F.lit(True)
        for kept in tests.values():
            whole = whole & kept
        if step.on_fail == "fail":
            said = F.concat(
                F.lit(f"{_MARK}step {step.name!r}: "),
                _broken(tests),
                F.lit(_at(frame)),
                _place(frame),
            )
            return frame.where(F.when(whole, F.lit(True)).otherwise(_raised(said)))
        if step.on_fail == "dead_letter":
            views[bad_rows(step.name)] = self._letters(step, frame.where(~whole), tests)
        return frame.where(whole)

    def _letters(self, step: Step, bad: DataFrame, tests: Mapping[str, Column]) -> DataFrame:
        """Dead letters: the body where the row still has it, else the row as JSON."""
        source = self._pipeline.source
        value = (
            F.col("value").cast("binary")
            if "value" in bad.columns
            else F.to_json(F.struct("*")).cast("binary")
        )
        key = F.col("key").cast("binary") if "key" in bad.columns else F.lit(None).cast("binary")
        told = {
            HEADER_PIPELINE: F.lit(self._pipeline.name),
            HEADER_STEP: F.lit(step.name),
            HEADER_BROKEN: _broken(tests),
            HEADER_QUEUE: F.lit(f"{source.space}/{source.queue}"),
        }
        for name, column in ((HEADER_SHARD, "shard"), (HEADER_SEQ, "seq")):
            if column in bad.columns:
                told[name] = F.col(column).cast("string")
        headers = F.array(
            *(
                F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value"))
                for name, text in told.items()
            )
        )
        return bad.select(key.alias("key"), value.alias("value"), headers.alias("headers"))


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """The columns of a view as sinks see them."""
    return to_arrow_schema(frame.schema, timezone="UTC")


def expectation_of(error: Exception) -> Refused | None:
    """What broke a condition, where that is why Spark has failed."""
    text = str(error)
    at = text.find(_MARK)
    if at < 0:
        return None
    said = text[at + len(_MARK) :].partition("\n")[0].partition(" SQLSTATE")[0]
    return Refused(
        f"a row breaks what is expected: {said.strip()}. Nothing was written; mend the row or the "
        'step, or give on_fail = "drop" or "dead_letter"',
        field="expect",
    )


def _function(pipeline: Pipeline, step: Step) -> Function:
    file, _, name = step.python.rpartition(":")
    path = pipeline.at(file)
    spec = importlib.util.spec_from_file_location(Path(file).stem, path)
    if spec is None or spec.loader is None:
        raise Invalid(f"step {step.name!r}: {path} is no Python", field="python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Function = getattr(module, name)
    earlier = [SOURCE, *pipeline.sources]
    earlier += [one.name for one in pipeline.steps[: pipeline.steps.index(step)]]
    for wanted in inspect.signature(function).parameters:
        if wanted not in earlier:
            raise Invalid(
                f"step {step.name!r}: {name} takes {wanted!r}; the views before it are "
                f"{', '.join(earlier)}",
                field="python",
            )
    return function


def _kept(condition: str, frame: DataFrame) -> Column:
    kept = F.coalesce(F.expr(condition).cast("boolean"), F.lit(False))
    return kept | (F.col(OP) == DELETE) if OP in frame.columns else kept


def _broken(tests: Mapping[str, Column]) -> Column:
    """The names of the conditions that a row breaks."""
    return F.concat_ws(", ", *(F.when(~kept, F.lit(name)) for name, kept in tests.items()))


def _raised(said: Column) -> Column:
    return F.raise_error(said).cast("boolean")


def _at(frame: DataFrame) -> str:
    return ", in the row of seq " if "seq" in frame.columns else ""


def _place(frame: DataFrame) -> Column:
    return F.col("seq").cast("string") if "seq" in frame.columns else F.lit("")
