"""The steps of a pipeline as Spark DataFrames.

Rule 1: each step is a temporary view, which later steps read by its name.

Rule 2: a row that breaks a condition is not in the view; the step's `on_fail` decides where it
goes. Rows that delete have no body to evaluate, and satisfy every condition.

Rule 3: a dead letter is the message from which its row was made (`lineage.py`), regardless of the
transformations of the step.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from millrace.client import dead_letter_headers
from millrace.client.reserved import PREFIXES
from millrace.errors import Invalid, Refused
from millrace.pipeline.dead import bad_rows, keyless_rows, null_key_text, told_of
from millrace.pipeline.declaration import SOURCE, Pipeline, Step
from millrace.pipeline.lineage import HIDDEN, Lineage
from millrace.sinks.base import DELETE, OP
from millrace.spark.columns import TYPES
from millrace.spark.session import REMOTE

Function = Callable[..., DataFrame]

_HEADERS = TYPES["headers"]

_MARK = "millrace expectation: "
"""Prefix of the error text that Spark raises for a row that breaks a condition."""


class Frames:
    """The views of a pipeline in one Spark session."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, keys: Mapping[str, Sequence[str]]
    ) -> None:
        """`keys` has the key columns of each sink whose rows with a null key become dead
        letters.
        """
        self._spark = spark
        self._pipeline = pipeline
        self._keys = keys
        self._functions = {
            step.name: _function(pipeline, step) for step in pipeline.steps if step.python
        }

    def make(self, views: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """Make all views from those of the sources; errors of Spark get a note that names the step.

        Raises:
            Invalid: dead letters are declared, and the messages of their rows cannot be determined.
        """
        origin = Lineage(views[SOURCE], is_far=REMOTE in self._pipeline.spark)
        found = {**views, SOURCE: origin.view}
        for name, frame in found.items():
            frame.createOrReplaceTempView(name)
        for step in self._pipeline.steps:
            try:
                frame = self._step(step, found)
                if step.expect:
                    frame = self._expect(step, frame, found, origin)
                frame.createOrReplaceTempView(step.name)
            except PySparkException as error:
                error.add_note(f"step {step.name!r}")
                raise
            found[step.name] = frame
        for sink in self._pipeline.sinks:
            if sink.name in self._keys:
                frame = origin.traced(found[sink.rows], f"sink {sink.name!r}")
                nulls = {name: F.col(_quoted(name)).isNull() for name in self._keys[sink.name]}
                told = told_of(self._pipeline, view=sink.rows, sink=sink.name)
                found[keyless_rows(sink.name)] = _letters(
                    frame.where(reduce(or_, nulls.values())),
                    F.concat(F.lit(null_key_text(())), _names_of(nulls)),
                    told,
                )
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

    def _expect(
        self, step: Step, frame: DataFrame, views: dict[str, DataFrame], origin: Lineage
    ) -> DataFrame:
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
            traced = origin.traced(frame, f"step {step.name!r}")
            told = told_of(self._pipeline, view=step.name)
            views[bad_rows(step.name)] = _letters(traced.where(~whole), _broken(tests), told)
        return frame.where(whole)


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """Return the columns of a view as sinks see them."""
    return to_arrow_schema(frame.schema, timezone="UTC")


def expectation_of(error: Exception) -> Refused | None:
    """Return a `Refused` that names the broken condition, if that is why Spark failed."""
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
    """Return a column with the names of the conditions that a row breaks."""
    return _names_of({name: ~kept for name, kept in tests.items()})


def _names_of(facts: Mapping[str, Column]) -> Column:
    """Return a column with the names of the facts that are true of a row."""
    return F.concat_ws(", ", *(F.when(fact, F.lit(name)) for name, fact in facts.items()))


def _letters(bad: DataFrame, wrong: Column, told: Mapping[str, str]) -> DataFrame:
    """Make dead letters of traced rows: their original messages, with headers that give the reason
    and the origin.
    """
    key, value, headers, shard, seq = (F.col(name) for name in HIDDEN)
    own = {name: F.lit(text) for name, text in told.items()}
    own |= {
        dead_letter_headers.BROKEN: wrong,
        dead_letter_headers.SHARD: shard.cast("string"),
        dead_letter_headers.SEQ: seq.cast("string"),
        # A dead letter always has a body; a header marks the one of a row without a body.
        dead_letter_headers.OP: F.when(value.isNull(), F.lit(dead_letter_headers.DELETE.decode())),
    }
    pairs = F.array(
        *(
            F.when(text.isNotNull(), _pair(name, text))
            if name == dead_letter_headers.OP
            else _pair(name, text)
            for name, text in own.items()
        )
    )
    kept = F.filter(F.coalesce(headers, F.array().cast(_HEADERS)), _is_kept)
    return bad.select(
        key.alias("key"),
        F.coalesce(value, F.lit(b"")).alias("value"),
        F.concat(kept, F.array_compact(pairs).cast(_HEADERS)).alias("headers"),
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _pair(name: str, text: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value"))


def _is_kept(pair: Column) -> Column:
    """Return True if the dead letter keeps this header of the message."""
    name = pair["key"]
    gone = reduce(or_, (name.startswith(prefix) for prefix in PREFIXES))
    return ~(gone | name.isin(*dead_letter_headers.OF_PIPELINES))


def _raised(said: Column) -> Column:
    return F.raise_error(said).cast("boolean")


def _at(frame: DataFrame) -> str:
    return ", in the row of seq " if "seq" in frame.columns else ""


def _place(frame: DataFrame) -> Column:
    return F.col("seq").cast("string") if "seq" in frame.columns else F.lit("")
