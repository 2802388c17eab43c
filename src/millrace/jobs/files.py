"""Files and tables as Spark reads them, without jars: a table tells which of its files count."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import PurePath
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

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
    if not sources:
        raise Invalid("name files, or a table", field="sources")
    if any(_is_table(source) for source in sources):
        if len(sources) > 1:
            raise Invalid("a table is loaded alone; give each load a name", field="sources")
        return _read_table(spark, sources[0])
    kind = format_ or _format_of(sources)
    if kind not in FORMATS:
        raise Invalid(f"format is {kind!r}; it is one of {', '.join(FORMATS)}", field="format")
    # Without names of columns a CSV says nothing.
    given = ({"header": "true"} if kind == "csv" else {}) | dict(options)
    return spark.read.format(kind).options(**given).load([_absolute(one) for one in sources])


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
