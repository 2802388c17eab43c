"""What our own programs do without: servers, their front ends, the command line."""

from __future__ import annotations

import sys
from types import FrameType


def spare_pandas() -> None:
    """Have this process do without pandas, also where it is installed.

    At the first value that is made an array pyarrow loads it, to know its series from others: a
    third of the time that a short command takes. Programs of others, as sinks and steps of
    pipelines are, and what comes with Spark find it all the same.
    """
    sys.meta_path.insert(0, _WithoutPandas())


class _WithoutPandas:
    """Whom the interpreter asks first where a module is."""

    def find_spec(self, fullname: str, path: object, target: object = None, /) -> None:
        if fullname == "pandas" and "pyspark" not in sys.modules and _is_ours(sys._getframe(1)):
            raise ModuleNotFoundError("no pandas is needed here", name=fullname)


def _is_ours(frame: FrameType | None) -> bool:
    """Whether it is our own code that comes to something, by way of others."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(("importlib", "_frozen_importlib", "pyarrow")):
            return name.partition(".")[0] == "millrace"
        frame = frame.f_back
    return False
