"""Group `spark`: from a queue through SQL on Spark into a Delta table, exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from bench.report import Result, at_least, at_most, median
from bench.scratch import scratch
from bench.served import Served, served
from bench.spark import fill, session_of, turns
from millrace import sync
from millrace.pipeline import (
    DeclaredSink,
    Pipeline,
    Progress,
    Setting,
    Source,
    Step,
    run_pipeline,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 1_000
EVERY_SECONDS = 0.01
"""100 messages a second arrive."""

_SQL = "SELECT shard, seq, value FROM source"


def _pipeline(name: str, server: Served, table: Path, queue: str = "bench") -> Pipeline:
    return Pipeline(
        name=name,
        source=Source(
            queue=queue,
            url=f"http://127.0.0.1:{server.port}",
            token_file=server.token_file,
            view="log",
        ),
        steps=(Step(name="lines", sql=_SQL),),
        sinks=(
            DeclaredSink(name="lake", rows="lines", kind="delta", settings={"path": str(table)}),
        ),
    )


async def stream_delta(rows: int = 4_000_000) -> list[Result]:
    """All of a queue into a table, against Spark's own copy of the same rows."""
    with scratch() as folder:
        await fill(folder / "data", 100, rows)
        with served(folder / "data") as server, session_of(folder) as spark:
            return _stream_delta(folder, server, spark, rows)


def _stream_delta(folder: Path, server: Served, spark: SparkSession, rows: int) -> list[Result]:
    turn = iter(range(1000))
    parquet = str(folder / "parquet")
    options = {"url": f"http://127.0.0.1:{server.port}", "tokenFile": server.token_file}
    whole = spark.read.format("millrace").options(**options, queue="bench").load()
    whole.selectExpr("shard", "seq", "value").write.parquet(parquet)

    def ours() -> int:
        number = next(turn)
        table = folder / f"lake{number}"
        run_pipeline(_pipeline(f"p{number}", server, table), Setting(), once=True, spark=spark)
        return DeltaTable(table).to_pyarrow_dataset().count_rows()

    def theirs() -> int:
        into = str(folder / f"copy{next(turn)}")
        frame = spark.read.parquet(parquet)
        frame.selectExpr("shard", "seq", "value").write.parquet(into)
        return rows

    ours_s, theirs_s = turns(ours, theirs)
    reach, judge = at_least(0.5)
    return [
        Result(
            "stream_delta",
            f"a pipeline of {rows:,} messages of 100 bytes into a Delta table",
            rows / ours_s / 1e6,
            "M rows/s",
            f"Spark's copy of Parquet to Parquet: {rows / theirs_s / 1e6:.2f} M rows/s",
            theirs_s / ours_s,
            reach,
            judge(theirs_s / ours_s),
        )
    ]


async def sink_latency() -> list[Result]:
    """From the call of `publish` until the row is committed in the table."""
    with scratch() as folder, served(folder / "data") as server, session_of(folder) as spark:
        found = _latencies(folder, server, spark)
    p50, p99 = median(found) * 1e3, sorted(found)[len(found) * 99 // 100] * 1e3
    return [
        _result("sink_latency_p50_ms", "p50", p50, at_most(250)),
        _result("sink_latency_p99_ms", "p99", p99, at_most(600)),
    ]


def _result(
    id_: str, which: str, value: float, bound: tuple[str, Callable[[float], bool]]
) -> Result:
    reach, judge = bound
    what = f"publish to a row committed in a Delta table, 100 messages/s, {which}"
    return Result(id_, what, value, "ms", "none", value, reach, judge(value))


def _latencies(folder: Path, server: Served, spark: SparkSession) -> list[float]:
    published: list[float] = []
    committed: list[float] = []
    stop, is_warm = Event(), Event()

    def tell(progress: Progress) -> None:
        boundary = progress.sinks[0].boundary
        done = 0 if boundary is None else boundary.number
        committed.extend([time.perf_counter()] * (done - len(committed)))
        is_warm.set()

    url = f"http://127.0.0.1:{server.port}"
    with sync.connect(url, token=server.token) as m:
        queue = m.queue("arriving", retention="log")
        pipeline = _pipeline("latency", server, folder / "lake", "arriving")
        running = Thread(
            target=lambda: run_pipeline(pipeline, Setting(), stop=stop, tell=tell, spark=spark)
        )
        running.start()

        def publish(count: int) -> None:
            for _ in range(count):
                began = time.perf_counter()
                published.append(began)
                queue.publish(b"x" * 100)
                time.sleep(max(0.0, EVERY_SECONDS - (time.perf_counter() - began)))

        publish(1)
        is_warm.wait(120)
        # The first spans find their way still cold.
        publish(MESSAGES // 2)
        warm = len(published)
        publish(MESSAGES)
        while running.is_alive() and len(committed) < len(published):
            time.sleep(EVERY_SECONDS)
        stop.set()
        running.join()
    pairs = list(zip(published, committed, strict=True))
    return [seen - began for began, seen in pairs[warm:]]
