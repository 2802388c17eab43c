"""Load: publishes the rows of files or of a table, all at once, and once for each name.

Rule 1: the name of a load is a producer of the queue, and its rows have the producer's first
number. A load that was cut off has published nothing; a finished one is a repeat and adds nothing.
Rule 2: tables are read without Spark's jars: the table format says which of its Parquet files
count.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import PurePath
from typing import cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, StringType

from millrace import limits, sync
from millrace.batch_jobs.job_context import JobContext, run_sql
from millrace.core import validate
from millrace.errors import Invalid
from millrace.sinks.base import Filed
from millrace.sinks.kinds import parse_sink
from millrace.spark.contract import check_schema
from millrace.spark.session import is_local

NUMBER = 1
"""Producer number of a load's messages: a producer with it has finished the load."""


class LoadJob(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a load: sources, and the mapping of rows to messages."""

    name: str
    """Idempotency key: a finished load is not repeated under the same name."""
    sources: tuple[str, ...]
    """Paths of files, or the address of a table: delta:/lake/orders."""
    format: str = ""
    """Format of files; empty: by their suffix."""
    options: Mapping[str, str] = {}
    """Options of Spark's reader."""
    key: str = ""
    """Column for message keys."""
    value: str = ""
    """Column for message bodies; empty: a JSON object of all columns."""
    columns: tuple[str, ...] = ()
    """Columns of that object; empty: all of them."""
    sql: str = ""
    """Query over `input` that returns the columns of messages; excludes the other mappings."""


class LoadResult(msgspec.Struct, frozen=True):
    """Result of a load."""

    rows: int
    is_repeat: bool
    """True if the load was finished before, and nothing was published."""


REPEAT = LoadResult(0, is_repeat=True)


def load(site: JobContext, queue: sync.Queue, job: LoadJob) -> LoadResult:
    """Publish rows to a queue atomically.

    Raises:
        Invalid: a column, an option or a file is invalid; nothing was published.
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
        return LoadResult(counted.get["rows"], is_repeat=False)


def producer_of(job: LoadJob) -> str:
    """Return the name of a load's producer."""
    return validate.name(f"load.{job.name}", "name")


def check_load(job: LoadJob, conf: Mapping[str, str]) -> None:
    """Validate a load as far as possible before Spark starts with these settings.

    Raises:
        Invalid, NotFound: as `load`.
    """
    _check(job)
    if is_local(conf) and "spark.hadoop.fs.defaultFS" not in conf:
        columns = peek_columns(job.sources, job.format, job.options)
        if columns is not None:
            _check_columns(job, columns)


def _check(job: LoadJob) -> None:
    if job.sql and (job.key or job.value or job.columns):
        raise Invalid("sql says what becomes of columns; leave the others out", field="sql")
    if job.value and job.columns:
        raise Invalid("give value, or columns; a body is one or the other", field="columns")


def _check_columns(job: LoadJob, columns: Sequence[str]) -> None:
    meant = [("key", job.key), ("value", job.value), *(("columns", one) for one in job.columns)]
    for field, name in meant:
        if name and name not in columns:
            raise Invalid(
                f"{field} names the column {name!r}; there are {', '.join(columns)}", field=field
            )


def _messages(job: LoadJob, frame: DataFrame) -> DataFrame:
    """Return the rows with the columns of messages."""
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


FORMATS = ("parquet", "csv", "json")

_TABLES = ("delta", "iceberg", "parquet")
"""Schemes of table addresses."""

_ENDINGS = {"parquet": "parquet", "csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json"}


def read_files(
    spark: SparkSession, sources: Sequence[str], format_: str, options: Mapping[str, str]
) -> DataFrame:
    """Return the rows of files, or of one table.

    Raises:
        Invalid: the format is unknown, or several tables are given.
        NotFound: the table does not exist.
    """
    kind = _kind_of(sources, format_)
    if not kind:
        return _read_table(spark, sources[0])
    # CSV files must have a header with the names of columns.
    given = ({"header": "true"} if kind == "csv" else {}) | dict(options)
    return spark.read.format(kind).options(**given).load([_absolute(one) for one in sources])


def peek_columns(
    sources: Sequence[str], format_: str, options: Mapping[str, str]
) -> Sequence[str] | None:
    """Return the columns of local files or of a table without Spark, or None if only Spark can.

    Raises:
        Invalid: as `read_files`, or a file does not exist.
        NotFound: the table does not exist.
    """
    kind = _kind_of(sources, format_)
    if not kind:
        return cast("Filed", parse_sink(sources[0])).files()[1].names
    if any(":/" in source or "{" in source for source in sources):
        # URLs, and patterns that only Spark understands.
        return None
    files: list[str] = []
    for source in sources:
        found = glob(source)
        if not found:
            raise Invalid(f"there is no file {source}", field="sources")
        files += found
    if len(files) > limits.LOAD_FILES_LOOKED or not all(map(os.path.isfile, files)):
        return None
    heads = [_head(kind, file, options) for file in files]
    if None in heads:
        return None
    return list(dict.fromkeys(name for head in heads for name in head or ()))


def _head(kind: str, file: str, options: Mapping[str, str]) -> Sequence[str] | None:
    """Return the columns of a file, or None if its first bytes do not show them."""
    if kind == "parquet" and not options:
        try:
            return pq.read_schema(file).names
        except (OSError, pa.ArrowException):
            return None
    if kind != "csv" or not file.endswith(".csv") or options.keys() - {"sep"}:
        return None
    separator = options.get("sep", ",")
    with open(file, "rb") as opened:
        line, end, _ = opened.read(limits.LOAD_HEAD_BYTES).partition(b"\n")
    if not end or len(separator) != 1 or not line.isascii() or b"\\" in line:
        return None
    [names] = csv.reader([line.decode()], delimiter=separator)
    # Spark renames other headers.
    is_plain = names and all(name and name == name.strip() for name in names)
    return names if is_plain and len({name.lower() for name in names}) == len(names) else None


def _kind_of(sources: Sequence[str], format_: str) -> str:
    """Return the format of files, or an empty text for a table.

    Raises:
        Invalid: the format is unknown, or several tables are given.
    """
    if not sources:
        raise Invalid("give files or a table", field="sources")
    if any(_is_table(source) for source in sources):
        if len(sources) > 1:
            raise Invalid("a table is loaded alone; give each load a name", field="sources")
        return ""
    kind = format_ or _format_of(sources)
    if kind not in FORMATS:
        raise Invalid(f"format is {kind!r}; it is one of {', '.join(FORMATS)}", field="format")
    return kind


def _absolute(source: str) -> str:
    """Return the absolute path of a local file: Spark may run in another folder."""
    return os.path.abspath(source) if glob(source) else source


def _is_table(source: str) -> bool:
    kind, colon, path = source.partition(":")
    return bool(colon) and kind in _TABLES and not path.startswith("//")


def _read_table(spark: SparkSession, address: str) -> DataFrame:
    files, columns = cast("Filed", parse_sink(address)).files()
    schema = from_arrow_schema(columns)
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*files)


def _format_of(sources: Sequence[str]) -> str:
    found: set[str] = set()
    for source in sources:
        suffixes = [suffix.lstrip(".") for suffix in PurePath(source).suffixes]
        found.add(next((_ENDINGS[one] for one in reversed(suffixes) if one in _ENDINGS), ""))
    if len(found) != 1 or not all(found):
        raise Invalid(
            f"the suffix of {', '.join(sources)} is not that of a known format; give a format: "
            f"{', '.join(FORMATS)}",
            field="format",
        )
    return found.pop()
