"""A sink for Iceberg tables: rows are appended, or replaced and deleted by key.

`stage` writes Parquet files into the table's folder, which no reader sees before `commit` adds them
to a snapshot, in one transaction with the boundary and the fence (`iceberg_table.py`).

Rule 1: a commit is checked against the version of the table that was read, and fails if another
commit was made since; then it is checked again.

Rule 2: with upserts, a lane that another writer has changed since it was staged is not committed:
it has to be staged again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    ServerError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError

from millrace import limits
from millrace.errors import Invalid, Retry
from millrace.sinks.base import Held, Task
from millrace.sinks.boundary import Boundary, Span
from millrace.sinks.columns import added, asked, fitted, stored
from millrace.sinks.iceberg_table import (
    Snapshot,
    check_table,
    columns_of,
    data_of,
    files_of,
    forget_commits,
    local,
    named_files,
    read_flow,
    write_commit,
)
from millrace.sinks.lake import FlowState, Lake, answers, is_next, no_table
from millrace.sinks.parts import (
    PartWriter,
    StagedFiles,
    drop_packed,
    pack,
    read_part,
    sweep,
    unpack,
)
from millrace.sinks.rewrite import Files, lay_out, stage_lanes, still_so

LAKE = "Iceberg"

_MADE: Mapping[str, str] = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "commit.manifest-merge.enabled": "true",
}
"""Properties of tables that Millrace creates, for many small commits."""


class Iceberg(Lake, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An Iceberg table, written with the `pyiceberg` library."""

    table: str
    """Name of the table in the catalog, `namespace.table`."""
    catalog: dict[str, str] = msgspec.field(default_factory=dict)
    """Properties of a catalog, in pyiceberg's form; empty: a SQLite catalog in the folder."""

    def __repr__(self) -> str:
        return f"<Iceberg {self.table}>"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(self.table.split(".")) or "." not in self.table:
            raise Invalid(
                f"table is {self.table!r}; it is a name such as shop.orders", field="table"
            )

    def check(self, schema: pa.Schema) -> None:
        """Check that rows of this schema can be stored, in the existing table if there is one."""
        self.check_rows(schema, LAKE)
        with self._answers():
            if not self.catalog and not self._database.exists():
                return
            with self._connected() as catalog:
                table = self._find(catalog)
            if table is not None:
                check_table(table)
                added(columns_of(table), self.columns(schema), LAKE, evolve=self.evolve)

    def open(self, flow: str, schema: pa.Schema) -> Held:
        """Take the flow over; the table is created, extended by columns, and partitioned into lanes
        as needed.
        """
        self.check_rows(schema, LAKE)
        with self._answers():
            self.root.mkdir(parents=True, exist_ok=True)
            for _ in range(limits.LAKE_COMMIT_TRIES):
                # Other processes may be creating the same namespace or table.
                with suppress(CommitFailedException, TableAlreadyExistsError, IntegrityError):
                    return self._open(flow, schema)
        raise self.busy()

    def _open(self, flow: str, schema: pa.Schema) -> Held:
        with self._connected() as catalog:
            table = self._find(catalog) or self._make(catalog, schema)
            check_table(table)
            missing = added(columns_of(table), self.columns(schema), LAKE, evolve=self.evolve)
            if missing:
                with table.update_schema() as update:
                    update.union_by_name(pa.schema(missing))
                table = catalog.load_table(self.table)
            if self.key:
                table, _ = self._laid_out(catalog, table)
            state = read_flow(table, flow)
            state = FlowState(state.fence + 1, state.boundary)
            write_commit(table, flow, state)
            return Held(flow, state.fence, state.boundary)

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        """Write files that no snapshot refers to yet."""
        with self._answers(), self._connected() as catalog:
            table = catalog.load_table(self.table)
            if self.key:
                table, files = self._laid_out(catalog, table)
                staged = stage_lanes(batches, files, columns_of(table), _nothing)
            else:
                schema = columns_of(table)
                with PartWriter(data_of(table), "", schema) as writer:
                    for batch in fitted(batches, schema):
                        writer.write(batch)
                    staged = StagedFiles(tuple(writer.close()))
            return pack(data_of(table), staged)

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        """Add the files to a snapshot, together with the boundary."""
        with self._answers(), self._connected() as catalog:
            for _ in range(limits.LAKE_COMMIT_TRIES):
                table = catalog.load_table(self.table)
                state = read_flow(table, held.flow)
                if not is_next(held, span, state):
                    return msgspec.structs.replace(held, boundary=state.boundary)
                parts = unpack(data_of(table), staged)
                with suppress(CommitFailedException):
                    self._write(table, parts, held.flow, FlowState(held.fence, span.upto))
                    return msgspec.structs.replace(held, boundary=span.upto)
        raise self.busy()

    def clean(self, held: Held) -> None:
        """Delete files that no snapshot has referred to for a week."""
        with self._answers(), self._connected() as catalog:
            table = catalog.load_table(self.table)
            # The folders are listed before the table is read, so that files committed in between
            # are kept.
            written = {
                *data_of(table).rglob("*part-*.parquet"),
                *(local(table.location()) / "metadata").glob("*.avro"),
            }
            unnamed = written.difference(named_files(catalog.load_table(self.table)))
            sweep(data_of(table), unnamed, time.time())
            drop_packed(data_of(table), time.time())

    def close(self) -> None:
        """Do nothing, since no connection is kept."""

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table; missing columns are null."""
        with self._answers():
            with self._connected() as catalog:
                table = catalog.load_table(self.table)
            wanted = asked(columns_of(table), columns)
            for path in sorted(files_of(table)):
                yield from fitted(read_part(data_of(table) / path, columns), wanted)

    def stands(self, flow: str) -> Boundary | None:
        """See `Asked.stands`."""
        if not self.catalog and not self._database.exists():
            return None
        with self._answers(), self._connected() as catalog:
            table = self._find(catalog)
            return None if table is None else read_flow(table, flow).boundary

    def files(self) -> tuple[Sequence[str], pa.Schema]:
        """Return the files of the table's present snapshot, and its columns.

        Raises:
            Invalid: a column was renamed, so that older files have it under another name.
        """
        with self._answers(), self._connected() as catalog:
            table = self._find(catalog)
            if table is None:
                raise no_table(f"{self.table} of {self.path}", LAKE)
            check_table(table)
            root = data_of(table)
            return [str(root / path) for path in sorted(files_of(table))], columns_of(table)

    # --- The catalog -------------------------------------------------------------------------

    @property
    def _database(self) -> Path:
        return self.root / "catalog.db"

    def _answers(self) -> AbstractContextManager[None]:
        return answers(
            f"{self.table} in {self.path}", SQLAlchemyError, ServerError, NoSuchTableError
        )

    @contextmanager
    def _connected(self) -> Iterator[Catalog]:
        settings = {
            "type": "sql",
            "uri": f"sqlite:///{self._database}",
            "warehouse": f"file://{self.root}",
        }
        try:
            catalog = load_catalog("millrace", **{**settings, **self.catalog})
        except OperationalError:
            # Other processes may be creating the catalog's own tables.
            catalog = load_catalog("millrace", **{**settings, **self.catalog})
        try:
            yield catalog
        finally:
            if isinstance(catalog, SqlCatalog):
                catalog.engine.dispose()

    # --- The table ---------------------------------------------------------------------------

    def _find(self, catalog: Catalog) -> Table | None:
        try:
            return catalog.load_table(self.table)
        except NoSuchTableError:
            return None

    def _make(self, catalog: Catalog, schema: pa.Schema) -> Table:
        catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
        columns = stored(self.columns(schema), LAKE)
        return catalog.create_table(self.table, columns, properties=dict(_MADE))

    def _files(self, table: Table, found: Snapshot) -> Files:
        sizes = {path: file.file_size_in_bytes for path, file in found.items()}
        return Files.of(data_of(table), self.layout, sizes)

    def _laid_out(self, catalog: Catalog, table: Table) -> tuple[Table, Files]:
        """Return the table after moving rows that other writers added into the files of their
        lanes.
        """
        for _ in range(limits.LAKE_COMMIT_TRIES):
            found = files_of(table)
            files = self._files(table, found)
            if not files.strangers:
                return table, files
            staged = lay_out(files, columns_of(table), _nothing)
            with suppress(CommitFailedException):
                write_commit(table, None, None, *_named(table, [staged], found))
            table = catalog.load_table(self.table)
        raise self.busy()

    def _write(
        self, table: Table, staged: Sequence[StagedFiles], flow: str, state: FlowState
    ) -> None:
        """Commit the staged files.

        Raises:
            Retry: another writer has changed files that were rewritten.
        """
        found = files_of(table) if self.key else {}
        if self.key and not still_so(staged, self._files(table, found)):
            raise Retry(
                f"somebody else has changed files of {self.table} that were to be replaced; open "
                "the sink again and carry the same rows",
                field="path",
            )
        write_commit(table, flow, state, *_named(table, staged, found))
        forget_commits(table)


def _named(
    table: Table, staged: Sequence[StagedFiles], found: Snapshot
) -> tuple[list[str], list[DataFile]]:
    """Return the files that a commit adds, and the ones it removes."""
    root = data_of(table)
    added = [f"file://{root / part.path}" for each in staged for part in each.added]
    return added, [found[path] for each in staged for path in each.removed]


def _nothing(_: pq.FileMetaData) -> str:
    """Return no statistics, since the library reads the footers itself."""
    return ""
