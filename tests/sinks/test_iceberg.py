"""Iceberg tables: other writers and readers, columns, zombies, and what is cleaned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from millrace import limits
from millrace.errors import Invalid, Retry
from millrace.sinks.base import DELETE
from millrace.sinks.iceberg import Iceberg, local, read_flow, write_commit
from millrace.sinks.lake import FlowState
from millrace.testing.check_sink import (
    FLOW,
    SCHEMA,
    SinkChange,
    SinkRun,
    puts,
    span,
)
from tests.sinks.lakes.rig import LakeRig, lines_of

NAME = "shop.orders"


def _append(path: Path) -> SinkRun:
    return SinkRun(LakeRig(Iceberg(path=str(path), table=NAME)))


def _upsert(path: Path, lanes: int = 0) -> SinkRun:
    sink = Iceberg(path=str(path), table=NAME, mode="upsert", key=("key",), lanes=lanes)
    return SinkRun(LakeRig(sink))


@contextmanager
def _catalog(path: Path) -> Iterator[SqlCatalog]:
    """The catalog, as anybody opens it."""
    path.mkdir(exist_ok=True)
    uri, warehouse = f"sqlite:///{path}/catalog.db", f"file://{path}"
    catalog = SqlCatalog("millrace", uri=uri, warehouse=warehouse)
    yield catalog
    catalog.engine.dispose()


def _table(path: Path) -> Table:
    with _catalog(path) as catalog:
        return catalog.load_table(NAME)


def _others(path: Path, *keys: str) -> None:
    """Rows that somebody else writes, into a table of their own if there is none."""
    rows = pa.table({"key": keys, "value": [f"{key} of others" for key in keys]})
    with _catalog(path) as catalog:
        catalog.create_namespace_if_not_exists("shop")
        if not catalog.table_exists(NAME):
            catalog.create_table(NAME, rows.schema)
        catalog.load_table(NAME).append(rows)


def test_a_table_of_others_is_appended_to(tmp_path: Path) -> None:
    _others(tmp_path, "a")
    run = _append(tmp_path)
    run.carry(span(0, 5), puts("b"))
    found = _table(tmp_path).scan(selected_fields=("key", "value", "seq")).to_arrow().to_pylist()
    assert sorted(found, key=str) == [
        {"key": "a", "value": "a of others", "seq": None},
        {"key": "b", "value": "b1", "seq": 1},
    ]


def test_a_table_of_others_is_laid_out_by_key(tmp_path: Path) -> None:
    _others(tmp_path, "a", "b", "c")
    run = _upsert(tmp_path)
    run.carry(span(0, 5), [*puts("a"), SinkChange("b", None, DELETE, 2)])
    found = _table(tmp_path).scan(selected_fields=("key", "value")).to_arrow().to_pylist()
    assert {(line["key"], line["value"]) for line in found} == {("a", "a1"), ("c", "c of others")}
    _others(tmp_path, "d")
    run.carry(span(5, 6), puts("d"))
    assert {row[:2] for row in run.rig.rows()} == {
        ("a", "a1"),
        ("c", "c of others"),
        ("d", "d1"),
    }


def test_what_others_changed_meanwhile_is_staged_again(tmp_path: Path) -> None:
    run = _upsert(tmp_path, lanes=1)
    run.carry(span(0, 5), puts("a"))
    staged = run.stage_all(span(5, 6), puts("a", value="new"))
    other = SinkRun(run.rig, "other/sink")
    other.carry(span(0, 1), puts("b"))
    with pytest.raises(Retry, match="somebody else has changed"):
        run.commit(span(5, 6), staged)
    run.carry(span(5, 6), puts("a", value="new"))
    run.sees(puts("b"), puts("a", value="new"))


def test_who_looked_before_an_opening_commits_nothing(tmp_path: Path) -> None:
    run = _append(tmp_path)
    with _catalog(tmp_path) as catalog:
        before = catalog.load_table(NAME)
        assert read_flow(before, FLOW) == FlowState(run.held.fence, None)
        again = _append(tmp_path)
        with pytest.raises(CommitFailedException):
            write_commit(before, FLOW, FlowState(run.held.fence, span(0, 5).upto))
        now = catalog.load_table(NAME)
    assert read_flow(now, FLOW) == FlowState(again.held.fence, None)
    assert "commit.retry.num-retries" not in now.properties


@pytest.mark.parametrize("asked", ["partitions", "renamed"])
def test_what_we_do_not_do_is_refused(asked: str, tmp_path: Path) -> None:
    _others(tmp_path, "a")
    with _catalog(tmp_path) as catalog:
        table = catalog.load_table(NAME)
        if asked == "partitions":
            with table.update_spec() as spec:
                spec.add_identity("key")
        else:
            with table.update_schema() as schema:
                schema.rename_column("value", "worth")
    with pytest.raises(Invalid, match=r"partitioned by|was renamed"):
        _upsert(tmp_path)


def test_files_lie_in_folders() -> None:
    for address in ("file:///lake/a b", "file:/lake/a b", "/lake/a b"):
        assert local(address) == Path("/lake/a b")
    for address in ("s3://lake/orders", "file://host/lake"):
        with pytest.raises(Invalid, match="is no folder"):
            local(address)


def test_a_table_has_a_name_and_a_space() -> None:
    for name in ("orders", "", ".orders", "shop."):
        with pytest.raises(Invalid, match=r"shop\.orders"):
            Iceberg(path="lake", table=name)


def test_new_columns_are_added_or_refused(tmp_path: Path) -> None:
    _append(tmp_path).carry(span(0, 5), puts("a"))
    wider = SCHEMA.append(pa.field("size", pa.uint16()))
    with pytest.raises(Invalid, match="has no column size"):
        Iceberg(path=str(tmp_path), table=NAME, evolve=False).check(wider)
    sink = Iceberg(path=str(tmp_path), table=NAME)
    sink.check(wider)
    sink.open("other/sink", wider)
    assert lines_of(sink, ["key", "size"]) == [{"key": "a", "size": None}]
    with pytest.raises(Invalid, match="cast it"):
        sink.check(SCHEMA.set(2, pa.field("value", pa.float64())))


def test_a_catalog_may_be_named(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/elsewhere.db"
    rig = LakeRig(Iceberg(path=str(tmp_path / "lake"), table=NAME, catalog={"uri": uri}))
    run = SinkRun(rig)
    run.carry(span(0, 5), puts("a"))
    run.sees(puts("a"))
    assert (tmp_path / "elsewhere.db").exists()
    assert not (tmp_path / "lake" / "catalog.db").exists()


def test_old_snapshots_of_ours_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LAKE_SNAPSHOTS", 3)
    _others(tmp_path, "a")
    run = _append(tmp_path)
    for at in range(7):
        run.carry(span(at, at + 1), puts(f"k{at}"))
    kept = _table(tmp_path).snapshots()
    assert 3 < len(kept) <= 7
    told = [{} if each.summary is None else each.summary.additional_properties for each in kept]
    assert sum(f"millrace.flow.{FLOW}" not in each for each in told) == 1
    assert len(_table(tmp_path).scan().to_arrow()) == 8
    assert _append(tmp_path).at == span(6, 7).upto


def test_files_that_nothing_names_are_deleted_when_they_are_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _upsert(tmp_path, lanes=1)
    run.carry(span(0, 5), puts("a"))
    counted = set(tmp_path.rglob("*.parquet"))
    run.stage_all(span(5, 6), puts("b"))
    run.sink.clean(run.held)
    run.sink.clean(run.held)
    assert set(tmp_path.rglob("*.parquet")) > counted
    monkeypatch.setattr(limits, "LAKE_STAGED_SECONDS", -1)
    run.sink.clean(run.held)
    assert set(tmp_path.rglob("*.parquet")) == counted
    run.carry(span(5, 6), puts("a", value="new"))
    run.sees(puts("a", value="new"))


def test_a_catalog_that_is_gone_is_told(tmp_path: Path) -> None:
    run = _append(tmp_path)
    (tmp_path / "catalog.db").unlink()
    with pytest.raises(Retry, match="does not answer"):
        run.carry(span(0, 5), puts("a"))
