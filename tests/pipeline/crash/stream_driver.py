"""A query of Spark's from one queue into another, until it is killed.

`python -m tests.pipeline.crash.stream_driver FOLDER CHECKPOINT [once]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from millrace.spark.session import session

ROWS = 30
"""Of one batch."""


def main() -> None:
    """Write until somebody ends it, or once, until all was written."""
    folder, checkpoint, *once = sys.argv[1:]
    spark = session(
        "millrace-stream",
        **{
            "spark.master": "local[2,4]",
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.log.level": "OFF",
            "spark.local.dir": str(Path(checkpoint).parent / "local"),
        },
    )
    writer = (
        spark.readStream.format("millrace")
        .options(path=folder, queue="in", cursor="copy", minPartitions="2")
        .option("maxOffsetsPerTrigger", str(ROWS))
        .load()
        .select("key", "value")
        .writeStream.format("millrace")
        .options(path=folder, queue="out", checkpointLocation=checkpoint)
    )
    if once:
        writer = writer.trigger(availableNow=True)
    print("begun", flush=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
