"""What our own programs do without: servers, their front ends, the command line."""

from __future__ import annotations

import sys


def spare_pandas() -> None:
    """Have this process do without pandas, also where it is installed.

    At the first value that is made an array pyarrow loads it, to know its series from others:
    a third of the time that a short command takes. With Spark come programs of others,
    so pandas is found where that was loaded first.
    """
    sys.meta_path.insert(0, _WithoutPandas())


class _WithoutPandas:
    """Whom the interpreter asks first where a module is."""

    def find_spec(self, fullname: str, path: object, target: object = None, /) -> None:
        if fullname == "pandas" and "pyspark" not in sys.modules:
            raise ModuleNotFoundError("no pandas is needed here", name=fullname)
