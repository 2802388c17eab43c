"""Counters and rows of queues, compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from millrace.batch_jobs.audit import (
    ENDS,
    SeqStatistics,
    audit,
    audit_shard,
    count_missing,
    in_order,
    merge_statistics,
    row_statistics,
    statistics_of,
)
from millrace.batch_jobs.job_context import JobContext

spark_only = pytest.mark.spark


@spark_only
def test_a_queue_that_has_seen_everything_balances(site: JobContext) -> None:
    site.m.queue("graves")
    queue = site.m.queue("seen", shards=3, dead_letter="graves")
    queue.publish_many([b"x"] * 60)
    reader = queue.cursor("reader", retain=True)
    queue.settle(queue.lease(9))
    queue.discard(queue.lease(4))
    found = audit(site, queue)
    assert found.faults == ()
    assert sum(shard.rows.rows for shard in found.shards) == queue.stats()["live"] >= 56
    reader.delete()
    queue.lease(3)
    assert audit(site, queue).faults == ()
    queue.purge()
    queue.publish(b"last")
    found = audit(site, queue)
    assert found.faults == ()
    assert sum(shard.rows.rows for shard in found.shards) == 1


@spark_only
def test_keys_and_an_empty_queue(site: JobContext) -> None:
    queue = site.m.queue("revised", keyed=True, retention="log")
    assert audit(site, queue).faults == ()
    for at in range(20):
        queue.publish(b"%d" % at if at % 7 else None, key=b"k%d" % (at % 5))
    [shard] = audit(site, queue).shards
    assert shard.faults == ()
    assert shard.rows.rows + shard.counts["superseded"] + shard.counts["expired"] == 20


def counts(published: int, **ended: int) -> dict[str, int]:
    ends = {name: ended.get(name, 0) for name in ENDS}
    return {"published": published, "live": published - sum(ends.values()), **ends}


def seam(*seqs: int) -> SeqStatistics:
    return statistics_of(np.array(seqs, np.int64))


def faults(rows: SeqStatistics, **ended: int) -> tuple[str, ...]:
    known = counts(6, **ended)
    return audit_shard(0, known, known, 6, rows).faults


def test_what_does_not_balance_is_noticed() -> None:
    assert faults(seam(1, 2, 3, 4, 5, 6)) == ()
    assert faults(seam(2, 3, 5, 6), expired=1, settled=1) == ()
    [few, lost] = faults(seam(1, 2, 4, 5, 6))
    assert few == "shard 0: rows are 5, and 6 should be live"
    assert lost == "shard 0: seqs without a row that no counter has ended: 1; gaps at 3"
    # As many rows as there should be, but one is lost and another one is there twice.
    twice = faults(seam(1, 2, 2, 4, 5, 6))
    assert "rows with the seq of another one: 1" in twice[0]
    assert "seqs without a row that no counter has ended: 1" in twice[1]
    assert "after the last one, 6" in faults(seam(1, 2, 3, 4, 5, 7))[0]
    assert "not in the order" in faults(seam(1, 3, 2, 4, 5, 6))[0]
    assert "should be live" in faults(seam(1, 2, 3, 4, 5, 6), dropped=1)[0]
    wrong = counts(6) | {"live": 5}
    assert "live with all that ended is 5" in audit_shard(0, wrong, wrong, 6, seam(1, 2)).faults[0]


def test_between_two_moments_a_range_is_judged() -> None:
    before, after = counts(6), counts(8, settled=2)
    assert audit_shard(0, before, after, 7, seam(2, 3, 4, 5, 6, 7)).faults == ()
    [few, lost] = audit_shard(0, before, after, 7, seam(4, 5, 6, 7)).faults
    assert "rows are 4, and between 5 and 7 should be live" in few
    assert "seqs without a row that no counter has ended: 1" in lost


@pytest.mark.parametrize("cuts", [(3,), (1, 2), (4, 4), (2, 5)])
def test_parts_are_joined_as_if_they_were_one(cuts: Sequence[int]) -> None:
    seqs = np.array([2, 3, 3, 7, 9, 10, 20], np.int64)
    parts = [part for part in np.split(seqs, cuts) if len(part)]
    assert merge_statistics(statistics_of(part) for part in reversed(parts)) == statistics_of(seqs)


@spark_only
def test_rows_of_files_are_looked_at_in_any_order(spark: SparkSession, tmp_path: Path) -> None:
    whole = [(shard, seq) for shard in (0, 1) for seq in range(1, 5001)]
    doctored = [pair for pair in whole if pair not in {(0, 17), (1, 4000), (1, 4001)}]
    doctored += [(0, 99), (1, 5000)]
    order = np.random.default_rng(7).permutation(len(doctored))
    table = pa.table(
        {
            "shard": pa.array([doctored[at][0] for at in order], pa.int32()),
            "seq": pa.array([doctored[at][1] for at in order], pa.int64()),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=1000)
    found = row_statistics(in_order(spark.read.parquet(str(tmp_path / "rows.parquet"))))
    assert found[0] == SeqStatistics(5000, 1, 5000, 1, 0, 1, 1, ((17, 17),))
    assert found[1] == SeqStatistics(4999, 1, 5000, 1, 0, 2, 1, ((4000, 4001),))
    assert count_missing(found[1], 5000) == 2
    known = counts(5000)
    assert len(audit_shard(0, known, known, 5000, found[0]).faults) == 2
