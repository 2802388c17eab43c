"""Queues as source and sink of one query, with a real Spark: exactly once, whatever fails."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from millrace import sync
from tests.support.timeouts import scaled

pytestmark = pytest.mark.spark

Shared = tuple[sync.Millrace, Path]
ROOT = Path(__file__).resolve().parents[2]


def source(spark: SparkSession, folder: Path, rows: int) -> DataFrame:
    return (
        spark.readStream.format("millrace")
        .option("path", str(folder))
        .option("queue", "in")
        .option("cursor", "copy")
        .option("maxOffsetsPerTrigger", str(rows))
        .option("minPartitions", "2")
        .load()
    )


def drain(frame: DataFrame, folder: Path, checkpoint: Path) -> None:
    query = (
        frame.writeStream.format("millrace")
        .option("path", str(folder))
        .option("queue", "out")
        .option("checkpointLocation", str(checkpoint))
        .queryName("copy")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


@contextmanager
def watching(queue: sync.Queue) -> Iterator[list[int]]:
    """The boundaries that a follower sees meanwhile."""
    seen: list[int] = []
    cursor = queue.cursor("watch")
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            snapshot = cursor.next(wait=0.1)
            if snapshot is not None:
                seen.append(snapshot.boundary)
                snapshot.commit()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        cursor.delete()


def bodies(queue: sync.Queue) -> list[int]:
    with queue.snapshot() as snapshot:
        column = snapshot.arrow().read_all().column("value")
        return [int(value or b"") for value in column.to_pylist()]


def test_once_with_tasks_that_fail_and_checkpoints_that_are_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A task fails after another has staged, and the checkpoint is deleted; readers see whole
    batches only."""
    failed, checkpoint = tmp_path / "failed", tmp_path / "checkpoint"

    @udf("string", useArrow=False)
    def fails_once(value: bytes) -> str:
        text = value.decode()
        if text == "777" and not failed.exists():
            failed.touch()
            raise RuntimeError("this task fails once")
        return text

    folder = tmp_path / "data"
    with sync.open(folder) as m, sync.share(m):
        read, written = m.queue("in", retention="log"), m.queue("out")
        read.publish_many([b"%d" % n for n in range(1000)])
        frame = source(spark, folder, 400)
        with watching(written) as seen:
            drain(frame.select(fails_once("value").alias("value"), "key"), folder, checkpoint)
        assert failed.exists()
        assert set(seen) <= {400, 800, 1000}
        read.publish_many([b"%d" % n for n in range(1000, 1500)])
        shutil.rmtree(checkpoint)
        drain(frame, folder, checkpoint)
        assert sorted(bodies(written)) == list(range(1500))
        assert written.stages() == {}


@pytest.mark.long
def test_a_driver_that_is_killed_between_stage_and_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    with sync.open(folder) as m, sync.share(m):
        read, written = m.queue("in", retention="log"), m.queue("out")
        read.publish_many([b"%d" % n for n in range(100)])
        command = [sys.executable, "-m", "tests.spark.stuck_driver", str(folder), str(checkpoint)]
        driver = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        try:
            deadline = time.monotonic() + scaled(600)
            while not written.stages():
                assert driver.poll() is None, "the driver ended by itself"
                assert time.monotonic() < deadline, "nothing was staged"
                time.sleep(0.05)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        assert bodies(written) == []
        drain(source(spark, folder, 1000), folder, checkpoint)
        assert sorted(bodies(written)) == list(range(100))
        # Those of the one that was killed went with the first batch of its successor.
        assert written.stages() == {}
