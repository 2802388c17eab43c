"""Files or a table into a queue, all rows at once, and once for each name.

Rule 1: the name of a load is a producer of the queue, and what is loaded its first number. A load
that was cut off has published nothing; one that was done is a repeat, and adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StringType

from millrace import sync
from millrace.batch_jobs.files import look_at, read_files
from millrace.batch_jobs.site import Site
from millrace.batch_jobs.transform import run_sql
from millrace.core import check
from millrace.errors import Invalid
from millrace.spark.contract import check_schema
from millrace.spark.session import is_local

NUMBER = 1
"""Of what a load publishes: a producer that is so far has loaded it."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is loaded, and how rows become messages."""

    name: str
    """Loads of the same name are one: what was loaded is not loaded again."""
    sources: tuple[str, ...]
    """Paths of files, or the address of a table: delta:/lake/orders."""
    format: str = ""
    """Of files; empty: what their names end in."""
    options: Mapping[str, str] = {}
    """Of Spark's reader."""
    key: str = ""
    """The column whose values become keys."""
    value: str = ""
    """The column that becomes the body; empty: a JSON object of all columns."""
    columns: tuple[str, ...] = ()
    """The columns in that object; empty: all of them."""
    sql: str = ""
    """Instead of these: a query over `input` whose columns are those of a message."""


class Loaded(msgspec.Struct, frozen=True):
    """What became of a load."""

    rows: int
    is_repeat: bool
    """It was done before, and nothing was added."""


REPEAT = Loaded(0, is_repeat=True)


def load(site: Site, queue: sync.Queue, job: Load) -> Loaded:
    """Load rows into a queue; nobody sees any of them before all are there.

    Raises:
        Invalid: a column, an option, or a file; nothing was added.
        Retry: the queue did not answer; run it again, under the same name.
    """
    producer = producer_of(job)
    if queue.producer(producer) >= NUMBER:
        return REPEAT
    _check(job)
    with site.asking("to load", "sources"):
        frame = _messages(job, read_files(site.spark, job.sources, job.format, job.options))
        check_schema(frame.schema)
        counted = Observation()
        writer = frame.observe(counted, F.count(F.lit(1)).alias("rows")).write
        writer.format("millrace").mode("append").options(
            **site.options(queue), producer=producer, number=str(NUMBER)
        ).save()
        return Loaded(counted.get["rows"], is_repeat=False)


def producer_of(job: Load) -> str:
    """The producer that a load is."""
    return check.name(f"load.{job.name}", "name")


def check_load(job: Load, conf: Mapping[str, str]) -> None:
    """See what can be seen of a load before a Spark with these settings starts.

    Raises:
        Invalid, NotFound: as `load`.
    """
    _check(job)
    if is_local(conf) and "spark.hadoop.fs.defaultFS" not in conf:
        columns = look_at(job.sources, job.format, job.options)
        if columns is not None:
            _check_columns(job, columns)


def _check(job: Load) -> None:
    if job.sql and (job.key or job.value or job.columns):
        raise Invalid("sql says what becomes of columns; leave the others out", field="sql")
    if job.value and job.columns:
        raise Invalid("give value, or columns; a body is one or the other", field="columns")


def _check_columns(job: Load, columns: Sequence[str]) -> None:
    meant = [("key", job.key), ("value", job.value), *(("columns", one) for one in job.columns)]
    for field, name in meant:
        if name and name not in columns:
            raise Invalid(
                f"{field} names the column {name!r}; there are {', '.join(columns)}", field=field
            )


def _messages(job: Load, frame: DataFrame) -> DataFrame:
    """The rows as a queue takes them."""
    if job.sql:
        return run_sql(frame, job.sql)
    _check_columns(job, frame.columns)
    if job.value:
        value = _text(frame, job.value)
    else:
        value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in job.columns or frame.columns)))
    made = [value.alias("value")]
    if job.key:
        made.append(_text(frame, job.key).alias("key"))
    return frame.select(*made)


def _text(frame: DataFrame, name: str) -> Column:
    column = F.col(f"`{name}`")
    is_text = isinstance(frame.schema[name].dataType, StringType | BinaryType)
    return column if is_text else column.cast("string")
