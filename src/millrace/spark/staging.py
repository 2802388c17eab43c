"""Staging in a Spark task: rows stay invisible until the driver publishes them.

Rule 1: a stage belongs to one attempt of one task. Stages of an abandoned attempt are not in any
message of Spark, and are never published.

Rule 2: rows keep the order that they have in the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from millrace import limits, sync
from millrace.errors import Full
from millrace.spark.contract import cut, to_rows


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """The stages of one task."""

    stages: tuple[str, ...]
    rows: int


def stage_rows(queue: sync.Queue, prefix: str, batches: Iterable[pa.RecordBatch]) -> StagedRows:
    """Stage the rows of a task under names with this prefix; return once they are durable."""
    writing = _Writing(queue, f"{prefix}{uuid4().hex[:12]}")
    with ThreadPoolExecutor(1) as lane:
        # The next part is made while the previous one is sent.
        under: Future[None] | None = None
        for part in _parts(batches):
            if under is not None:
                under.result()
            under = lane.submit(writing.put, part)
        if under is not None:
            under.result()
    return StagedRows(tuple(writing.stages), writing.total)


class _Writing:
    """The stages of one attempt: a full one is followed by another."""

    def __init__(self, queue: sync.Queue, name: str) -> None:
        self._queue = queue
        self._name = name
        self._rows = 0
        self._bytes = 0
        self._calls = 0
        self.stages: list[str] = []
        self.total = 0

    def put(self, part: pa.RecordBatch) -> None:
        rows, size = part.num_rows, part.nbytes
        is_full = (
            self._rows + rows > limits.STAGE_ROWS_MAX
            or self._bytes + 2 * size > limits.STAGE_BYTES_MAX
        )
        if not self.stages or is_full:
            self.stages.append(f"{self._name}.{len(self.stages)}")
            self._rows = self._bytes = self._calls = 0
        # Numbered, so that a call whose response was lost can be repeated.
        self._calls += 1
        try:
            self._queue.stage(self.stages[-1], part, number=self._calls)
        except Full as error:
            if error.field != "stage":
                raise
            raise Full(
                f"{error.message}. Each task of a write has one: write with fewer tasks, say by "
                "coalesce",
                field="stage",
                limit=error.limit,
            ) from error
        self._rows += rows
        self._bytes += size
        self.total += rows


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combine or split batches into parts of a suitable size for one call."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    most, large = STAGE_CALL_ROWS_MAX, STAGE_CALL_BYTES
    for batch in batches:
        if not batch.num_rows:
            continue
        made = to_rows(batch)
        if waiting and (rows + made.num_rows > most or size + made.nbytes > large):
            yield from _joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(made)
        rows, size = rows + made.num_rows, size + made.nbytes
    if waiting:
        yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) > 1:
        table = pa.Table.from_batches(batches).combine_chunks()
        batches = table.to_batches()
    for batch in batches:
        yield from cut(batch, rows=STAGE_CALL_ROWS_MAX, size=STAGE_CALL_BYTES)


# --- Limits of writes by Spark tasks -------------------------------------------------------------

STAGE_CALL_BYTES = 12 * 1024 * 1024
"""Bytes of one stage call of a task: large, so that the cost per row is small, and small enough for
the memory of a worker and for a record of the log.
"""

STAGE_CALL_ROWS_MAX = 65_536
"""Maximum number of rows of one stage call; the same as of a publish."""
