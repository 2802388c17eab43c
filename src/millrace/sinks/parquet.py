"""A sink for Parquet files in a folder, with a transaction log of its own for committed files.

`stage` writes files; `commit` adds them to the log (`file_log.py`), with the boundary and the
fence. A reader gets the list of committed files from `manifest`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.errors import Invalid, Retry
from millrace.sinks.base import Held, Task
from millrace.sinks.boundary import Boundary, Span
from millrace.sinks.columns import added, asked, fitted, stored
from millrace.sinks.file_log import (
    LogEntry,
    Sum,
    add_entry,
    clean_log,
    read_log,
    schema_text,
)
from millrace.sinks.lake import FlowState, Lake, answers, is_next, no_table
from millrace.sinks.parts import (
    PartWriter,
    StagedFiles,
    drop_old,
    drop_packed,
    pack,
    read_part,
    unpack,
)

LAKE = "Parquet"


def manifest(path: str | Path) -> list[str]:
    """Return the committed files of a folder, for any reader of Parquet; other files were never
    committed.
    """
    root = Path(path).absolute()
    return [str(root / part.path) for part in read_log(root).files]


class Parquet(Lake, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows in Parquet files, append only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode != "append":
            raise Invalid(
                "files of Parquet are only added to; for mode = 'upsert' use delta or iceberg",
                field="mode",
            )

    def check(self, schema: pa.Schema) -> None:
        """Check that rows of this schema can be stored together with the existing ones."""
        self.check_rows(schema, LAKE)
        with answers(self.path):
            self._columns(read_log(self.root), schema)

    def open(self, flow: str, schema: pa.Schema) -> Held:
        """Take the flow over, by a log entry that raises its fence."""
        self.check_rows(schema, LAKE)
        with answers(self.path):
            for _ in range(limits.LAKE_COMMIT_TRIES):
                found = read_log(self.root)
                known = found.flows.get(flow, FlowState())
                columns = schema_text(self._columns(found, schema))
                entry = LogEntry(
                    flow,
                    known.fence + 1,
                    known.boundary,
                    schema="" if columns == found.schema else columns,
                )
                if add_entry(self.root, found, entry):
                    return Held(flow, entry.fence, entry.boundary)
        raise self.busy()

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        """Write files that the log does not refer to yet."""
        with answers(self.path):
            schema = read_log(self.root).columns()
            if schema is None:
                raise Retry(f"the log of {self.path} is gone; open the sink again", field="path")
            with PartWriter(self.root, "", schema) as writer:
                for batch in fitted(batches, schema):
                    writer.write(batch)
                return pack(self.root, StagedFiles(tuple(writer.close())))

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        """Add the files to the log, together with the boundary."""
        with answers(self.path):
            for _ in range(limits.LAKE_COMMIT_TRIES):
                found = read_log(self.root)
                known = found.flows.get(held.flow, FlowState())
                if not is_next(held, span, known):
                    return msgspec.structs.replace(held, boundary=known.boundary)
                parts = unpack(self.root, staged)
                files = tuple(part for each in parts for part in each.added)
                entry = LogEntry(held.flow, held.fence, span.upto, files)
                if add_entry(self.root, found, entry):
                    return msgspec.structs.replace(held, boundary=span.upto)
        raise self.busy()

    def clean(self, held: Held) -> None:
        """Delete old files that were never committed, and old log entries that a checkpoint
        includes.
        """
        with answers(self.path):
            now = time.time()
            # The folder is listed before the log is read, so that files committed in between are
            # kept.
            written = {path.name: path for path in self.root.glob("part-*.parquet")}
            for part in read_log(self.root).files:
                written.pop(part.path, None)
            drop_old(written.values(), now)
            drop_packed(self.root, now)
            clean_log(self.root, now)

    def close(self) -> None:
        """Do nothing, since no connection is kept."""

    def stands(self, flow: str) -> Boundary | None:
        """See `Asked.stands`."""
        with answers(self.path):
            return read_log(self.root).flows.get(flow, FlowState()).boundary

    def files(self) -> tuple[Sequence[str], pa.Schema]:
        """Return the committed files, and the columns of all of them."""
        with answers(self.path):
            found = read_log(self.root)
            columns = found.columns()
            if columns is None:
                raise no_table(self.path, LAKE)
            return [str(self.root / part.path) for part in found.files], columns

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the committed files; missing columns are null."""
        with answers(self.path):
            found = read_log(self.root)
            wanted = asked(found.columns() or pa.schema([]), columns)
            for part in found.files:
                yield from fitted(read_part(self.root / part.path, columns), wanted)

    def _columns(self, found: Sum, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the files from now on."""
        there = found.columns()
        if there is None:
            return stored(schema, LAKE)
        for field in added(there, schema, LAKE, evolve=self.evolve):
            there = there.append(field)
        return there
