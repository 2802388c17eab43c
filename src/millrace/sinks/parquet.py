"""A sink for Parquet files in a folder, with a transaction log of its own for committed files.

`stage` writes files; `commit` adds them to the log (`add_entry`), with the boundary and the fence.
A reader gets the list of committed files from `manifest`.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.decoding import decode_json
from millrace.errors import Invalid, Retry
from millrace.sinks.base import Held, Task
from millrace.sinks.boundary import Boundary, Span
from millrace.sinks.columns import added, asked, fitted, stored
from millrace.sinks.lake import FlowState, Lake, answers, is_next, no_table
from millrace.sinks.parts import (
    PRIVATE,
    PartFile,
    PartWriter,
    StagedFiles,
    drop_old,
    drop_packed,
    pack,
    read_part,
    unpack,
    write_alone,
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


# -------------------------------------------------------------------------------------------------
# A transaction log of files, for folders without one: the committed files and the state of flows.
#
# It is a folder of small JSON files. Entry n is `<n>.json`, with twenty digits, and extends the
# entries before it. At intervals a checkpoint `all-<n>.json` summarizes them, so that a reader
# needs only the newest checkpoint and the few entries that follow.
# Rule 1: an entry is created atomically under its name, if that name does not exist: so the next
# number is a fence that only one of two writers can pass.
# Rule 2: an entry at or below a checkpoint counts only if the checkpoint includes it: a writer
# that was suspended until its number was cleaned away detects this, and removes its entry.

FOLDER = "log"


class LogEntry(msgspec.Struct, frozen=True):
    """The content of one commit, or of one opening of a flow."""

    flow: str
    fence: int
    boundary: Boundary | None
    files: tuple[PartFile, ...] = ()
    schema: str = ""
    """The table's schema from here on, serialized by Arrow, in base64; empty: unchanged."""


class Sum(msgspec.Struct, frozen=True):
    """The sum of all entries up to one: a checkpoint of the log."""

    number: int = 0
    flows: dict[str, FlowState] = {}
    files: tuple[PartFile, ...] = ()
    schema: str = ""

    def columns(self) -> pa.Schema | None:
        """Return the columns of the table, or None if it has none yet."""
        if not self.schema:
            return None
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))


def schema_text(schema: pa.Schema) -> str:
    """Serialize a schema as entries store it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def read_log(root: Path) -> Sum:
    """Read the present state of the log; an empty log gives an empty state.

    Raises:
        Retry: it was cleaned during each of several attempts to read it.
    """
    folder = root / PRIVATE / FOLDER
    for _ in range(limits.LAKE_COMMIT_TRIES):
        names = {path.name for path in folder.glob("*.json")}
        try:
            return _read(folder, names)
        except FileNotFoundError:
            continue
    raise Retry(f"the log of {root} changes all the time; try again", field="path")


def _read(folder: Path, names: set[str]) -> Sum:
    found = Sum()
    sums = sorted(name for name in names if name.startswith("all-"))
    if sums:
        found = decode_json((folder / sums[-1]).read_bytes(), Sum)
    number, flows, schema = found.number, dict(found.flows), found.schema
    files = list(found.files)
    while _name(number + 1) in names:
        number += 1
        entry = decode_json((folder / _name(number)).read_bytes(), LogEntry)
        flows[entry.flow] = FlowState(entry.fence, entry.boundary)
        files += entry.files
        schema = entry.schema or schema
    return Sum(number, flows, tuple(files), schema)


def add_entry(root: Path, found: Sum, entry: LogEntry) -> bool:
    """Create an entry durably as the next one after the state `found`; return False, with nothing
    done, if another writer was first.
    """
    folder = root / PRIVATE / FOLDER
    number = found.number + 1
    path = folder / _name(number)
    if not write_alone(path, msgspec.json.encode(entry)):
        return False
    if any(name >= _sum_name(number) for name in _sums(folder)):
        # A checkpoint is past this entry; the flow's state in the log shows if the entry is
        # included.
        now = read_log(root).flows.get(entry.flow)
        if now != FlowState(entry.fence, entry.boundary):
            path.unlink(missing_ok=True)
            return False
    if number % limits.LAKE_CHECKPOINT_COMMITS == 0:
        now_said = read_log(root)
        write_alone(folder / _sum_name(now_said.number), msgspec.json.encode(now_said))
    return True


def clean_log(root: Path, now_seconds: float) -> None:
    """Delete entries and checkpoints that a later checkpoint includes, if they are old enough."""
    folder = root / PRIVATE / FOLDER
    sums = _sums(folder)
    if not sums:
        return
    last = sums[-1].removeprefix("all-")
    entries = sorted(path.name for path in folder.glob("[0-9]*.json"))
    passed = [name for name in entries if name <= last] + sums[:-1]
    drop_old((folder / name for name in passed), now_seconds)
    drop_old(folder.glob(".*.draft"), now_seconds)


def _sums(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("all-*.json"))


def _name(number: int) -> str:
    return f"{number:020d}.json"


def _sum_name(number: int) -> str:
    return f"all-{number:020d}.json"
