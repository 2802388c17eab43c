"""From a queue through SQL on Spark into a lake table, exactly once, and a query of the table.

`make run` runs it after the tour. It needs Java 17 or later; it works in a temporary folder and
leaves nothing behind.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import duckdb
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import millrace
from millrace.errors import NotFound
from millrace.pipeline import (
    DeclaredSink,
    Pipeline,
    Progress,
    Setting,
    Source,
    Step,
    run_pipeline,
)
from millrace.spark.session import session

LINES = """
    SELECT cast(key AS string) AS id, op, seq, cart.customer, cart.item, cart.total
    FROM (
        SELECT *, from_json(cast(value AS string), 'customer string, item string, total double')
            AS cart
        FROM source
    )
"""

REPORT = """
    SELECT customer, count(*) AS carts, sum(total) AS total
    FROM lake GROUP BY customer ORDER BY customer
"""


def say(text: str = "") -> None:
    print(text, flush=True)


def title(text: str) -> None:
    say(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}")


def cart(number: int, customer: str, item: str, total: float) -> millrace.Message:
    body = json.dumps({"customer": customer, "item": item, "total": total})
    return millrace.Message(body.encode(), key=f"cart-{number}")


def declared(data: Path, table: Path) -> Pipeline:
    """The same could be a file: `millrace pipeline run carts.toml`."""
    return Pipeline(
        name="carts",
        source=Source(queue="carts", path=str(data)),
        steps=(Step(name="lines", sql=LINES),),
        sinks=(
            DeclaredSink(
                name="lake",
                rows="lines",
                kind="delta",
                settings={"path": str(table), "mode": "upsert", "key": ["id"]},
            ),
        ),
    )


def carry(pipeline: Pipeline, spark: SparkSession) -> None:
    began = time.perf_counter()
    told: list[Progress] = []
    run_pipeline(pipeline, Setting(), once=True, tell=told.append, spark=spark)
    rows = sum(progress.rows for progress in told)
    say(f"  {rows:,} rows, committed after {time.perf_counter() - began:.1f} s")


def ask(table: Path) -> None:
    lake = DeltaTable(table)
    with duckdb.connect() as connection:
        connection.register("lake", lake.to_pyarrow_table())
        for customer, carts, total in connection.execute(REPORT).fetchall():
            say(f"  {customer:<8} {carts:>3} carts {total:>10.2f}")
    say(f"  (version {lake.version()} of the table; its commits name how far the queue was read)")


def main() -> None:
    title("Start Spark")
    began = time.perf_counter()
    try:
        spark = session("carts")
    except NotFound as error:
        sys.exit(f"  {error.message}")
    say(f"  Spark {spark.version} is there after {time.perf_counter() - began:.1f} s")
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        data, table = Path(folder, "data"), Path(folder, "lake", "carts")
        title("Publish 1,000 carts, and carry them through SQL into a Delta table, exactly once")
        with millrace.sync.open(data) as m:
            carts = m.queue("carts", keyed=True)
            names = ["Ada", "Barbara", "Edsger", "Grace"]
            carts.publish_many([cart(n, names[n % 4], "nails", n / 10) for n in range(1000)])
        pipeline = declared(data, table)
        carry(pipeline, spark)
        title("What the lake says")
        ask(table)
        title("A revision and a delete, carried on: only what is new is read")
        with millrace.sync.open(data) as m:
            carts = m.find("carts")
            carts.publish_many([cart(0, "Ada", "a house", 250_000.0)])
            carts.publish(None, key="cart-1")
        carry(pipeline, spark)
        ask(table)
    spark.stop()
    title("Where to look next")
    say("  docs/guide/quickstart.md   from nothing to a lake table in five minutes")
    say("  docs/guide/pipelines.md    a declaration's fields; exactly-once.md: when something dies")
    say("  .venv/bin/millrace demo    sample data to play with; `millrace --help` has every verb")


if __name__ == "__main__":
    main()
