"""What a user makes of rows: a query, or a function of their own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pyspark.sql import DataFrame

from millrace.errors import Invalid

INPUT = "input"
"""The name of the rows in a query."""


def run_sql(frame: DataFrame, sql: str) -> DataFrame:
    """The rows of a query over `input`."""
    frame.createOrReplaceTempView(INPUT)
    return frame.sparkSession.sql(sql)


def find_function(place: str) -> tuple[Path, str]:
    """The file and the name of a function, as file.py:name; the file is there.

    Raises:
        Invalid: it is not, or that is no function.
    """
    file, _, name = place.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise Invalid(f"python is {place!r}, not a function such as mend.py:mend", field="python")
    return path, name


def run_python(frame: DataFrame, place: str) -> DataFrame:
    """What the function `file.py:name` makes of the rows.

    Raises:
        Invalid: there is no such function, or it returns something else.
    """
    path, name = find_function(place)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise Invalid(f"{path} is no Python", field="python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = vars(module).get(name)
    if not callable(function):
        raise Invalid(f"{path} has no function {name!r}", field="python")
    made = function(frame)
    if not isinstance(made, DataFrame):
        raise Invalid(f"{place} returned {type(made).__name__}, not a DataFrame", field="python")
    return made
