"""Delta tables: other writers and readers, columns, and what is cleaned."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from millrace import limits
from millrace.errors import Invalid, Refused, Retry
from millrace.sinks.base import DELETE, Task
from millrace.sinks.delta import Delta, read_flow, write_commit
from millrace.sinks.lake import FlowState
from millrace.testing.check_sink import (
    SCHEMA,
    SinkChange,
    SinkRun,
    puts,
    span,
)
from tests.sinks.lakes.rig import LakeRig, lines_of


def _append(path: Path) -> SinkRun:
    return SinkRun(LakeRig(Delta(path=str(path))))


def _upsert(path: Path, lanes: int = 0) -> SinkRun:
    return SinkRun(LakeRig(Delta(path=str(path), mode="upsert", key=("key",), lanes=lanes)))


def _others(path: Path, *keys: str, partition_by: str | None = None) -> None:
    """A table that somebody else made."""
    rows = pa.table({"key": keys, "value": [f"{key} of others" for key in keys]})
    write_deltalake(path, rows, mode="append", schema_mode="merge", partition_by=partition_by)


# --- Other writers ------------------------------------------------------------------------------


def test_a_table_of_others_is_appended_to(tmp_path: Path) -> None:
    _others(tmp_path, "a")
    run = _append(tmp_path)
    run.carry(span(0, 5), puts("b"))
    found = lines_of(Delta(path=str(tmp_path)), ["key", "value", "seq"])
    assert sorted(found, key=str) == [
        {"key": "a", "value": "a of others", "seq": None},
        {"key": "b", "value": "b1", "seq": 1},
    ]


def test_a_table_of_others_is_laid_out_by_key(tmp_path: Path) -> None:
    _others(tmp_path, "a", "b", "c")
    run = _upsert(tmp_path)
    assert len(DeltaTable(tmp_path).file_uris()) == 3
    run.carry(span(0, 5), [*puts("a"), SinkChange("b", None, DELETE, 2)])
    assert {row[:2] for row in run.rig.rows()} == {("a", "a1"), ("c", "c of others")}


def test_other_lanes_are_laid_out_anew(tmp_path: Path) -> None:
    rows = puts(*(f"k{at}" for at in range(30)))
    _upsert(tmp_path).carry(span(0, 30), rows)
    run = _upsert(tmp_path, lanes=3)
    assert len(DeltaTable(tmp_path).file_uris()) == 3
    assert run.at == span(0, 30).upto
    run.carry(span(30, 31), puts("k7", value="new", after=30))
    run.sees(rows, puts("k7", value="new", after=30))


def test_rows_that_others_append_are_replaced_too(tmp_path: Path) -> None:
    run = _upsert(tmp_path)
    run.carry(span(0, 5), puts("a"))
    _others(tmp_path, "b")
    run.carry(span(5, 6), puts("b"))
    run.sees(puts("a"), puts("b"))


def test_an_append_goes_on_while_others_write(tmp_path: Path) -> None:
    run = _append(tmp_path)
    run.carry(span(0, 5), puts("a"))
    run.carry(span(5, 6), puts("b"))
    staged = run.stage_all(span(6, 7), puts("c"))
    assert DeltaTable(tmp_path).optimize.compact()["numFilesRemoved"] == 2
    run.commit(span(6, 7), staged)
    run.sees(puts("a"), puts("b"), puts("c"))


def test_what_others_rewrote_meanwhile_is_staged_again(tmp_path: Path) -> None:
    run = _upsert(tmp_path, lanes=1)
    for at in range(2):
        run.carry(span(at, at + 1), puts(f"k{at}"))
    staged = run.stage_all(span(2, 3), puts("k0", value="new"))
    DeltaTable(tmp_path).optimize.compact()
    with pytest.raises(Retry, match="somebody else has changed"):
        run.commit(span(2, 3), staged)
    again = _upsert(tmp_path, lanes=1)
    assert again.at == span(1, 2).upto
    again.carry(span(2, 3), puts("k0", value="new"))
    again.sees(puts("k0"), puts("k1"), puts("k0", value="new"))


def test_two_flows_that_meet_in_a_lane(tmp_path: Path) -> None:
    rig = LakeRig(Delta(path=str(tmp_path), mode="upsert", key=("key",), lanes=1))
    one, two = SinkRun(rig, "one/sink"), SinkRun(rig, "two/sink")
    staged = two.stage_all(span(0, 5), puts("a", value="two"))
    one.carry(span(0, 5), puts("a", value="one"))
    with pytest.raises(Retry, match="somebody else has changed"):
        two.commit(span(0, 5), staged)
    two.carry(span(0, 5), puts("a", value="two"))
    two.sees(puts("a", value="two"))


@pytest.mark.parametrize("asked", ["partitions", "constraint", "append only"])
def test_what_we_do_not_do_is_refused(asked: str, tmp_path: Path) -> None:
    _others(tmp_path, "a", partition_by="key" if asked == "partitions" else None)
    table = DeltaTable(tmp_path)
    if asked == "constraint":
        table.alter.add_constraint({"short": "value <> 'x'"})
    elif asked == "append only":
        table.alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(Invalid, match=r"asks for|is partitioned by"):
        _upsert(tmp_path)


# --- Columns ------------------------------------------------------------------------------------


def test_new_columns_are_added(tmp_path: Path) -> None:
    _append(tmp_path).carry(span(0, 5), puts("a"))
    sink = Delta(path=str(tmp_path))
    wider = SCHEMA.append(pa.field("size", pa.uint16()))
    sink.check(wider)
    sink.open("other/sink", wider)
    assert DeltaTable(tmp_path).to_pyarrow_dataset().schema.field("size").type == pa.int32()
    assert [line["size"] for line in lines_of(sink, ["size"])] == [None]


def test_new_columns_are_refused_where_the_table_stays_as_it_is(tmp_path: Path) -> None:
    _append(tmp_path)
    wider = SCHEMA.append(pa.field("size", pa.int64()))
    with pytest.raises(Invalid, match="has no column size") as caught:
        Delta(path=str(tmp_path), evolve=False).check(wider)
    assert caught.value.field == "size"


def test_a_column_of_another_type_is_refused(tmp_path: Path) -> None:
    _append(tmp_path)
    other = SCHEMA.set(2, pa.field("value", pa.float64()))
    with pytest.raises(Invalid, match="cast it") as caught:
        Delta(path=str(tmp_path)).check(other)
    assert caught.value.field == "value"


# --- Boundaries ---------------------------------------------------------------------------------


def test_the_boundary_outlives_the_commits_that_told_it(tmp_path: Path) -> None:
    run = _append(tmp_path)
    run.carry(span(0, 5), puts("a"))
    _others(tmp_path, "b")
    DeltaTable(tmp_path).create_checkpoint()
    for path in sorted((tmp_path / "_delta_log").glob("*.json"))[:-1]:
        path.unlink()
    again = _append(tmp_path)
    assert again.at == span(0, 5).upto
    assert again.held.fence == run.held.fence + 1


def test_who_looked_before_an_opening_commits_nothing(tmp_path: Path) -> None:
    run = _append(tmp_path)
    before = DeltaTable(tmp_path)
    assert read_flow(before, run.flow) == FlowState(run.held.fence, None)
    again = _append(tmp_path)
    with pytest.raises(CommitFailedError):
        write_commit(before, [], run.flow, FlowState(run.held.fence, span(0, 5).upto))
    assert read_flow(DeltaTable(tmp_path), run.flow) == FlowState(again.held.fence, None)


def test_the_numbers_of_others_see_how_far_it_is(tmp_path: Path) -> None:
    run = _append(tmp_path)
    run.carry(span(0, 5), puts("a"))
    table = DeltaTable(tmp_path)
    assert table.transaction_version(run.flow) == 5
    assert '"seqs": [5]' in table.history(1)[0]["millrace"]


def test_a_property_that_was_taken_away_is_missed(tmp_path: Path) -> None:
    run = _append(tmp_path)
    run.carry(span(0, 5), puts("a"))
    log = sorted((tmp_path / "_delta_log").glob("*.json"))
    told = next(path for path in log if "millrace.places." in path.read_text())
    told.write_text(told.read_text().replace("millrace.places.", "millrace.lost."))
    with pytest.raises(Refused, match="is gone, which says how far"):
        _append(tmp_path)


# --- Files --------------------------------------------------------------------------------------


def test_what_a_commit_says_of_its_columns_is_true(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"text": "b" * 100, "raw": b"1", "when": datetime(2020, 1, 1, 1, 1, 1, 123456, UTC)},
        {"text": "c", "plain": datetime(2021, 5, 5, 5, 5, 5, 999999), "flag": True, "real": 1.5},
        {"text": "ä" * 40, "day": date(2022, 2, 2), "price": Decimal("1.25"), "real": 0.5},
        {"text": "\U0010ffff" * 40},
        {"text": "d", "real": math.inf},
    ]
    kinds: dict[str, pa.DataType] = {
        "text": pa.string(),
        "raw": pa.binary(),
        "when": pa.timestamp("us", "UTC"),
        "plain": pa.timestamp("us"),
        "flag": pa.bool_(),
        "real": pa.float64(),
        "day": pa.date32(),
        "price": pa.decimal128(10, 2),
        "number": pa.int64(),
        "nothing": pa.string(),
    }
    schema, sink = pa.schema(list(kinds.items())), Delta(path=str(tmp_path))
    held = sink.open("a/b", schema)
    for at, line in enumerate(lines):
        batch = pa.RecordBatch.from_pylist([{**line, "number": at}], schema)
        token = sink.stage(Task(held, span(at, at + 1), f"{at}"), [batch])
        held = sink.commit(held, span(at, at + 1), [token])
    table = DeltaTable(tmp_path)
    said = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert [line["num_records"] for line in said] == [1] * 5
    assert {line["max.text"] for line in said} == {"b" * 31 + "c", "c", "ä" * 31 + "å", None}
    assert sum(line["null_count.nothing"] is None for line in said) == 2
    for at, line in enumerate(lines):
        for name, value in line.items():
            rows = table.to_pyarrow_dataset().to_table(filter=ds.field(name) == value)
            assert rows["number"].to_pylist() == [at], name


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_texts_that_are_none_are_written_and_nothing_is_said_of_their_ends(
    mode: Literal["append", "upsert"], tmp_path: Path
) -> None:
    """Spark makes such texts of bytes: `cast(value AS string)`."""
    raw = pa.array([b"\x95\xff", b"ok"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), text], ["seq", "word"])
    sink = Delta(path=str(tmp_path), mode=mode, key=("word",) if mode == "upsert" else ())
    held = sink.open("f/s", batch.schema)
    for at in range(2):
        staged = sink.stage(Task(held, span(at, at + 1), f"{at}"), [batch])
        held = sink.commit(held, span(at, at + 1), [staged])
    words = pa.concat_arrays([each.column("word") for each in sink.rows(["word"])])
    found = Counter(words.view(pa.binary()).to_pylist())
    assert found == Counter(raw.to_pylist() * (2 if mode == "append" else 1))


def test_a_lane_has_few_files_however_small_the_spans(tmp_path: Path) -> None:
    run = _upsert(tmp_path, lanes=1)
    rows = [puts(f"k{at}") for at in range(2 * limits.LAKE_SMALL_FILES)]
    for at, changes in enumerate(rows):
        run.carry(span(at, at + 1), changes)
    assert len(DeltaTable(tmp_path).file_uris()) <= limits.LAKE_SMALL_FILES + 1
    run.sees(*rows)


def test_small_files_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LAKE_COMPACT_FILES", 3)
    run = _append(tmp_path)
    for at in range(3):
        run.carry(span(at, at + 1), puts(f"k{at}"))
    run.sink.clean(run.held)
    assert len(DeltaTable(tmp_path).file_uris()) == 1
    run.carry(span(3, 4), puts("last"))
    run.sees(*(puts(f"k{at}") for at in range(3)), puts("last"))


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_what_was_never_committed_is_deleted_when_it_is_old(mode: str, tmp_path: Path) -> None:
    run = _append(tmp_path) if mode == "append" else _upsert(tmp_path)
    run.carry(span(0, 5), puts("a"))
    counted = set(tmp_path.rglob("*.parquet"))
    run.stage_all(span(5, 6), puts("b"))
    orphans = set(tmp_path.rglob("*.parquet")) - counted
    assert orphans
    run.sink.clean(run.held)
    assert all(path.exists() for path in orphans)
    old = time.time() - limits.LAKE_STAGED_SECONDS - 60
    for path in (*orphans, *counted):
        os.utime(path, (old, old))
    run.sink.clean(run.held)
    assert not any(path.exists() for path in orphans)
    run.sees(puts("a"))


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    run = _append(tmp_path / "table")
    (tmp_path / "table" / "_delta_log").rename(tmp_path / "elsewhere")
    with pytest.raises(Retry, match="does not answer"):
        run.carry(span(0, 5), puts("a"))
