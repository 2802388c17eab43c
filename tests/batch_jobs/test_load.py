"""Files and tables that are loaded into queues."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from millrace import sync
from millrace.batch_jobs.export import ExportJob, export
from millrace.batch_jobs.job_context import JobContext
from millrace.batch_jobs.load import (
    LoadJob,
    LoadResult,
    check_load,
    load,
)
from millrace.errors import Invalid, NotFound
from millrace.sinks.kinds import parse_sink

pytestmark = pytest.mark.spark

ROWS = [{"id": at, "note": f"n{at}"} for at in range(100)]


def objects(queue: sync.Queue) -> list[object]:
    return [json.loads(row.body or b"") for row in queue.peek(1000)]


def test_files_are_loaded_once(site: JobContext, tmp_path: Path) -> None:
    queue = site.m.queue("files")
    for at in (0, 50):
        pq.write_table(pa.Table.from_pylist(ROWS[at : at + 50]), tmp_path / f"{at}.parquet")
    job = LoadJob(name="first", sources=(str(tmp_path / "*.parquet"),), key="id")
    assert load(site, queue, job) == LoadResult(100, is_repeat=False)
    assert load(site, queue, job) == LoadResult(0, is_repeat=True)
    found = queue.peek(1000)
    assert sorted(objects(queue), key=str) == sorted(ROWS, key=str)
    assert all(json.loads(row.body or b"")["id"] == int(row.key or b"") for row in found)


def test_lines_and_columns(site: JobContext, tmp_path: Path) -> None:
    queue = site.m.queue("lines")
    (tmp_path / "a.jsonl").write_text('{"id": 1, "note": "x"}\n{"id": 2, "note": "y"}\n')
    (tmp_path / "b.csv").write_text("id;note\n3;z\n")
    load(site, queue, LoadJob(name="a", sources=(str(tmp_path / "a.jsonl"),), value="note"))
    options = {"sep": ";"}
    csv = (str(tmp_path / "b.csv"),)
    load(site, queue, LoadJob(name="b", sources=csv, options=options, columns=("id",)))
    query = "SELECT note AS value, map('from', 'b') AS headers FROM input"
    load(site, queue, LoadJob(name="c", sources=csv, options=options, sql=query))
    rows = queue.peek(10)
    assert [row.body for row in rows] == [b"x", b"y", b'{"id":"3"}', b"z"]
    assert rows[3].headers == (("from", b"b"),)


def test_tables_are_loaded_as_they_are_now(site: JobContext, tmp_path: Path) -> None:
    queue = site.m.queue("tables")
    lake = str(tmp_path / "lake")
    write_deltalake(lake, pa.Table.from_pylist(ROWS[:60]))
    write_deltalake(lake, pa.Table.from_pylist(ROWS[60:]), mode="append")
    write_deltalake(lake, pa.Table.from_pylist(ROWS[:7]), mode="overwrite")
    done = load(site, queue, LoadJob(name="delta", sources=(f"delta:{lake}",)))
    assert done.rows == 7
    assert objects(queue) == ROWS[:7]


@pytest.mark.parametrize("address", ["parquet:{}", "iceberg:{}?table=shop.notes"])
def test_what_was_exported_is_loaded(site: JobContext, tmp_path: Path, address: str) -> None:
    into = address.format(tmp_path / "out")
    source, queue = site.m.queue("from" + address[:7]), site.m.queue("to" + address[:7])
    source.publish_many([b"one", b"two"])
    export(site, source, ExportJob(name="out", sink=parse_sink(into)))
    assert load(site, queue, LoadJob(name="in", sources=(into,), value="value")).rows == 2
    assert sorted(row.body or b"" for row in queue.peek()) == [b"one", b"two"]


def test_what_is_wrong_is_refused_and_nothing_is_added(site: JobContext, tmp_path: Path) -> None:
    queue = site.m.queue("refused")
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1, "note": "x"}\n{"id": 2}\n')
    source = (str(path),)
    with pytest.raises(Invalid, match="key names the column 'it'; there are id, note"):
        load(site, queue, LoadJob(name="a", sources=source, key="it"))
    with pytest.raises(Invalid, match="give a format"):
        load(site, queue, LoadJob(name="a", sources=(str(tmp_path),)))
    with pytest.raises(Invalid, match="PATH_NOT_FOUND"):
        load(site, queue, LoadJob(name="a", sources=(str(tmp_path / "b.csv"),)))
    with pytest.raises(NotFound, match="there is no Delta table"):
        load(site, queue, LoadJob(name="a", sources=(f"delta:{tmp_path}",)))
    with pytest.raises(Invalid, match="column 'value' is null"):
        load(site, queue, LoadJob(name="a", sources=source, value="note"))
    assert queue.peek() == []
    assert queue.stages() == {}
    assert load(site, queue, LoadJob(name="a", sources=source)).rows == 2


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (LoadJob(name="a", sources=("b.csv",)), "there is no file b.csv"),
        (LoadJob(name="a", sources=("*.csv", "b*.csv")), r"there is no file b\*.csv"),
        (
            LoadJob(name="a", sources=("a.csv",), key="it"),
            "key names the column 'it'; there are id, n",
        ),
        (LoadJob(name="a", sources=("semi",), format="csv", options={"sep": ";"}), "no file semi"),
        (
            LoadJob(name="a", sources=("semi.csv",), options={"sep": ";"}, value="n"),
            "there are id, x",
        ),
        (
            LoadJob(name="a", sources=("a.parquet",), columns=("id", "no")),
            "columns names the column",
        ),
        (LoadJob(name="a", sources=("a.txt",)), "give a format"),
        (LoadJob(name="a", sources=("a.csv",), sql="SELECT 1", key="id"), "sql says"),
        (LoadJob(name="a", sources=("a.csv",), value="n", columns=("id",)), "one or the other"),
    ],
)
def test_what_is_wrong_is_seen_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: LoadJob, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path)
    with pytest.raises(Invalid, match=said):
        check_load(job, {})


@pytest.mark.parametrize(
    "job",
    [
        LoadJob(name="a", sources=("a.csv",), key="id"),
        LoadJob(name="a", sources=("a.csv",), key="it", options={"header": "false"}),
        LoadJob(name="a", sources=("odd.csv",), key="it"),
        LoadJob(name="a", sources=("a.csv", "semi.csv"), key="n"),
        LoadJob(name="a", sources=("a.parquet",), key="id"),
        LoadJob(name="a", sources=("a.jsonl",), key="it"),
        LoadJob(name="a", sources=("s3a://b/c.csv", "{a,b}.csv"), key="it"),
        LoadJob(name="a", sources=(".",), format="csv", key="it"),
    ],
)
def test_what_spark_alone_knows_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: LoadJob
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path)
    check_load(job, {"spark.master": "local[2]"})


def test_files_of_other_machines_are_not_looked_for() -> None:
    check_load(LoadJob(name="a", sources=("b.csv",)), {"spark.master": "spark://there:7077"})


def fill(folder: Path) -> None:
    (folder / "a.csv").write_text("id,n\r\n1,2\r\n")
    (folder / "semi.csv").write_text("id;x\n1;2\n")
    (folder / "odd.csv").write_text("id,id\n1,2\n")
    (folder / "a.jsonl").write_text("{}\n")
    (folder / "a.txt").touch()
    pq.write_table(pa.table({"id": [1]}), folder / "a.parquet")
