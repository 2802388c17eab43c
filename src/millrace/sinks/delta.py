"""A sink for Delta tables: rows are appended, or replaced and deleted by key.

`stage` writes Parquet files into the table's folder, which no reader sees before `commit` adds them
to the table's log, in one commit with the boundary and the fence (`delta_log.py`).

Rule 1: a commit is checked against the version of the table that was read, and fails if another
commit was made since; then it is checked again.

Rule 2: with upserts, a lane that another writer has changed since it was staged is not committed:
it has to be staged again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import cast
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from millrace import limits
from millrace.errors import Invalid, Retry
from millrace.sinks.base import Held, Task
from millrace.sinks.boundary import Boundary, Span
from millrace.sinks.columns import added, asked, fitted, stored
from millrace.sinks.delta_log import (
    know_places,
    read_flow,
    stats_of,
    sync_log,
    tell_places,
    write_commit,
)
from millrace.sinks.lake import FlowState, Lake, answers, is_next, names_of, no_table
from millrace.sinks.parts import (
    PartWriter,
    StagedFiles,
    drop_packed,
    pack,
    read_part,
    unpack,
)
from millrace.sinks.rewrite import Files, lay_out, stage_lanes, still_so

LAKE = "Delta"

_MADE = {"delta.checkpointInterval": str(limits.LAKE_CHECKPOINT_COMMITS)}
"""Properties of tables that Millrace creates, for many small commits."""

_FEATURES = {"appendOnly", "changeDataFeed", "invariants", "timestampNtz"}
"""Table features of other writers that this sink supports."""


class Delta(Lake, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Delta table, written with the `deltalake` library."""

    def check(self, schema: pa.Schema) -> None:
        """Check that rows of this schema can be stored, in the existing table if there is one."""
        self.check_rows(schema, LAKE)
        with answers(self.path, DeltaError):
            table = self._find()
            if table is not None:
                self._check_table(table)
                added(_schema_of(table), self.columns(schema), LAKE, evolve=self.evolve)

    def open(self, flow: str, schema: pa.Schema) -> Held:
        """Take the flow over; the table is created, extended by columns, and partitioned into lanes
        as needed.
        """
        self.check_rows(schema, LAKE)
        with answers(self.path, DeltaError):
            for _ in range(limits.LAKE_COMMIT_TRIES):
                try:
                    return self._open(flow, schema)
                except CommitFailedError:
                    continue
        raise self.busy()

    def _open(self, flow: str, schema: pa.Schema) -> Held:
        table = self._find() or self._make(schema)
        self._check_table(table)
        missing = added(_schema_of(table), self.columns(schema), LAKE, evolve=self.evolve)
        if missing:
            table.alter.add_columns([Field.from_arrow(field) for field in missing])
            table = DeltaTable(self.root)
        if self.key:
            table = self._laid_out(table)
        state = read_flow(table, flow)
        state = FlowState(state.fence + 1, state.boundary)
        write_commit(table, [], flow, state)
        sync_log(table, self.root)
        return Held(flow, state.fence, state.boundary)

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        """Write files that the table does not refer to yet."""
        with answers(self.path, DeltaError):
            table = DeltaTable(self.root)
            if self.key:
                table = self._laid_out(table)
                staged = stage_lanes(batches, self._files(table), _schema_of(table), stats_of)
            else:
                schema = _schema_of(table)
                with PartWriter(self.root, "", schema, describe=stats_of) as writer:
                    for batch in fitted(batches, schema):
                        writer.write(batch)
                    staged = StagedFiles(tuple(writer.close()))
            return pack(self.root, staged)

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        """Add the files to the table's log, together with the boundary."""
        with answers(self.path, DeltaError):
            for _ in range(limits.LAKE_COMMIT_TRIES):
                table = DeltaTable(self.root)
                state = read_flow(table, held.flow)
                if not is_next(held, span, state):
                    return msgspec.structs.replace(held, boundary=state.boundary)
                parts = unpack(self.root, staged)
                try:
                    if not know_places(table, span.upto):
                        tell_places(table, span.upto)
                        table = DeltaTable(self.root)
                        if read_flow(table, held.flow) != state:
                            continue
                    actions = self._actions(table, parts)
                    write_commit(table, actions, held.flow, FlowState(held.fence, span.upto))
                except CommitFailedError:
                    continue
                sync_log(table, self.root)
                return msgspec.structs.replace(held, boundary=span.upto)
        raise self.busy()

    def clean(self, held: Held) -> None:
        """Compact small files, and delete unreferenced files that are old enough.

        The age is the table's own `delta.deletedFileRetentionDuration`, a week by default.
        """
        with answers(self.path, DeltaError):
            table = DeltaTable(self.root)
            if not self.key:
                small = [s for s in _sizes(table).values() if s < limits.LAKE_PART_BYTES // 4]
                if len(small) >= limits.LAKE_COMPACT_FILES:
                    table.optimize.compact(target_size=limits.LAKE_PART_BYTES)
            if table.vacuum(dry_run=True, full=True):
                table.vacuum(dry_run=False, full=True)
            drop_packed(self.root, time.time())

    def close(self) -> None:
        """Do nothing, since no connection is kept."""

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table; missing columns are null."""
        with answers(self.path, DeltaError):
            table = DeltaTable(self.root)
            wanted = asked(_schema_of(table), columns)
            for path in sorted(_sizes(table)):
                yield from fitted(read_part(self.root / path, columns), wanted)

    def stands(self, flow: str) -> Boundary | None:
        """See `Asked.stands`."""
        with answers(self.path, DeltaError):
            table = self._find()
            return None if table is None else read_flow(table, flow).boundary

    def files(self) -> tuple[Sequence[str], pa.Schema]:
        """Return the present files and columns of the table."""
        with answers(self.path, DeltaError):
            table = self._find()
            if table is None:
                raise no_table(self.path, LAKE)
            self._check_table(table)
            return [str(self.root / path) for path in sorted(_sizes(table))], _schema_of(table)

    # --- The table ---------------------------------------------------------------------------

    def _find(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.root)
        except TableNotFoundError:
            return None

    def _make(self, schema: pa.Schema) -> DeltaTable:
        columns = stored(self.columns(schema), LAKE)
        return DeltaTable.create(
            self.root, Schema.from_arrow(columns), mode="ignore", configuration=dict(_MADE)
        )

    def _check_table(self, table: DeltaTable) -> None:
        """Check that this sink can write to a table that another program created.

        Raises:
            Invalid: it requires unsupported features.
        """
        metadata, protocol = table.metadata(), table.protocol()
        asked = {*(protocol.reader_features or ()), *(protocol.writer_features or ())} - _FEATURES
        asked |= {
            name
            for name, value in metadata.configuration.items()
            if name.startswith("delta.constraints.")
            or (name == "delta.columnMapping.mode" and value != "none")
            or (name == "delta.appendOnly" and value == "true" and self.key)
        }
        asked |= {
            f"{field.name}: {name}"
            for field in table.schema().fields
            for name in field.metadata
            if name.startswith(("delta.generation", "delta.identity", "delta.invariants"))
        }
        if asked:
            raise Invalid(
                f"the Delta table {self.path} asks for what this sink does not do: "
                f"{names_of(asked)}; use another table",
                field="path",
            )
        if metadata.partition_columns:
            raise Invalid(
                f"the Delta table {self.path} is partitioned by "
                f"{', '.join(metadata.partition_columns)}; use one that is not",
                field="path",
            )

    def _files(self, table: DeltaTable) -> Files:
        return Files.of(self.root, self.layout, _sizes(table))

    def _laid_out(self, table: DeltaTable) -> DeltaTable:
        """Return the table after moving rows that other writers added into the files of their
        lanes.
        """
        for _ in range(limits.LAKE_COMMIT_TRIES):
            files = self._files(table)
            if not files.strangers:
                return table
            staged = lay_out(files, _schema_of(table), stats_of)
            with suppress(CommitFailedError):
                write_commit(table, _actions_of(staged, files, is_change=False))
            table = DeltaTable(self.root)
        raise self.busy()

    def _actions(
        self, table: DeltaTable, staged: Sequence[StagedFiles]
    ) -> list[AddAction | RemoveAction]:
        """Return the actions of a commit of everything that was staged.

        Raises:
            Retry: another writer has changed files that were rewritten.
        """
        files = self._files(table) if self.key else None
        if files is not None and not still_so(staged, files):
            raise Retry(
                f"somebody else has changed files of {self.path} that were to be replaced; open "
                "the sink again and carry the same rows",
                field="path",
            )
        return [action for each in staged for action in _actions_of(each, files, is_change=True)]


def _actions_of(
    staged: StagedFiles, files: Files | None, *, is_change: bool
) -> list[AddAction | RemoveAction]:
    now_ms = time.time_ns() // 1_000_000
    found: list[AddAction | RemoveAction] = [
        AddAction(part.path, part.size, {}, now_ms, is_change, part.stats) for part in staged.added
    ]
    if files is not None:
        found += [
            RemoveAction(path, is_change, now_ms, files.sizes[path]) for path in staged.removed
        ]
    return found


def _schema_of(table: DeltaTable) -> pa.Schema:
    found: pa.Schema = pa.schema(cast("pa.Schema", table.schema().to_arrow()))
    return found


def _sizes(table: DeltaTable) -> dict[str, int]:
    """Return the files of a table with their sizes."""
    actions = pa.table(table.get_add_actions(flatten=True))
    paths = cast("list[str]", actions["path"].to_pylist())
    sizes = cast("list[int]", actions["size_bytes"].to_pylist())
    return dict(zip(map(unquote, paths), sizes, strict=True))
