"""Files of tables: cut to size, never in each other's way."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from millrace import limits
from millrace.errors import Retry
from millrace.sinks.parts import (
    PartFile,
    PartWriter,
    StagedFiles,
    pack,
    read_part,
    sweep,
    unpack,
    write_alone,
)

SCHEMA = pa.schema([("a", pa.int64())])


def test_files_are_cut_to_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LAKE_GROUP_ROWS", 10)
    batches = [pa.RecordBatch.from_pydict({"a": [at] * 5}) for at in range(8)]
    with PartWriter(tmp_path, "below", SCHEMA, bytes_max=1) as writer:
        for batch in batches:
            writer.write(batch)
        parts = writer.close()
    assert [part.rows for part in parts] == [10] * 4
    assert [part.size for part in parts] == [
        (tmp_path / part.path).stat().st_size for part in parts
    ]
    found = [
        row for part in parts for batch in read_part(tmp_path / part.path) for row in batch["a"]
    ]
    assert [row.as_py() for row in found] == [at for at in range(8) for _ in range(5)]


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    with PartWriter(tmp_path, "", SCHEMA) as writer:
        writer.write(pa.RecordBatch.from_pydict({"a": pa.array([], pa.int64())}))
        assert not writer.close()
    assert not list(tmp_path.iterdir())


def test_what_is_long_is_kept_beside_the_table(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    short = StagedFiles((PartFile("a", 1, 2, "{}"),), ("b",), {3: "c"})
    long = StagedFiles(removed=tuple(f"part {at}" for at in range(1000)))
    tokens = [pack(tmp_path, each) for each in (short, long)]
    assert all(len(token) <= limits.LAKE_TOKEN_BYTES for token in tokens)
    assert unpack(tmp_path, tokens) == [short, long]
    (tmp_path / "a").write_bytes(b"other")
    with pytest.raises(Retry, match="stage the rows again"):
        unpack(tmp_path, tokens)


def test_a_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "below" / "name"
    assert write_alone(path, b"first")
    assert not write_alone(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]


def test_files_are_swept_when_nothing_named_them_for_long(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        path.touch()
    sweep(tmp_path, [one, two], 1000.0)
    sweep(tmp_path, [two], 1001.0 + limits.LAKE_STAGED_SECONDS / 2)
    assert one.exists()
    sweep(tmp_path, [one, two], 1002.0 + limits.LAKE_STAGED_SECONDS)
    assert one.exists(), "it was named in between"
    assert not two.exists()
