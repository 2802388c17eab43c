"""A process that carries rows into a lake, and says what it is about to do.

Which rows there are is a function of their seqs, so that anybody can tell what must be in the
table: of every 50 keys some are put, put again, and deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from millrace.sinks.base import DELETE, PUT, Task
from millrace.sinks.lane import lanes_of
from millrace.testing.check_sink import (
    FLOW,
    SCHEMA,
    SinkChange,
    batch_of,
    span,
)
from tests.sinks.lakes.rig import make_lake

KEYS = 50
SPAN = 40
PARTS = 2


def changes(after: int, upto: int) -> list[SinkChange]:
    """The rows with these seqs."""
    return [
        SinkChange(f"k{seq * seq % KEYS}", None, DELETE, seq)
        if seq % 5 == 0
        else SinkChange(f"k{seq * seq % KEYS}", f"v{seq}", PUT, seq)
        for seq in range(after + 1, upto + 1)
    ]


def carry(kind: str, mode: str, path: str, end: int, told: Connection) -> None:
    """Carry what is missing up to a seq, span by span."""
    lake = make_lake(kind, mode, Path(path), **({"lanes": 4} if mode == "upsert" else {}))
    told.send("open")
    held = lake.open(FLOW, SCHEMA)
    at = 0 if held.boundary is None else held.boundary.number
    while at < end:
        upto = min(at + SPAN, end)
        told.send("stage")
        staged = [
            lake.stage(Task(held, span(at, upto), f"{held.fence}-{at}-{part}"), [batch_of(rows)])
            for part, rows in enumerate(_parted(changes(at, upto), lake.key, lake.lanes))
        ]
        told.send("commit")
        held = lake.commit(held, span(at, upto), staged)
        at = upto
    told.send("done")


def _parted(rows: Sequence[SinkChange], key: Sequence[str], lanes: int) -> list[list[SinkChange]]:
    homes = lanes_of(batch_of(rows), key, lanes).tolist() if lanes else range(len(rows))
    return [
        [row for row, home in zip(rows, homes, strict=True) if home % PARTS == part]
        for part in range(PARTS)
    ]
