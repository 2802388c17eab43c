"""pyarrow loads pandas where it is installed; our own programs have no use for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.timeouts import scaled

pytestmark = pytest.mark.process

SPARED = """
import sys
from millrace.lazy_pandas import spare_pandas
spare_pandas()
from millrace.core.format.block import Block
from millrace.core.model import NewMessage
Block.of_messages([NewMessage(b"x", b"k")])
exec("import pyarrow; pyarrow.array([b'x', None])", {"__name__": "millrace.made"})
assert "pandas" not in sys.modules
"""

OF_OTHERS = """
import pandas
import pyarrow as pa
assert pa.table({"a": [1]}).to_pandas()["a"].tolist() == [1]
"""

WITH_SPARK = f"""
import pyspark
{OF_OTHERS}
"""


@pytest.mark.parametrize(
    "code",
    [SPARED, SPARED + OF_OTHERS, SPARED + WITH_SPARK],
    ids=["alone", "with programs of others", "with Spark"],
)
def test_pandas_is_spared(code: str) -> None:
    pytest.importorskip("pandas")
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(60),
    )
    assert ended.returncode == 0, ended.stderr
