"""Keeps pandas from being imported by our own processes: servers, front ends, command line."""

from __future__ import annotations

import sys
from types import FrameType


def spare_pandas() -> None:
    """Hide pandas from imports that our own code causes in this process, even if it is installed.

    pyarrow imports pandas at the first conversion of values to an array, to recognize its series: a
    third of the time of a short command. Sinks and pipeline steps of users, and Spark, still find
    it.
    """
    sys.meta_path.insert(0, _WithoutPandas())


class _WithoutPandas:
    """An import hook that reports pandas as missing to our own code."""

    def find_spec(self, fullname: str, path: object, target: object = None, /) -> None:
        if fullname == "pandas" and "pyspark" not in sys.modules and _is_ours(sys._getframe(1)):
            raise ModuleNotFoundError("no pandas is needed here", name=fullname)


def _is_ours(frame: FrameType | None) -> bool:
    """Return True if the import was caused by our own code, perhaps through other packages."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(("importlib", "_frozen_importlib", "pyarrow")):
            return name.partition(".")[0] == "millrace"
        frame = frame.f_back
    return False
