"""Flow state and file statistics in the log of a Delta table.

Delta stores a number for every application (`txn`), and preserves it when it removes old commits.
So a flow's fence and the seqs of its boundary are such numbers, written in the commit that adds the
rows. The queues to which the seqs belong are a text that rarely changes: it is a table property,
named by its checksum, and the checksum is another such number. The commit also contains all of it
as text, for people.

Rule 1: a commit is made through the table handle that was read, without retries of the library: a
concurrent commit makes it fail, and the table is read again.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import cast

import msgspec
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from millrace.errors import Refused
from millrace.sinks.boundary import Boundary, begins
from millrace.sinks.lake import FlowState
from millrace.sinks.parts import sync_file, sync_folder

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
