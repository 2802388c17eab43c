"""Copy-on-write upserts in immutable files: the files that contain an affected key are rewritten.

A table is laid out in lanes (`lane.py`): the rows of a key are all in the files of its lane, and a
file belongs to one lane, which is part of its folder and name. So writers of different lanes never
conflict.

Rule 1: only files that contain a replaced or deleted key are rewritten, and small files when there
are too many.

Rule 2: memory holds the new rows of one lane, and one batch of the old ones.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace import limits
from millrace.core.format.column import Array
from millrace.errors import Invalid
from millrace.sinks.base import DELETE, OP
from millrace.sinks.columns import fitted
from millrace.sinks.lane import lanes_of
from millrace.sinks.null_key import check_null_keys
from millrace.sinks.parts import PartWriter, StagedFiles, read_part

SEQ = "seq"
"""The column that orders two rows of one key."""


class Layout(msgspec.Struct, frozen=True):
    """The layout of a table's files by key."""

    key: tuple[str, ...]
    lanes: int

    @property
    def home(self) -> str:
        """The folder of all lanes; it depends on the key and the number of lanes."""
        return f"lane-{self.lanes}-{crc32(json.dumps(self.key).encode()):08x}"

    def prefix(self, lane: int) -> str:
        """Return the prefix of the file names of a lane."""
        return f"{lane:04d}-"

    def lane_of(self, path: str) -> int | None:
        """Return the lane of a file, or None if another writer made it."""
        home, _, name = path.partition("/")
        lane, _, rest = name.partition("-")
        return int(lane) if home == self.home and lane.isdigit() and rest else None


class Files(msgspec.Struct, frozen=True):
    """The files of a table at one moment."""

    root: Path
    layout: Layout
    sizes: Mapping[str, int]
    """Sizes by path relative to the root."""
    lanes: Mapping[int, Sequence[str]]
    """Sorted paths of each lane."""
    strangers: Sequence[str]
    """Sorted paths of files that belong to no lane."""

    @classmethod
    def of(cls, root: Path, layout: Layout, sizes: Mapping[str, int]) -> Files:
        """Make an instance from the files' sizes."""
        lanes: dict[int, list[str]] = {}
        strangers: list[str] = []
        for path in sorted(sizes):
            lane = layout.lane_of(path)
            (strangers if lane is None else lanes.setdefault(lane, [])).append(path)
        return cls(root, layout, sizes, lanes, strangers)

    def seen(self, lane: int) -> str:
        """Return a checksum of the names of a lane's files."""
        names = "\n".join(self.lanes.get(lane, ()))
        return hashlib.sha256(names.encode()).hexdigest()[:16]


class Spool:
    """Partitions rows by lane; rows that exceed the memory limit are spilled to disk."""

    def __init__(self, layout: Layout, schema: pa.Schema) -> None:
        self._layout = layout
        self._schema = schema
        self._held: dict[int, list[pa.RecordBatch]] = {}
        self._bytes = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: dict[int, list[Path]] = {}
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows to their lanes."""
        lanes = lanes_of(batch, self._layout.key, self._layout.lanes)
        order = np.argsort(lanes, kind="stable")
        parted, lanes = batch.take(order), lanes[order]
        starts = np.flatnonzero(np.diff(lanes, prepend=-1))
        ends = np.append(starts[1:], len(lanes))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            self._held.setdefault(int(lanes[start]), []).append(parted.slice(start, end - start))
        self._bytes += parted.nbytes
        if self._bytes >= limits.LAKE_SPOOL_BYTES:
            self._spill()

    def lanes(self) -> list[int]:
        """Return the lanes that have rows."""
        return sorted({*self._held, *self._files})

    def batches(self, lane: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a lane, in the order of arrival."""
        for path in self._files.get(lane, ()):
            with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
                for at in range(reader.num_record_batches):
                    yield reader.get_batch(at)
        yield from self._held.get(lane, ())

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="millrace-")
        for lane, batches in self._held.items():
            self._count += 1
            path = Path(self._folder.name) / f"{self._count}.arrow"
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, self._schema) as writer:
                writer.write_table(pa.Table.from_batches(batches, self._schema).combine_chunks())
            self._files.setdefault(lane, []).append(path)
        self._held.clear()
        self._bytes = 0


class Keys:
    """An index of the keys of some rows, each with a number; null is a value like any other."""

    def __init__(self, rows: pa.Table, names: Sequence[str]) -> None:
        self._names = names
        self._values: list[Array] = []
        self._pairs: list[Array] = []
        codes: Array | None = None
        for name in names:
            column = rows.column(name).combine_chunks()
            values = pc.unique(column)
            self._values.append(values)
            found = _index(column, values)
            if codes is None:
                codes = found
                continue
            paired = _pair(codes, len(values), found)
            pairs = pc.unique(paired)
            self._pairs.append(pairs)
            codes = _index(paired, pairs)
        assert codes is not None
        self.own = codes
        """The numbers of the rows' own keys."""

    def find(self, batch: pa.RecordBatch) -> Array:
        """Return the number of each row's key, or null for a key that is not in the index."""
        codes = _index(batch.column(self._names[0]), self._values[0])
        for at, name in enumerate(self._names[1:]):
            values = self._values[at + 1]
            paired = _pair(codes, len(values), _index(batch.column(name), values))
            codes = _index(paired, self._pairs[at])
        return codes

    def may_be_in(self, footer: pq.FileMetaData) -> bool:
        """Return True if a file can contain one of the keys, by the statistics of the first
        column.
        """
        values = self._values[0]
        if values.null_count or not footer.num_row_groups:
            return bool(footer.num_row_groups)
        first = footer.row_group(0)
        at = next(
            (
                at
                for at in range(first.num_columns)
                if first.column(at).path_in_schema == self._names[0]
            ),
            None,
        )
        if at is None:
            return True
        try:
            low, high = (each.as_py() for each in pc.min_max(values).values())
            for number in range(footer.num_row_groups):
                found = footer.row_group(number).column(at).statistics
                if found is None or not found.has_min_max:
                    return True
                if found.min <= high and low <= found.max:
                    return True
        except UnicodeDecodeError:
            # Spark permits any bytes in a text, which Python cannot decode.
            return True
        return False


def _index(column: Array, values: Array) -> Array:
    return pc.index_in(column, value_set=values).cast(pa.int64())


def _pair(codes: Array, count: int, found: Array) -> Array:
    return pc.add(pc.multiply(codes, pa.scalar(count, pa.int64())), found)


def newest(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return one row of each key: the one with the highest seq, or else the last."""
    if SEQ in rows.column_names:
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(SEQ, "ascending")]))
    numbers = pa.table({"key": Keys(rows, key).own, "at": pa.array(np.arange(rows.num_rows))})
    if pc.count_distinct(numbers["key"]).as_py() == rows.num_rows:
        return rows
    return rows.take(numbers.group_by("key").aggregate([("at", "max")])["at_max"].sort())


def stage_lanes(
    batches: Iterable[pa.RecordBatch],
    files: Files,
    schema: pa.Schema,
    describe: Callable[[pq.FileMetaData], str],
) -> StagedFiles:
    """Write the files that replace the ones with rows to be replaced or deleted."""
    removed: list[str] = []
    seen: dict[int, str] = {}
    incoming = schema.append(pa.field(OP, pa.string()))
    with Spool(files.layout, incoming) as spool, _writer(files, schema, describe) as writer:
        for batch in check_null_keys(fitted(batches, incoming), files.layout.key):
            if batch.num_rows:
                spool.add(batch)
        for lane in spool.lanes():
            rows = pa.Table.from_batches(spool.batches(lane), incoming)
            seen[lane] = files.seen(lane)
            removed += _rewrite(newest(rows, files.layout.key), files, lane, writer)
        return StagedFiles(tuple(writer.close()), tuple(removed), seen)


def lay_out(
    files: Files, schema: pa.Schema, describe: Callable[[pq.FileMetaData], str]
) -> StagedFiles:
    """Write the rows of files without a lane into files of their lanes."""
    with Spool(files.layout, schema) as spool, _writer(files, schema, describe) as writer:
        for path in files.strangers:
            for batch in fitted(read_part(files.root / path), schema):
                spool.add(batch)
        for lane in spool.lanes():
            writer.begin(files.layout.prefix(lane))
            for batch in spool.batches(lane):
                writer.write(batch)
        return StagedFiles(tuple(writer.close()), tuple(files.strangers))


def _writer(
    files: Files, schema: pa.Schema, describe: Callable[[pq.FileMetaData], str]
) -> PartWriter:
    return PartWriter(
        files.root,
        files.layout.home,
        schema,
        bytes_max=limits.LAKE_LANE_BYTES,
        describe=describe,
    )


def _rewrite(rows: pa.Table, files: Files, lane: int, writer: PartWriter) -> list[str]:
    """Write the remaining rows of the affected files and the new rows; return the replaced
    files.
    """
    keys = Keys(rows, files.layout.key)
    paths = files.lanes.get(lane, ())
    narrow = pa.schema([writer.schema.field(name) for name in files.layout.key])
    small = [path for path in paths if files.sizes[path] < limits.LAKE_LANE_BYTES // 4]
    joined = set(small) if len(small) > limits.LAKE_SMALL_FILES else set()
    touched = [path for path in paths if path in joined or _holds(files.root / path, keys, narrow)]
    writer.begin(files.layout.prefix(lane))
    for path in touched:
        for batch in fitted(read_part(files.root / path), writer.schema):
            writer.write(batch.filter(pc.is_null(keys.find(batch))))
    is_put = pc.invert(pc.is_in(rows[OP], value_set=pa.array([DELETE])))
    for batch in rows.filter(is_put).drop_columns([OP]).to_batches():
        writer.write(batch)
    return touched


def _holds(path: Path, keys: Keys, narrow: pa.Schema) -> bool:
    if not keys.may_be_in(pq.read_metadata(path)):
        return False
    return any(
        keys.find(batch).null_count < batch.num_rows
        for batch in fitted(read_part(path, narrow.names), narrow)
    )


def still_so(staged: Sequence[StagedFiles], files: Files) -> bool:
    """Return True if the rewritten lanes still have the files that were seen.

    Raises:
        Invalid: rows of one lane were passed to two calls of `stage`.
    """
    lanes = [lane for each in staged for lane in each.seen]
    if len(set(lanes)) < len(lanes):
        raise Invalid(
            "rows of one lane came to two calls of stage; part them by lane", field="lanes"
        )
    return not files.strangers and all(
        files.seen(lane) == seen for each in staged for lane, seen in each.seen.items()
    )
