"""The Parquet files of a table: written once, synced, and never changed.

Rule 1: file names are unique, so that the files of an interrupted attempt never collide with
others.

Rule 2: a file that `close` returns is on disk, with its directory entry.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millrace import limits
from millrace.decoding import decode_json
from millrace.errors import Retry

CODEC: Final = "zstd"
"""Supported by every reader of lakes."""

PRIVATE = "_millrace"
"""Folder for internal files; readers of lakes ignore names that begin with an underscore."""

_STAGED = "staged"

READ_ROWS = 64 * 1024


class PartFile(msgspec.Struct, frozen=True):
    """A Parquet file of a table."""

    path: str
    """Path relative to the table's folder."""
    size: int
    rows: int
    stats: str = ""
    """Column statistics for the table's own log."""


class StagedFiles(msgspec.Struct, frozen=True):
    """The token from `stage` to `commit`: added and replaced files."""

    added: tuple[PartFile, ...] = ()
    removed: tuple[str, ...] = ()
    seen: dict[int, str] = {}
    """Checksum of the names of the files that each lane had."""


class PartWriter:
    """Writes rows into files of limited size; leaving the context closes the open file."""

    def __init__(
        self,
        root: Path,
        folder: str,
        schema: pa.Schema,
        *,
        bytes_max: int = limits.LAKE_PART_BYTES,
        describe: Callable[[pq.FileMetaData], str] = lambda _: "",
    ) -> None:
        self._root = root
        self._folder = folder
        self.schema = schema
        self._bytes_max = bytes_max
        self._describe = describe
        self._name = uuid4().hex
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = self._waiting_rows = 0
        self._file: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._footers: list[pq.FileMetaData] = []
        self._prefix = ""
        self._path = ""
        self._parts: list[PartFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows, which must have the writer's schema."""
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_bytes += batch.get_total_buffer_size()
        self._waiting_rows += batch.num_rows
        if (
            self._waiting_bytes >= limits.LAKE_GROUP_BYTES
            or self._waiting_rows >= limits.LAKE_GROUP_ROWS
        ):
            self._flush()

    def begin(self, prefix: str) -> None:
        """Start a new file for the rows that follow, with a name that begins with `prefix`."""
        self._flush()
        self._finish()
        self._prefix = prefix

    def close(self) -> Sequence[PartFile]:
        """Return the files, all of them synced to disk."""
        self._flush()
        self._finish()
        if self._parts:
            with ThreadPoolExecutor(limits.LAKE_SYNCS) as pool:
                list(pool.map(sync_file, [self._root / part.path for part in self._parts]))
            sync_folder(self._root / self._folder)
        return self._parts

    def _flush(self) -> None:
        if not self._waiting:
            return
        if self._writer is None:
            self._begin()
        assert self._writer is not None
        assert self._file is not None
        self._writer.write_table(
            pa.Table.from_batches(self._waiting, self.schema), limits.LAKE_GROUP_ROWS
        )
        self._waiting.clear()
        self._waiting_bytes = self._waiting_rows = 0
        if self._file.tell() >= self._bytes_max:
            self._finish()

    def _begin(self) -> None:
        folder = self._root / self._folder
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)
            sync_folder(self._root)
        name = f"{self._prefix}part-{self._name}-{len(self._parts)}.parquet"
        self._path = f"{self._folder}/{name}" if self._folder else name
        self._file = pa.OSFile(str(self._root / self._path), "wb")
        self._footers = []
        self._writer = pq.ParquetWriter(
            self._file,
            self.schema,
            compression=CODEC,
            store_schema=False,
            metadata_collector=self._footers,
        )

    def _finish(self) -> None:
        if self._writer is None or self._file is None:
            return
        self._writer.close()
        self._file.close()
        self._writer = self._file = None
        path = self._root / self._path
        footer = self._footers[0]
        self._parts.append(
            PartFile(self._path, path.stat().st_size, footer.num_rows, self._describe(footer))
        )


def read_part(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, batch by batch; of the columns, only the existing ones."""
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        wanted = names if columns is None else [name for name in columns if name in names]
        yield from file.iter_batches(READ_ROWS, columns=wanted)


def sync_file(path: Path) -> None:
    """Sync the content of a file to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


sync_folder = sync_file
"""Syncs the directory entries of a folder."""


def write_alone(path: Path, text: bytes) -> bool:
    """Create a file with these bytes atomically and durably; return False if the name exists
    already, whose file is left unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.parent / f".{uuid4().hex}.draft"
    try:
        with draft.open("xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def pack(root: Path, staged: StagedFiles) -> bytes:
    """Encode the token that `stage` returns; a long one is stored in a file beside the table, and
    the token is its name.
    """
    text = msgspec.json.encode(staged)
    if len(text) <= limits.LAKE_TOKEN_BYTES:
        return text
    name = f"{uuid4().hex}.json"
    write_alone(root / PRIVATE / _STAGED / name, text)
    return json.dumps(name).encode()


def unpack(root: Path, tokens: Sequence[bytes]) -> list[StagedFiles]:
    """Decode tokens of `pack`, and check that all files exist.

    Raises:
        Retry: one is missing, since staged files are removed after some time.
    """
    found = [_unpack(root, token) for token in tokens]
    for part in (part for each in found for part in each.added):
        path = root / part.path
        if not path.exists() or path.stat().st_size != part.size:
            raise Retry(
                f"{path}, which was to be committed, is not there any more; stage the rows again",
                field="path",
            )
    return found


def _unpack(root: Path, token: bytes) -> StagedFiles:
    if token.startswith(b'"'):
        token = (root / PRIVATE / _STAGED / json.loads(token)).read_bytes()
    return decode_json(token, StagedFiles)


def drop_packed(root: Path, now_seconds: float) -> None:
    """Delete old files that `pack` wrote."""
    drop_old((root / PRIVATE / _STAGED).glob("*"), now_seconds)


def sweep(root: Path, unnamed: Iterable[Path], now_seconds: float) -> None:
    """Delete unreferenced files, once they have been seen as such for long enough.

    The time of the first sighting is stored in the table's folder; a file that is referred to again
    starts anew.
    """
    path = root / PRIVATE / "unnamed.json"
    seen: dict[str, float] = json.loads(path.read_bytes()) if path.exists() else {}
    left: dict[str, float] = {}
    for file in unnamed:
        since = seen.get(str(file), now_seconds)
        if now_seconds - since > limits.LAKE_STAGED_SECONDS:
            file.unlink(missing_ok=True)
        else:
            left[str(file)] = since
    if left != seen:
        path.unlink(missing_ok=True)
        write_alone(path, json.dumps(left).encode())


def drop_old(paths: Iterable[Path], now_seconds: float) -> None:
    """Delete files that are older than any span in flight."""
    for path in paths:
        if now_seconds - path.stat().st_mtime > limits.LAKE_STAGED_SECONDS:
            path.unlink(missing_ok=True)
