"""A sink for Delta tables: rows are appended, or replaced and deleted by key.

`stage` writes Parquet files into the table's folder, which no reader sees before `commit` adds them
to the table's log, in one commit with the boundary and the fence (`write_commit`).

Rule 1: a commit is checked against the version of the table that was read, and fails if another
commit was made since; then it is checked again.

Rule 2: with upserts, a lane that another writer has changed since it was staged is not committed:
it has to be staged again.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import cast
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from millrace import limits
from millrace.errors import Invalid, Refused, Retry
from millrace.sinks.base import Held, Task
from millrace.sinks.boundary import Boundary, Span, begins
from millrace.sinks.columns import added, asked, fitted, stored
from millrace.sinks.lake import FlowState, Lake, answers, is_next, names_of, no_table
from millrace.sinks.parts import (
    PartWriter,
    StagedFiles,
    drop_packed,
    pack,
    read_part,
    sync_file,
    sync_folder,
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


# --- Flow state and file statistics in the log of a Delta table ----------------------------------
#
# Delta stores a number for every application (`txn`), and preserves it when it removes old
# commits. So a flow's fence and the seqs of its boundary are such numbers, written in the commit
# that adds the rows. The queues to which the seqs belong are a text that rarely changes: it is a
# table property, named by its checksum, and the checksum is another such number. The commit also
# contains all of it as text, for people.
# Rule 1: a commit is made through the table handle that was read, without retries of the library:
# a concurrent commit makes it fail, and the table is read again.

_PLACES = "millrace.places."
"""Prefix of the names of these table properties."""

STATS_COLUMNS = 32
"""Maximum number of columns with minimum and maximum in a commit, as other writers have it."""

_TEXT_MAX = 32
"""Longer texts are truncated in statistics."""


_JSON = msgspec.json.Encoder(decimal_format="number")


def read_flow(table: DeltaTable, flow: str) -> FlowState:
    """Read the state of a flow from the table.

    Raises:
        Refused: a required property was removed.
    """
    fence = table.transaction_version(f"{flow} fence") or 0
    places = table.transaction_version(f"{flow} places")
    if places is None:
        return FlowState(fence, None)
    text = table.metadata().configuration.get(f"{_PLACES}{places:016x}")
    if text is None:
        raise Refused(
            f"the table's property {_PLACES}{places:016x} is gone, which says how far "
            f"{flow} was read; set it again, or fill another table",
            field="boundary",
        )
    empty = Boundary.of_text(text)
    seqs = iter(
        table.transaction_version(f"{flow} seq {at}") or 0
        for at in range(sum(len(place.seqs) for place in empty.places))
    )
    found = (
        msgspec.structs.replace(place, seqs=tuple(next(seqs) for _ in place.seqs))
        for place in empty.places
    )
    return FlowState(fence, Boundary(tuple(found)))


def know_places(table: DeltaTable, boundary: Boundary) -> bool:
    """Return True if the table has the property for the queues of a boundary."""
    return f"{_PLACES}{_number_of(boundary):016x}" in table.metadata().configuration


def tell_places(table: DeltaTable, boundary: Boundary) -> None:
    """Store the queues of a boundary as a table property, in a separate commit without side
    effects.
    """
    table.alter.set_table_properties(
        {f"{_PLACES}{_number_of(boundary):016x}": begins(boundary).text()},
        raise_if_not_exists=False,
    )


def _number_of(boundary: Boundary) -> int:
    digest = hashlib.sha256(begins(boundary).text().encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def write_commit(
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    flow: str | None = None,
    state: FlowState | None = None,
) -> None:
    """Commit files with the new state of a flow, if there was no commit since the table was read.

    Raises:
        CommitFailedError: there was one; nothing was done.
    """
    numbers: list[Transaction] = []
    said: dict[str, object] | None = None
    if flow is not None and state is not None:
        numbers.append(Transaction(f"{flow} fence", state.fence))
        said = {"flow": flow, "fence": state.fence}
        if state.boundary is not None:
            seqs = [seq for place in state.boundary.places for seq in place.seqs]
            numbers.append(Transaction(flow, state.boundary.number))
            numbers.append(Transaction(f"{flow} places", _number_of(state.boundary)))
            numbers += [Transaction(f"{flow} seq {at}", seq) for at, seq in enumerate(seqs)]
            said["boundary"] = msgspec.to_builtins(state.boundary)
    table.create_write_transaction(
        list(actions),
        "append",
        table.schema(),
        commit_properties=CommitProperties(
            custom_metadata={"millrace": json.dumps(said)} if said else None,
            max_commit_retries=0,
            app_transactions=numbers,
        ),
    )


def sync_log(table: DeltaTable, root: Path) -> None:
    """Sync the commit after the table's version, and its directory entry, to disk."""
    folder = root / "_delta_log"
    path = folder / f"{table.version() + 1:020d}.json"
    if path.exists():
        sync_file(path)
    sync_folder(folder)


def stats_of(footer: pq.FileMetaData) -> str:
    """Return the statistics of a file for the commit: number of rows; nulls, minimum and maximum of
    columns.

    If the minimum or maximum of one column cannot be expressed, all are omitted: some readers
    interpret a missing value as null, and skip the file.
    """
    nulls: dict[str, int] = {}
    least: dict[str, object] = {}
    greatest: dict[str, object] = {}
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    for at in range(min(footer.num_columns, STATS_COLUMNS)):
        column = footer.schema.column(at)
        # Columns nested in lists and structs have dots in their path; binary columns have no
        # bounds.
        if "." in column.path or (
            column.physical_type == "BYTE_ARRAY" and column.logical_type.type == "NONE"
        ):
            continue
        found = [each for group in groups if (each := group.column(at).statistics) is not None]
        counts = [each.null_count for each in found if each.null_count is not None]
        ends = [each for each in found if each.num_values]
        try:
            lows = [_low(each.min) if each.has_min_max else None for each in ends]
            highs = [_high(each.max) if each.has_min_max else None for each in ends]
        except UnicodeDecodeError:
            # Spark permits any bytes in a text.
            lows = highs = [None]
        if len(counts) < len(groups) or None in (*lows, *highs):
            return json.dumps({"numRecords": footer.num_rows})
        nulls[column.path] = sum(counts)
        if ends:
            # Numbers, texts, or times as texts of equal length: all can be compared.
            least[column.path] = min(cast("list[str]", lows))
            greatest[column.path] = max(cast("list[str]", highs))
    said = {"minValues": least, "maxValues": greatest, "nullCount": nulls}
    return _JSON.encode({"numRecords": footer.num_rows, **said}).decode()


def _low(value: object) -> object:
    """Return a lower bound for JSON, or None if the value has none."""
    if isinstance(value, str):
        return value[:_TEXT_MAX]
    return _plain(value, up=False)


def _high(value: object) -> object:
    if isinstance(value, str) and len(value) > _TEXT_MAX:
        last = ord(value[_TEXT_MAX - 1])
        # The next character after the last one kept; the surrogates in between are skipped.
        after = 0xE000 if last == 0xD7FF else last + 1
        return None if last == sys.maxunicode else value[: _TEXT_MAX - 1] + chr(after)
    if isinstance(value, str):
        return value
    return _plain(value, up=True)


def _plain(value: object, *, up: bool) -> object:
    if isinstance(value, int | Decimal):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        # Readers expect milliseconds.
        cut = value.replace(microsecond=value.microsecond // 1000 * 1000)
        if up and cut != value:
            cut += timedelta(milliseconds=1)
        if value.tzinfo is None:
            return cut.isoformat(" ", "milliseconds")
        return cut.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return None
