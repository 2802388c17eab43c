"""Flow state in an Iceberg table, and access to the table's files and commits.

A flow's fence and boundary are one table property, set in the transaction that adds the rows. A
transaction requires that the table's snapshot is still the one that was read, but cannot require
anything of properties. So the opening of a flow creates a snapshot too, an empty one: it makes the
transactions of earlier readers fail.

Rule 1: a transaction is never retried by the library, which would apply it on top of concurrent
commits. The table is read again instead.
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
