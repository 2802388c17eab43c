"""What of flows stands in an Iceberg table, and how it is read and committed.

A flow's fence and boundary are one property of the table, set in the transaction that adds the
rows. A transaction asks of the catalog that the table's snapshot is still the one that was read;
of properties it can ask nothing. So whoever opens a flow makes a snapshot too, an empty one: it is
what refuses those who looked at the table before.

Rule 1: a transaction is never tried again by the library, which would put it on top of whatever
others committed since. We look again instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table

from millrace import limits
from millrace.decoding import decode_json
from millrace.errors import Invalid
from millrace.sinks.lake import FlowState
from millrace.sinks.parts import sync_file, sync_folder

_FLOW = "millrace.flow."
"""Begins the name of a property."""

_TRIES = "commit.retry.num-retries"

FORMAT_MAX = 2
"""The newest format of tables that we write to."""

Snapshot: TypeAlias = Mapping[str, DataFile]
"""The files of a table, by their paths below its folder of data."""


def read_flow(table: Table, flow: str) -> FlowState:
    """What the table knows of a flow."""
    text = table.properties.get(_FLOW + flow)
    return FlowState() if text is None else decode_json(text, FlowState)


def write_commit(
    table: Table,
    flow: str | None,
    state: FlowState | None,
    added: Sequence[str] = (),
    removed: Sequence[DataFile] = (),
) -> None:
    """Commit files and how far a flow then is, if the table still has the snapshot that was read.

    Raises:
        CommitFailedException: it has not; nothing was done.
    """
    # Of the handle only: what others do with the table is their affair.
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
    """Forget the oldest snapshots of flows, when there are many: each commit copies them all.

    Those that others made stay; that it can be put off makes it no part of a commit.
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
    """Have what a commit wrote on the disk."""
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
    """The path of a file that a table names.

    Raises:
        Invalid: it is in no folder.
    """
    # Iceberg does not quote names.
    path = address.removeprefix("file:").removeprefix("//")
    if not path.startswith("/"):
        raise Invalid(
            f"the Iceberg table lies at {address}, which is no folder; mount the store that it is "
            "in",
            field="path",
        )
    return Path(path)


def data_of(table: Table) -> Path:
    """The folder of a table's files."""
    return local(table.location()) / "data"


def files_of(table: Table) -> Snapshot:
    """The files of a table now.

    Raises:
        Invalid: some of their rows were deleted by others without a rewrite.
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
        # What lies elsewhere keeps its whole path, and is of no lane.
        below = path.relative_to(root) if path.is_relative_to(root) else path
        found[below.as_posix()] = task.file
    return found


def columns_of(table: Table) -> pa.Schema:
    """The columns of a table, with the numbers that its files know them by."""
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
    """See that we may write to a table that others made.

    Raises:
        Invalid: it asks for more than we do.
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
    """All files that some snapshot of a table still names: of rows, and of its own."""
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
