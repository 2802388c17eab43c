"""Files and tables as Spark reads them, without jars: a table tells which of its files count."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import PurePath
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from millrace import limits
from millrace.errors import Invalid
from millrace.sinks.base import Filed
from millrace.sinks.kinds import parse_sink

FORMATS = ("parquet", "csv", "json")

_TABLES = ("delta", "iceberg", "parquet")
"""Addresses of tables begin so."""

_ENDINGS = {"parquet": "parquet", "csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json"}


def read_files(
    spark: SparkSession, sources: Sequence[str], format_: str, options: Mapping[str, str]
) -> DataFrame:
    """The rows of files, or of one table.

    Raises:
        Invalid: it is not known what they are, or several tables are named.
        NotFound: there is no such table.
    """
    kind = _kind_of(sources, format_)
    if not kind:
        return _read_table(spark, sources[0])
    # Without names of columns a CSV says nothing.
    given = ({"header": "true"} if kind == "csv" else {}) | dict(options)
    return spark.read.format(kind).options(**given).load([_absolute(one) for one in sources])


def look_at(
    sources: Sequence[str], format_: str, options: Mapping[str, str]
) -> Sequence[str] | None:
    """The columns of files or of a table of this machine, without Spark; None: Spark alone knows.

    Raises:
        Invalid: as `read_files`, or a file is not there.
        NotFound: there is no such table.
    """
    kind = _kind_of(sources, format_)
    if not kind:
        return cast("Filed", parse_sink(sources[0])).files()[1].names
    if any(":/" in source or "{" in source for source in sources):
        # Addresses, and patterns that are Spark's own.
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
    """The columns of a file; None: they cannot be told by its first bytes."""
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
    # Of others Spark makes names of its own.
    is_plain = names and all(name and name == name.strip() for name in names)
    return names if is_plain and len({name.lower() for name in names}) == len(names) else None


def _kind_of(sources: Sequence[str], format_: str) -> str:
    """What files are; empty: they are a table.

    Raises:
        Invalid: it is not known, or several tables are named.
    """
    if not sources:
        raise Invalid("name files, or a table", field="sources")
    if any(_is_table(source) for source in sources):
        if len(sources) > 1:
            raise Invalid("a table is loaded alone; give each load a name", field="sources")
        return ""
    kind = format_ or _format_of(sources)
    if kind not in FORMATS:
        raise Invalid(f"format is {kind!r}; it is one of {', '.join(FORMATS)}", field="format")
    return kind


def _absolute(source: str) -> str:
    """Files here are named whole: Spark may work in another folder."""
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
            f"what {', '.join(sources)} is cannot be told by its name; give a format: "
            f"{', '.join(FORMATS)}",
            field="format",
        )
    return found.pop()
