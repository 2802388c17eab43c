"""One moment of a queue, in files and tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from millrace.batch_jobs.export import ExportJob, export
from millrace.batch_jobs.job_context import JobContext
from millrace.errors import CursorExpired, Exists
from millrace.sinks.kinds import parse_sink
from millrace.sinks.parquet import manifest

pytestmark = pytest.mark.spark


def test_an_export_goes_on_where_it_ended(site: JobContext, tmp_path: Path) -> None:
    queue = site.m.queue("many", shards=2)
    queue.publish_many([b"%d" % at for at in range(30)])
    job = ExportJob(name="copy", sink=parse_sink(f"parquet:{tmp_path}/out"), view="log")
    done = export(site, queue, job)
    assert done.rows == 30
    assert done.boundary.number == 30
    assert export(site, queue, job).rows == 0
    queue.publish(b"30")
    assert export(site, queue, job).rows == 1
    table = ds.dataset(manifest(tmp_path / "out")).to_table()
    found = sorted(int(str(value, "ascii")) for value in table["value"].to_pylist() if value)
    assert found == list(range(31))


def test_the_latest_of_each_key(site: JobContext, tmp_path: Path) -> None:
    queue = site.m.queue("keyed", keyed=True)
    for key, body in ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", None)):
        queue.publish(body, key=key)
    sink = parse_sink(f"delta:{tmp_path}/lake")
    job = ExportJob(name="keyed", sink=sink, view="latest", columns=("key", "value"))
    assert export(site, queue, job).rows == 2
    assert export(site, queue, job).rows == 0
    queue.publish(b"4", key=b"b")
    with pytest.raises(Exists, match="into another place"):
        export(site, queue, job)
    rows = DeltaTable(tmp_path / "lake").to_pyarrow_table().to_pylist()
    assert sorted((row["key"], row["value"]) for row in rows) == [(b"a", b"3"), (b"b", b"2")]


def test_bodies_are_parsed_and_bad_ones_kept_aside(site: JobContext, tmp_path: Path) -> None:
    queue = site.m.queue("typed")
    queue.publish_many([b'{"id": 1, "note": "a"}', b"no JSON"])
    sink = parse_sink(f"delta:{tmp_path}/lake")
    job = ExportJob(name="typed", sink=sink, schema="id bigint, note string", columns=("seq",))
    assert export(site, queue, job).rows == 2
    rows = DeltaTable(tmp_path / "lake").to_pyarrow_table().to_pylist()
    assert sorted(rows, key=lambda row: int(row["seq"])) == [
        {"seq": 1, "id": 1, "note": "a", "_corrupt": None},
        {"seq": 2, "id": None, "note": None, "_corrupt": b"no JSON"},
    ]


def test_deletes_that_have_gone_since_the_last_export_are_noticed(
    site: JobContext, tmp_path: Path
) -> None:
    queue = site.m.queue("emptied", keyed=True)
    queue.publish(b"1", key=b"a")
    queue.publish(b"1", key=b"b")
    sink = parse_sink(f"delta:{tmp_path}/lake?mode=upsert&key=key")
    job = ExportJob(name="emptied", sink=sink, columns=("key", "value", "op", "seq"))
    assert export(site, queue, job).rows == 2
    queue.publish(None, key=b"a")
    assert export(site, queue, job).rows == 1
    # As when a delete has become too old.
    queue.publish(None, key=b"b")
    queue.purge()
    queue.publish(b"2", key=b"c")
    with pytest.raises(CursorExpired, match="export under another name into a new place"):
        export(site, queue, job)
    assert queue.cursors() == {}
