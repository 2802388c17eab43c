"""A driver one of whose tasks has staged its rows, while another never ends."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql.functions import udf
from pyspark.sql.types import StringType

from millrace.spark.session import session
from tests.spark.test_stream_sink import ROOT, drain, source


@udf(StringType(), useArrow=False)
def wait_for_ever(value: bytes) -> str:
    """The second half of the rows never comes."""
    while int(value) >= 50:
        time.sleep(1)
    return value.decode()


def main() -> None:
    """Write until somebody ends it."""
    folder, checkpoint = map(Path, sys.argv[1:3])
    spark = session(
        "millrace-stuck",
        **{
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.log.level": "OFF",
            "spark.local.dir": str(checkpoint.parent / "local"),
        },
    )
    frame = source(spark, folder, 1000)
    drain(frame.select(wait_for_ever("value").alias("value")), folder, checkpoint)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
