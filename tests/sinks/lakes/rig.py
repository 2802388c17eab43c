"""Tables in folders, as the suite of sinks and a reader see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from millrace.sinks.base import Readable, Sink
from millrace.sinks.kinds import make_sink
from millrace.testing.check_sink import Row


class Lake(Sink, Readable, Protocol):
    """What all of them are."""


LAKES = (
    ("delta", "append"),
    ("delta", "upsert"),
    ("iceberg", "append"),
    ("iceberg", "upsert"),
    ("parquet", "append"),
)
"""Kinds and modes."""

NAMES = [f"{kind}-{mode}" for kind, mode in LAKES]


def make_lake(kind: str, mode: str, path: Path, **settings: object) -> Lake:
    """A sink on a folder; the key of an upserted one is the column `key`."""
    if mode == "upsert":
        settings = {"mode": mode, "key": ("key",), **settings}
    if kind == "iceberg":
        settings = {"table": "shop.orders", **settings}
    made: Lake = make_sink(kind, {"path": str(path), **settings})  # type: ignore[assignment]
    return made


class LakeRig:
    """A table, read back by its sink."""

    is_early = False

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    @property
    def sink(self) -> Sink:
        return self._lake

    def rows(self) -> Iterator[Row]:
        for line in lines_of(self._lake, ["key", "value", "op"]):
            yield Row(str(line["key"]), line["value"], str(line.get("op") or "put"))

    def close(self) -> None:
        self._lake.close()


def lines_of(lake: Lake, columns: Sequence[str]) -> list[dict[str, str | None]]:
    """What is in a table."""
    batches: Iterator[pa.RecordBatch] = lake.rows(columns)
    return [line for batch in batches for line in batch.to_pylist()]
