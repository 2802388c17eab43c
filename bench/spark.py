"""Group `spark`: queues read and written by Spark, against Spark's own Parquet of the same rows.

Both are read in turns by the same session, of which the first turn warms up. The messages are
sealed, as most messages of a large queue are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.publish import BATCH, bodies
from bench.report import Result, at_least, median
from bench.scratch import engine, node_of, scratch
from bench.served import Served, served
from millrace import Message
from millrace.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TURNS = 5
_SUMS = ("count(*)", "sum(length(value))", "max(seq)")


@contextmanager
def session_of(folder: Path) -> Iterator[SparkSession]:
    """A session of two cores, as everything here is measured with."""
    root = Path(__file__).resolve().parents[1]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root / "src"), str(root)])
    found = session(
        "bench",
        **{
            "spark.master": "local[2]",
            "spark.driver.memory": "2g",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(folder / "local"),
            "spark.log.level": "ERROR",
        },
    )
    try:
        yield found
    finally:
        found.stop()


def _options(server: Served, **options: str) -> dict[str, str]:
    url = f"http://127.0.0.1:{server.port}"
    told = {"url": url, "tokenFile": server.token_file, "queue": "bench", "minPartitions": "2"}
    return told | options


def _queue(spark: SparkSession, server: Served, **options: str) -> DataFrame:
    return spark.read.format("millrace").options(**_options(server, **options)).load()


def _sums(frame: DataFrame) -> tuple[object, ...]:
    return tuple(frame.selectExpr(*_SUMS).collect()[0])


def turns(*reads: Callable[[], object]) -> list[float]:
    """The median seconds of each, read in turns; all must come to the same."""
    took: list[list[float]] = [[] for _ in reads]
    for turn in range(TURNS + 1):
        found: list[object] = []
        for read, times in zip(reads, took, strict=True):
            began = time.perf_counter()
            found.append(read())
            if turn:
                times.append(time.perf_counter() - began)
        assert len(set(map(repr, found))) == 1, found
    return [median(times) for times in took]


async def fill(folder: Path, size: int, rows: int) -> None:
    megabytes = rows * (size + 40) // 1_000_000
    async with engine(folder, megabytes=megabytes) as m:
        queue = await m.queue("bench", retention="log")
        for _ in range(rows // BATCH):
            # Each its own: of a few that come again and again, Parquet keeps a dictionary.
            await queue.publish_many(bodies(size))
        await node_of(m).checkpointer.seal_all()


async def read_rows(size: int, rows: int, id_: str) -> list[Result]:
    """A batch read of sealed messages, and the same as a stream."""
    with scratch() as folder:
        await fill(folder / "data", size, rows)
        with served(folder / "data") as server, session_of(folder) as spark:
            return _read_rows(folder, server, spark, size, rows, id_)


def _read_rows(
    folder: Path, server: Served, spark: SparkSession, size: int, rows: int, id_: str
) -> list[Result]:
    parquet = str(folder / "parquet")
    _queue(spark, server).write.option("compression", "none").parquet(parquet)
    # Spark tells Parquet which columns it wants, and a source in Python nothing.
    ours, theirs = turns(
        lambda: _sums(_queue(spark, server, columns="seq,value")),
        lambda: _sums(spark.read.parquet(parquet)),
    )
    reach, judge = at_least(0.5)
    results = [
        Result(
            id_,
            f"{rows:,} sealed messages of {size} bytes: {', '.join(_SUMS)}",
            rows * size / ours / 1e6,
            "MB/s",
            f"spark.read.parquet, not compressed: {rows * size / theirs / 1e6:,.0f} MB/s",
            theirs / ours,
            reach,
            judge(theirs / ours),
            f"{rows / ours / 1e6:.2f} M rows/s",
        )
    ]
    return [*results, *_stream(folder, server, spark, rows)] if id_ == "read_1k" else results


def _stream(folder: Path, server: Served, spark: SparkSession, rows: int) -> list[Result]:
    turn = iter(range(1000))

    def streamed() -> None:
        query = (
            spark.readStream.format("millrace")
            .options(**_options(server, maxOffsetsPerTrigger=str(rows // 2)))
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(folder / f"checkpoint{next(turn)}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def batch() -> None:
        _queue(spark, server).write.format("noop").mode("overwrite").save()

    ours, theirs = turns(streamed, batch)
    reach, judge = at_least(0.8)
    return [
        Result(
            "stream_noop",
            f"a stream of {rows:,} messages to nowhere, in two batches",
            rows / ours / 1e6,
            "M rows/s",
            f"a batch read to nowhere: {rows / theirs / 1e6:.2f} M rows/s",
            theirs / ours,
            reach,
            judge(theirs / ours),
        )
    ]


async def latest(keys: int = 4_000_000) -> list[Result]:
    """The newest revision of every key, against Spark's own over all revisions in Parquet."""
    with scratch() as folder:
        async with engine(folder / "data", megabytes=2 * keys * 160 // 1_000_000) as m:
            queue = await m.queue("bench", keyed=True)
            body = bodies(100, 1)[0]
            for _ in range(2):
                for first in range(0, keys, 20_000):
                    some = range(first, first + 20_000)
                    await queue.publish_many([Message(body, key=b"%012d" % at) for at in some])
            await node_of(m).checkpointer.seal_all()
        with served(folder / "data") as server, session_of(folder) as spark:
            return _latest(folder, server, spark, keys)


def _latest(folder: Path, server: Served, spark: SparkSession, keys: int) -> list[Result]:
    parquet = str(folder / "parquet")
    revisions = spark.range(0, 2 * keys, 1, 2).selectExpr(
        "id + 1 as seq",
        f"cast(lpad(id % {keys}, 12, '0') as binary) as key",
        "cast(repeat('x', 100) as binary) as value",
    )
    revisions.write.option("compression", "none").parquet(parquet)

    def theirs() -> object:
        whole = spark.read.parquet(parquet).selectExpr("key", "struct(seq, value) as row")
        found = whole.groupBy("key").agg({"row": "max"}).selectExpr("`max(row)`.*")
        return _sums(found)

    ours_s, theirs_s = turns(lambda: _sums(_queue(spark, server, view="latest")), theirs)
    reach, judge = at_least(3)
    return [
        Result(
            "latest_4m",
            f"view=latest of {keys:,} keys with {2 * keys:,} revisions",
            keys / ours_s / 1e6,
            "M keys/s",
            f"newest per key by Spark, over Parquet: {keys / theirs_s / 1e6:.2f} M keys/s",
            theirs_s / ours_s,
            reach,
            judge(theirs_s / ours_s),
        )
    ]


async def write_rows(size: int = 1024, rows: int = 300_000) -> list[Result]:
    """A DataFrame written into a queue, against Spark's own Parquet writer."""
    with scratch() as folder:
        async with engine(folder / "data", megabytes=(TURNS + 1) * rows * size // 1_000_000) as m:
            for turn in range(TURNS + 1):
                await m.queue(f"bench{turn}")
        with served(folder / "data") as server, session_of(folder) as spark:
            return _write_rows(folder, server, spark, size, rows)


def _write_rows(
    folder: Path, server: Served, spark: SparkSession, size: int, rows: int
) -> list[Result]:
    frame = spark.range(0, rows, 1, 2).selectExpr(
        f"cast(rpad(cast(id as string), {size}, 'x') as binary) as value"
    )
    queues, files = iter(range(1000)), iter(range(1000))

    def ours() -> None:
        url = f"http://127.0.0.1:{server.port}"
        told = {"url": url, "tokenFile": server.token_file, "queue": f"bench{next(queues)}"}
        frame.write.format("millrace").options(**told).mode("append").save()

    def theirs() -> None:
        path = str(folder / f"parquet{next(files)}")
        frame.write.option("compression", "none").parquet(path)

    ours_s, theirs_s = turns(ours, theirs)
    reach, judge = at_least(0.7)
    return [
        Result(
            "write_1k",
            f"{rows:,} rows of {size} bytes written into a queue",
            rows * size / ours_s / 1e6,
            "MB/s",
            f"df.write.parquet, not compressed: {rows * size / theirs_s / 1e6:,.0f} MB/s",
            theirs_s / ours_s,
            reach,
            judge(theirs_s / ours_s),
            f"{rows / ours_s / 1e6:.2f} M rows/s",
        )
    ]
