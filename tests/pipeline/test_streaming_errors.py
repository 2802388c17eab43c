"""What Spark tells of our errors."""

from __future__ import annotations

import pytest

from millrace.errors import Invalid, Retry
from millrace.pipeline.source import Lost
from millrace.pipeline.sparked import said, told_by

pyspark_errors = pytest.importorskip("pyspark.errors")

TOLD = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan: Traceback (most recent call last):
  File "/src/millrace/spark/start.py", line 116, in read_places
    raise Invalid(
millrace.errors.{}: startingOffsets is 99 in shard 0
 SQLSTATE: 38000

JVM stacktrace: org.apache.spark"""

LOST = """An error occurred while calling o138.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:\x20
\tat org.apache.spark.util
Caused by: org.apache.spark.SparkException: Job aborted: Task 1 failed 4 times

Driver stacktrace:
\tat org.apache.spark.scheduler
Caused by: java.io.EOFException
\tat java.base/java.io
"""


def test_the_words_of_an_error_are_told_without_its_traceback() -> None:
    assert told_by(TOLD.format("Invalid")) == ("Invalid", "startingOffsets is 99 in shard 0")
    assert told_by("no column x; line 4 pos 9;\n'Project [x]\n+- 'Relation") == (
        "",
        "no column x; line 4 pos 9",
    )
    assert told_by("no column x\n\nJVM stacktrace: a") == ("", "no column x")
    assert told_by(LOST) == ("", "Job aborted: Task 1 failed 4 times")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("Invalid", Invalid), ("Closed", Retry), ("Full", Retry), ("SnapshotExpired", Lost)],
)
def test_an_error_is_what_it_was(name: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"startingOffsets is 99 in shard 0$"), said("this"):
        raise pyspark_errors.PySparkException(TOLD.format(name))


def test_the_step_that_spark_refuses_is_named() -> None:
    error = pyspark_errors.PySparkException("no such column")
    error.add_note("step 'lines'")
    with pytest.raises(Invalid, match="Spark refuses step 'lines': no such column"), said():
        raise error
