"""pyarrow loads pandas where it is installed; our own programs have no use for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

SPARED = """
import sys
from millrace.thrift import spare_pandas
spare_pandas()
import pyarrow as pa
pa.array([b"x", None]).to_numpy(zero_copy_only=False)
assert "pandas" not in sys.modules
"""

WITH_SPARK = """
import pyspark
assert pa.table({"a": [1]}).to_pandas()["a"].tolist() == [1]
"""


@pytest.mark.parametrize("code", [SPARED, SPARED + WITH_SPARK], ids=["alone", "with Spark"])
def test_pandas_is_spared(code: str) -> None:
    pytest.importorskip("pandas")
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
