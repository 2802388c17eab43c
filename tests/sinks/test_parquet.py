"""Parquet files and the log that says which of them count."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace import limits
from millrace.errors import Invalid, Retry
from millrace.sinks.base import Task
from millrace.sinks.parquet import LogEntry, Parquet, add_entry, manifest, read_log
from millrace.testing.check_sink import (
    FLOW,
    SCHEMA,
    SinkRun,
    puts,
    span,
)
from tests.sinks.lakes.rig import LakeRig, lines_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "sinks" / "parquet.md"


def _run(path: Path) -> SinkRun:
    return SinkRun(LakeRig(Parquet(path=str(path))))


def _carry(run: SinkRun, count: int) -> None:
    for at in range(count):
        run.carry(span(at, at + 1), puts(f"k{at}"))


def test_rows_are_only_added(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="delta or iceberg"):
        Parquet(path=str(tmp_path), mode="upsert", key=("key",))


def test_the_manifest_names_what_counts(tmp_path: Path) -> None:
    run = _run(tmp_path)
    assert manifest(tmp_path) == []
    _carry(run, 3)
    run.stage_all(span(3, 4), puts("never"))
    named = manifest(tmp_path)
    assert len(named) == 3 == len(set(tmp_path.glob("*.parquet"))) - 1
    assert set(pq.ParquetDataset(named).read(["key"])["key"].to_pylist()) == {"k0", "k1", "k2"}


@pytest.mark.parametrize("count", [1, limits.LAKE_CHECKPOINT_COMMITS + 3])
def test_duckdb_reads_what_counts(count: int, tmp_path: Path) -> None:
    run = _run(tmp_path)
    _carry(run, count)
    run.stage_all(span(count, count + 1), puts("never"))
    [query] = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    with duckdb.connect() as database:
        found = database.execute(query.replace("/lake/orders", str(tmp_path))).fetchall()
    assert sorted(key for _, key, _, _ in found) == sorted(f"k{at}" for at in range(count))


def test_the_log_is_summed_up_and_cleaned(tmp_path: Path) -> None:
    run, log = _run(tmp_path), tmp_path / "_millrace" / "log"
    _carry(run, 2 * limits.LAKE_CHECKPOINT_COMMITS)
    before = read_log(tmp_path)
    assert len(list(log.glob("all-*.json"))) == 2
    run.sink.clean(run.held)
    assert len(list(log.glob("[0-9]*.json"))) == before.number
    old = time.time() - limits.LAKE_STAGED_SECONDS - 60
    for path in tmp_path.rglob("*"):
        os.utime(path, (old, old))
    run.sink.clean(run.held)
    assert len(list(log.glob("*.json"))) == 1 + before.number % limits.LAKE_CHECKPOINT_COMMITS
    assert read_log(tmp_path) == before
    again = _run(tmp_path)
    assert again.at == run.at


def test_who_slept_through_a_cleaning_takes_back_what_they_wrote(tmp_path: Path) -> None:
    other = SinkRun(LakeRig(Parquet(path=str(tmp_path))), "other/sink")
    asleep = read_log(tmp_path)
    _carry(_run(tmp_path), limits.LAKE_CHECKPOINT_COMMITS)
    for path in (tmp_path / "_millrace" / "log").glob("[0-9]*.json"):
        if int(path.stem) <= limits.LAKE_CHECKPOINT_COMMITS:
            path.unlink()
    now = read_log(tmp_path)
    late = LogEntry(other.flow, other.held.fence, span(0, 5).upto)
    assert not add_entry(tmp_path, asleep, late)
    assert read_log(tmp_path) == now
    other.carry(span(0, 5), puts("late"))
    assert SinkRun(other.rig, other.flow).at == span(0, 5).upto


def test_two_who_read_the_same_log_cannot_both_go_on(tmp_path: Path) -> None:
    run = _run(tmp_path)
    found = read_log(tmp_path)
    first, second = (LogEntry(FLOW, run.held.fence, span(0, at).upto) for at in (5, 6))
    assert add_entry(tmp_path, found, first)
    assert not add_entry(tmp_path, found, second)
    assert read_log(tmp_path).flows[FLOW].boundary == span(0, 5).upto


def test_what_was_never_committed_is_deleted_when_it_is_old(tmp_path: Path) -> None:
    run = _run(tmp_path)
    _carry(run, 1)
    run.stage_all(span(1, 2), puts("never"))
    run.sink.clean(run.held)
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    old = time.time() - limits.LAKE_STAGED_SECONDS - 60
    for path in tmp_path.glob("*.parquet"):
        os.utime(path, (old, old))
    run.sink.clean(run.held)
    assert [str(path) for path in tmp_path.glob("*.parquet")] == manifest(tmp_path)


def test_columns_are_added_and_kept(tmp_path: Path) -> None:
    _carry(_run(tmp_path), 1)
    sink = Parquet(path=str(tmp_path))
    wider = SCHEMA.append(pa.field("size", pa.uint8()))
    held = sink.open(FLOW, wider)
    batch = pa.RecordBatch.from_pylist([{"seq": 2, "key": "b", "op": "put", "size": 7}], wider)
    token = sink.stage(Task(held, span(1, 2), "2"), [batch])
    held = sink.commit(held, span(1, 2), [token])
    assert lines_of(sink, ["size"]) == [{"size": None}, {"size": 7}]
    with pytest.raises(Invalid, match="has no column more"):
        Parquet(path=str(tmp_path), evolve=False).check(wider.append(pa.field("more", pa.int8())))
    with pytest.raises(Invalid, match="cast it"):
        sink.check(pa.schema([("size", pa.string())]))


def test_a_log_that_is_gone_is_told(tmp_path: Path) -> None:
    run = _run(tmp_path)
    (tmp_path / "_millrace").rename(tmp_path / "elsewhere")
    with pytest.raises(Retry, match="is gone"):
        run.carry(span(0, 5), puts("a"))
