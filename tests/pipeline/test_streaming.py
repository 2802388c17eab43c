"""Pipelines with a state: aggregates, and joins of two queues, with Spark's checkpoint."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from millrace import Message, sync
from millrace.errors import Fatal, Invalid, Refused
from millrace.pipeline import (
    DeclaredSink,
    Pipeline,
    Run,
    Setting,
    Source,
    Step,
    Where,
    run_pipeline,
)
from millrace.pipeline.sparked import analyzed, may_widen, state_in
from tests.pipeline.ledger import Ledger
from tests.pipeline.scene import ledger_at, plain

TOTALS = """
    SELECT cast(key AS string) id, count(*) many, sum(cast(cast(value AS string) AS int)) total
    FROM source GROUP BY key
"""


def counting(folder: Path) -> tuple[Pipeline, Ledger]:
    declared, ledger = ledger_at(folder, "one", key=("id",))
    return (
        msgspec.structs.replace(
            plain(msgspec.structs.replace(declared, rows="totals")),
            steps=(Step(name="totals", sql=TOTALS),),
            run=Run(checkpoint=str(folder / "checkpoint")),
        ),
        ledger,
    )


def totals(ledger: Ledger) -> dict[object, object]:
    return {line["id"]: line["total"] for line in ledger.lines()}


def _end(_: object) -> None:
    raise Fatal("here it ends")


@pytest.mark.spark
def test_aggregates_go_on_from_the_checkpoint(
    tmp_path: Path, m: sync.Millrace, spark: SparkSession
) -> None:
    pipeline, ledger = counting(tmp_path)
    # One that keeps nothing beside it is no reason to refuse.
    shown = DeclaredSink(name="shown", rows="totals", kind="console")
    pipeline = msgspec.structs.replace(pipeline, sinks=(*pipeline.sinks, shown))
    setting = Setting(millrace=m, where=Where(path=str(tmp_path / "data")))
    queue = m.queue("orders")
    with sync.share(m):
        queue.publish_many([Message(b"1", "a"), Message(b"2", "b"), Message(b"3", "a")])
        run_pipeline(pipeline, setting, once=True, spark=spark)
        assert totals(ledger) == {"a": 4, "b": 2}
        queue.publish_many([Message(b"10", "a"), Message(b"5", "c")])
        # The sink has the batch, and Spark's commit log has not: it comes again, and is skipped.
        with pytest.raises(Fatal, match="here it ends"):
            run_pipeline(pipeline, setting, once=True, spark=spark, tell=_end)
        assert totals(ledger) == {"a": 14, "b": 2, "c": 5}
        run_pipeline(pipeline, setting, once=True, spark=spark)
        assert totals(ledger) == {"a": 14, "b": 2, "c": 5}
        shutil.rmtree(tmp_path / "checkpoint")
        with pytest.raises(Refused, match=r"checkpoint .* is gone"):
            run_pipeline(pipeline, setting, once=True, spark=spark)


@pytest.mark.spark
def test_two_queues_are_joined(tmp_path: Path, m: sync.Millrace, spark: SparkSession) -> None:
    declared, ledger = ledger_at(tmp_path, "one")
    sql = """
        SELECT cast(o.key AS string) id, cast(p.value AS string) paid
        FROM source o JOIN payments p ON o.key = p.key
    """
    pipeline = msgspec.structs.replace(
        plain(msgspec.structs.replace(declared, rows="both")),
        sources={"payments": Source(queue="payments")},
        steps=(Step(name="both", sql=sql),),
        run=Run(checkpoint=str(tmp_path / "checkpoint")),
    )
    setting = Setting(millrace=m, where=Where(path=str(tmp_path / "data")))
    orders, payments = m.queue("orders"), m.queue("payments")
    with sync.share(m):
        orders.publish_many([Message(b"", "a"), Message(b"", "b")])
        payments.publish(b"5", key="a")
        run_pipeline(pipeline, setting, once=True, spark=spark)
        payments.publish(b"7", key="b")
        run_pipeline(pipeline, setting, once=True, spark=spark)
    assert {line["id"]: line["paid"] for line in ledger.lines()} == {"a": "5", "b": "7"}
    assert len(ledger.lines()) == 2


@pytest.mark.spark
def test_a_state_needs_a_checkpoint(tmp_path: Path, m: sync.Millrace, spark: SparkSession) -> None:
    pipeline, ledger = counting(tmp_path)
    m.queue("orders").publish(b"1", key="a")
    bare = msgspec.structs.replace(pipeline, run=Run())
    with pytest.raises(Invalid, match=r"'totals' keeps a state \(Aggregate\)"):
        run_pipeline(bare, Setting(millrace=m), once=True, spark=spark)
    assert ledger.lines() == []


SELF_JOIN = """
Project [a#1]
+- Join Inner, (a#1 = a#2)
   :- SubqueryAlias x
   :  +- SubqueryAlias source
   :     +- LocalRelation [a#1]
   +- SubqueryAlias y
      +- SubqueryAlias source
         +- LocalRelation [a#2]
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SELF_JOIN, "Join of source with itself"),
        (SELF_JOIN.replace("      +- SubqueryAlias source", "      +- SubqueryAlias other"), ""),
        ("Project [a#1]\n+- Filter (a#1 > 1)\n   +- LocalRelation [a#1]", ""),
        ("Sort [a#1]\n+- LocalRelation [a#1]", "Sort"),
        ("Project [a#1]\n+- Aggregate [a#1]\n   +- LocalRelation [a#1]", "Aggregate"),
        ("Union false, false\n:- LocalRelation [a#1]\n+- LocalRelation [a#2]", ""),
    ],
    ids=["self-join", "join", "filter", "sort", "aggregate", "union"],
)
def test_states_are_seen_in_plans(text: str, found: str) -> None:
    assert state_in(text) == found


@pytest.mark.spark
def test_plans_are_each_threads_own_and_printed_nowhere(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    frames = [spark.range(3).select("id"), spark.range(3).groupBy("id").count()] * 4
    begin = Barrier(len(frames))

    def look(frame: DataFrame) -> set[str]:
        begin.wait()
        return {state_in(analyzed(frame)) for _ in range(20)}

    stdout = sys.stdout
    with ThreadPoolExecutor(len(frames)) as threads:
        found = list(threads.map(look, frames))
    assert found == [{""}, {"Aggregate"}] * 4
    assert sys.stdout is stdout
    assert not capfd.readouterr().out


@pytest.mark.spark
def test_the_names_of_columns_are_no_nodes(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "Sort int").select("Sort")
    assert state_in(analyzed(frame)) == ""
    assert not may_widen(analyzed(frame))
