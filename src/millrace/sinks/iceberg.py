"""A sink for Iceberg tables: rows are appended, or replaced and deleted by key.

`stage` writes Parquet files into the table's folder, which no reader sees before `commit` adds them
to a snapshot, in one transaction with the boundary and the fence (`write_commit`).

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
from typing import TypeAlias

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
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError

from millrace import limits
from millrace.decoding import decode_json
from millrace.errors import Invalid, Retry
from millrace.sinks.base import Held, Task
from millrace.sinks.boundary import Boundary, Span
from millrace.sinks.columns import added, asked, fitted, stored
from millrace.sinks.lake import FlowState, Lake, answers, is_next, no_table
from millrace.sinks.parts import (
    PartWriter,
    StagedFiles,
    drop_packed,
    pack,
    read_part,
    sweep,
    sync_file,
    sync_folder,
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


# --- Flow state in an Iceberg table, and access to the table's files and commits -----------------
#
# A flow's fence and boundary are one table property, set in the transaction that adds the rows. A
# transaction requires that the table's snapshot is still the one that was read, but cannot require
# anything of properties. So the opening of a flow creates a snapshot too, an empty one: it makes
# the transactions of earlier readers fail.
# Rule 1: a transaction is never retried by the library, which would apply it on top of concurrent
# commits. The table is read again instead.

_FLOW = "millrace.flow."
"""Prefix of the names of these table properties."""

_TRIES = "commit.retry.num-retries"

FORMAT_MAX = 2
"""The newest table format that this sink writes."""

Snapshot: TypeAlias = Mapping[str, DataFile]
"""The files of a table, by their paths relative to its data folder."""


def read_flow(table: Table, flow: str) -> FlowState:
    """Read the state of a flow from the table."""
    text = table.properties.get(_FLOW + flow)
    return FlowState() if text is None else decode_json(text, FlowState)


def write_commit(
    table: Table,
    flow: str | None,
    state: FlowState | None,
    added: Sequence[str] = (),
    removed: Sequence[DataFile] = (),
) -> None:
    """Commit files with the new state of a flow, if the table still has the snapshot that was read.

    Raises:
        CommitFailedException: it has not; nothing was done.
    """
    # Applies to this handle only, not to other users of the table.
    table.metadata.properties[_TRIES] = "0"
    said: dict[str, str] = {}
    if flow is not None and state is not None:
        said = {_FLOW + flow: msgspec.json.encode(state).decode()}
    files = [parquet_file_to_data_file(table.io, table.metadata, path) for path in added]
    with table.transaction() as transaction:
        if said:
            transaction.set_properties(said)
        update = transaction.update_snapshot(snapshot_properties=said)
        with update.overwrite() if removed else update.merge_append() as snapshot:
            for file in files:
                snapshot.append_data_file(file)
            for file in removed:
                snapshot.delete_data_file(file)
    _sync(table)


def forget_commits(table: Table) -> None:
    """Expire the oldest snapshots of flows, if there are many: each commit copies them all.

    Snapshots of other writers stay. This can be deferred, so that it is not part of a commit.
    """
    ours = [
        each
        for each in sorted(table.snapshots(), key=lambda each: each.timestamp_ms)
        if each.summary is not None
        and any(name.startswith(_FLOW) for name in each.summary.additional_properties)
    ]
    if len(ours) < 2 * limits.LAKE_SNAPSHOTS:
        return
    update = table.maintenance.expire_snapshots()
    kept = {reference.snapshot_id for reference in table.refs().values()}
    for each in ours[: -limits.LAKE_SNAPSHOTS]:
        if each.snapshot_id not in kept:
            update.by_id(each.snapshot_id)
    with suppress(CommitFailedException):
        update.commit()


def _sync(table: Table) -> None:
    """Sync the files that a commit wrote to disk."""
    paths = [local(table.metadata_location)]
    snapshot = table.current_snapshot()
    if snapshot is not None:
        paths.append(local(snapshot.manifest_list))
        paths += (
            local(each.manifest_path)
            for each in snapshot.manifests(table.io)
            if each.added_snapshot_id == snapshot.snapshot_id
        )
    for path in paths:
        sync_file(path)
    sync_folder(paths[0].parent)


def local(address: str) -> Path:
    """Return the path of a file that a table refers to.

    Raises:
        Invalid: it is not in a local folder.
    """
    # Iceberg does not percent-encode names.
    path = address.removeprefix("file:").removeprefix("//")
    if not path.startswith("/"):
        raise Invalid(
            f"the Iceberg table lies at {address}, which is no folder; mount the store that it is "
            "in",
            field="path",
        )
    return Path(path)


def data_of(table: Table) -> Path:
    """Return the folder of a table's data files."""
    return local(table.location()) / "data"


def files_of(table: Table) -> Snapshot:
    """Return the present files of a table.

    Raises:
        Invalid: another writer has deleted some of their rows by delete files.
    """
    root = data_of(table)
    found: dict[str, DataFile] = {}
    for task in table.scan().plan_files():
        if task.delete_files:
            raise Invalid(
                f"the Iceberg table {'.'.join(table.name())} has files of deletes, which this sink "
                "does not apply; rewrite its data files first",
                field="table",
            )
        path = local(task.file.file_path)
        # Files outside the data folder keep their whole path, and belong to no lane.
        below = path.relative_to(root) if path.is_relative_to(root) else path
        found[below.as_posix()] = task.file
    return found


def columns_of(table: Table) -> pa.Schema:
    """Return the columns of a table, with the field ids that its files use."""
    fields = (_plain(field) for field in schema_to_pyarrow(table.schema()))
    return pa.schema(list(fields))


def _plain(field: pa.Field[pa.DataType]) -> pa.Field[pa.DataType]:
    kind = field.type
    if pa.types.is_large_string(kind):
        return field.with_type(pa.string())
    if pa.types.is_large_binary(kind):
        return field.with_type(pa.binary())
    if isinstance(kind, pa.LargeListType | pa.ListType):
        return field.with_type(pa.list_(_plain(kind.value_field)))
    if isinstance(kind, pa.StructType):
        return field.with_type(pa.struct([_plain(each) for each in kind.fields]))
    if isinstance(kind, pa.MapType):
        key, item = _plain(kind.key_field), _plain(kind.item_field)
        return field.with_type(pa.map_(key, item))
    return field


def check_table(table: Table) -> None:
    """Check that this sink can write to a table that another program created.

    Raises:
        Invalid: it requires unsupported features.
    """
    name = ".".join(table.name())
    local(table.location())
    if table.metadata.format_version > FORMAT_MAX:
        raise Invalid(
            f"the Iceberg table {name} is of format {table.metadata.format_version}; this sink "
            f"writes up to {FORMAT_MAX}",
            field="table",
            limit=FORMAT_MAX,
        )
    if not table.spec().is_unpartitioned():
        raise Invalid(
            f"the Iceberg table {name} is partitioned by {table.spec()}; use one that is not",
            field="table",
        )
    names: dict[int, str] = {}
    for schema in table.schemas().values():
        for field in schema.fields:
            if names.setdefault(field.field_id, field.name) != field.name:
                raise Invalid(
                    f"column {field.name!r} of the Iceberg table {name} was renamed; this sink "
                    "goes by names: use another table",
                    field="table",
                )


def named_files(table: Table) -> Iterator[Path]:
    """Yield all files that some snapshot of a table still refers to: data and metadata."""
    seen: set[str] = set()
    for snapshot in table.snapshots():
        yield local(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield local(manifest.manifest_path)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.data_file.content == DataFileContent.DATA:
                    yield local(entry.data_file.file_path)
