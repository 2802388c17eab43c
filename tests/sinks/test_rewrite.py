"""Rows that take the place of others, in files that never change."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace import limits
from millrace.errors import Invalid
from millrace.sinks.parts import StagedFiles, read_part
from millrace.sinks.rewrite import Files, Layout, lay_out, newest, stage_lanes, still_so

KINDS: dict[str, pa.DataType] = {"a": pa.string(), "b": pa.int64(), "seq": pa.int64()}
SCHEMA = pa.schema(list(KINDS.items()))
LAYOUT = Layout(("a", "b"), 3)

Line = dict[str, object]


def _nothing(_: object) -> str:
    return ""


def _batch(lines: list[Line]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(lines, SCHEMA.append(pa.field("op", pa.string())))


def _apply(files: Files, staged: StagedFiles) -> Files:
    sizes = {path: size for path, size in files.sizes.items() if path not in staged.removed}
    sizes |= {part.path: part.size for part in staged.added}
    return Files.of(files.root, files.layout, sizes)


def _lines(files: Files) -> list[Line]:
    return [
        line
        for path in files.sizes
        for batch in read_part(files.root / path)
        for line in batch.to_pylist()
    ]


@pytest.mark.parametrize("spool_bytes", [limits.LAKE_SPOOL_BYTES, 1], ids=["memory", "disk"])
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_replaced_as_in_a_dict(
    seed: int, spool_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LAKE_SPOOL_BYTES", spool_bytes)
    chance = random.Random(seed)
    files = Files.of(tmp_path, LAYOUT, {})
    model: dict[tuple[object, object], int] = {}
    seq = 0
    for _ in range(12):
        lines: list[Line] = []
        for _ in range(chance.choice([1, 5, 40])):
            seq += 1
            key = chance.choice(["x", "y", ""]), chance.choice(range(9))
            op = chance.choice(["put", "put", None, "delete"])
            lines.append({"a": key[0], "b": key[1], "seq": seq, "op": op})
            model.pop(key, None)
            if op != "delete":
                model[key] = seq
        chance.shuffle(lines)
        batches = [_batch(lines[at : at + 7]) for at in range(0, len(lines), 7)]
        staged = stage_lanes(batches, files, SCHEMA, _nothing)
        assert still_so([staged], files)
        files = _apply(files, staged)
        assert still_so([staged], files) is not bool(staged.added or staged.removed)
        found = {(line["a"], line["b"]): line["seq"] for line in _lines(files)}
        assert found == model
        assert sum(1 for _ in _lines(files)) == len(model)
        assert not files.strangers


def test_rows_without_a_key_that_a_table_has_already_stay(tmp_path: Path) -> None:
    files = Files.of(tmp_path, LAYOUT, {})
    there: list[Line] = [{"a": a, "b": b, "seq": 0} for a, b in ((None, 1), ("x", None), ("x", 1))]
    pq.write_table(pa.Table.from_pylist(there, SCHEMA), tmp_path / "old.parquet")
    files = Files.of(tmp_path, LAYOUT, {"old.parquet": (tmp_path / "old.parquet").stat().st_size})
    files = _apply(files, lay_out(files, SCHEMA, _nothing))
    with pytest.raises(Invalid, match="column 'b' of the key is null in the row of seq 7"):
        stage_lanes([_batch([{"a": "x", "b": None, "seq": 7}])], files, SCHEMA, _nothing)
    lines: list[Line] = [{"a": "x", "b": 1, "seq": 8, "op": "put"}]
    files = _apply(files, stage_lanes([_batch(lines)], files, SCHEMA, _nothing))
    found = {(line["a"], line["b"]): line["seq"] for line in _lines(files)}
    assert found == {(None, 1): 0, ("x", None): 0, ("x", 1): 8}


def test_only_files_that_hold_a_key_are_rewritten(tmp_path: Path) -> None:
    layout = Layout(("b",), 1)
    files = Files.of(tmp_path, layout, {})
    for at in range(4):
        lines: list[Line] = [{"a": "x", "b": at + 10 * each, "seq": at} for each in range(9)]
        files = _apply(files, stage_lanes([_batch(lines)], files, SCHEMA, _nothing))
    assert len(files.sizes) == 4
    staged = stage_lanes([_batch([{"b": 32, "seq": 9}])], files, SCHEMA, _nothing)
    assert len(staged.removed) == len(staged.added) == 1
    assert staged.added[0].rows == 9
    staged = stage_lanes([_batch([{"b": 99, "seq": 9, "op": "delete"}])], files, SCHEMA, _nothing)
    assert not staged.added
    assert not staged.removed


def test_the_last_of_a_key_is_the_newest_where_there_is_no_seq() -> None:
    rows = pa.table({"key": ["a", "b", "a"], "value": [1, 2, 3]})
    assert newest(rows, ["key"]).sort_by("key").to_pylist() == [
        {"key": "a", "value": 3},
        {"key": "b", "value": 2},
    ]


def test_a_lane_that_came_twice_is_noticed(tmp_path: Path) -> None:
    files = Files.of(tmp_path, LAYOUT, {})
    staged = [
        stage_lanes([_batch([{"a": "x", "b": 1, "seq": at}])], files, SCHEMA, _nothing)
        for at in range(2)
    ]
    with pytest.raises(Invalid, match="two calls of stage"):
        still_so(staged, files)


def test_files_of_others_are_of_no_lane() -> None:
    layout = Layout(("a",), 16)
    assert layout.lane_of(f"{layout.home}/{layout.prefix(7)}part-1.parquet") == 7
    for path in ("part-1.parquet", "lane-16-00000000/0007-part-1.parquet", "a=1/7-x.parquet"):
        assert layout.lane_of(path) is None
    assert Layout(("b",), 16).home != layout.home != Layout(("a",), 8).home
