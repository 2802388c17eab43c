"""User-defined transformations of rows: a SQL query or a Python function."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pyspark.sql import DataFrame

from millrace.errors import Invalid

INPUT = "input"
"""Name of the view with the rows."""


def run_sql(frame: DataFrame, sql: str) -> DataFrame:
    """Return the result of a query over `input`."""
    frame.createOrReplaceTempView(INPUT)
    return frame.sparkSession.sql(sql)


def find_function(place: str) -> tuple[Path, str]:
    """Split `file.py:name` into an existing file and the name of a function.

    Raises:
        Invalid: the file does not exist, or the text has another form.
    """
    file, _, name = place.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise Invalid(f"python is {place!r}, not a function such as mend.py:mend", field="python")
    return path, name


def run_python(frame: DataFrame, place: str) -> DataFrame:
    """Apply the function `file.py:name` to the rows.

    Raises:
        Invalid: the function does not exist, or does not return a DataFrame.
    """
    path, name = find_function(place)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise Invalid(f"{path} is not a Python file", field="python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = vars(module).get(name)
    if not callable(function):
        raise Invalid(f"{path} has no function {name!r}", field="python")
    made = function(frame)
    if not isinstance(made, DataFrame):
        raise Invalid(f"{place} returned {type(made).__name__}, not a DataFrame", field="python")
    return made
