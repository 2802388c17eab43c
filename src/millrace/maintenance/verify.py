"""Verifies a backup: all checksums, that it can be opened, and that it equals its source.

The backup is restored to a scratch folder, with hard links if possible, and read as an engine
would. For the comparison it is first brought to the source's last entry, with the source's own log:
both must then have the same content.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, cast

import msgspec
import numpy as np
import pyarrow as pa

from millrace.core.cells import Kind
from millrace.core.model import GroupId, Index, ShardId
from millrace.core.state.fold import Reader, ShardMeta
from millrace.errors import Exists, MillraceError, NotFound, Refused, Retry
from millrace.journal.local import LOCAL
from millrace.journal.recovery import Recovery
from millrace.maintenance.archived_log import LogPiece, read_piece
from millrace.maintenance.backup_repository import SCRATCH, UNFINISHED
from millrace.maintenance.file_copy import ProgressTally
from millrace.maintenance.restore import RestorePlan, RestoreTarget, plan_restore, write_folder
from millrace.store.read_only_store import ReadOnlyCells, ReadOnlyStore
from millrace.store.unreadable import Unreadable
from millrace.wal.disk import Lock, RealDisk
from millrace.wal.replay import Replay
from millrace.wal.segment_pool import SEGMENT_SUFFIX

_LOCK = "lock"
_FOLDER = "folder"
"""Names in a scratch folder: the lock of the verifying process, and the restored folder."""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Result of a verification."""

    backup: Path
    index: int
    """Index of the last entry in the compared state."""
    shards: int
    rows: int
    differences: list[str]
    """Differences from the source, as text."""


def verify(
    path: Path,
    *,
    against: Path | None = None,
    scratch: Path | None = None,
    pause: ProgressTally | None = None,
) -> VerifyResult:
    """Verify a backup, and compare it with its source folder, if that is given.

    `scratch`: the parent of the scratch folder; the repository, if None. Remnants of a killed
    verification are removed.

    Raises:
        Corrupt: the backup is damaged; the error names the file.
        Full: not enough space for the scratch folder.
        Refused: the scratch folder cannot be made, or the source's log no longer reaches back to
            the backup.
    """
    pause = pause or ProgressTally(lambda _, __: None)
    if against is None:
        result, _ = _read(plan_restore(path, RestoreTarget(), pause=pause), scratch, pause)
        return result
    source = OfflineStore(against)
    try:
        index = source.applied()
        plan = _common(path, against, index, pause)
        result, digests = _read(plan, scratch, pause)
        return replace(result, differences=compare_digests(digests, digest_store(source)))
    finally:
        source.close()


def _common(path: Path, against: Path, index: int, pause: ProgressTally) -> RestorePlan:
    """Plan the restore of the backup to the source's last entry, with the source's log."""
    try:
        return plan_restore(path, RestoreTarget(index=index), pause=pause, more=_segments(against))
    except Exists:
        raise
    except Refused as error:
        raise Refused(
            f"{against} is at index {index}, and its log no longer leads there from the end of the "
            f"backup ({error.message}); make a backup, and verify that",
            field="against",
            limit=error.limit,
        ) from error


def _segments(folder: Path) -> Iterator[LogPiece]:
    disk = RealDisk(folder, read_only=True)
    for name in disk.names("log"):
        if name.endswith(SEGMENT_SUFFIX):
            piece = read_piece(disk, f"log/{name}")
            if piece is not None:
                yield piece


def _read(
    plan: RestorePlan, scratch: Path | None, pause: ProgressTally
) -> tuple[VerifyResult, dict[int, ShardDigest]]:
    beside = scratch or plan.folder.parent
    remove_stale_scratch(beside)
    scratched = beside / f"{SCRATCH}{secrets.token_hex(8)}{UNFINISHED}"
    RealDisk(beside).make_folder(scratched.name)
    lock: Lock | None = None
    try:
        lock = RealDisk(scratched).lock(_LOCK)
        folder = scratched / _FOLDER
        pause.expect(plan.work(links=True))
        write_folder(plan, folder, pause=pause, links=True)
        store = OfflineStore(folder)
        try:
            digests = digest_store(store)
        finally:
            store.close()
    finally:
        shutil.rmtree(scratched, ignore_errors=True)
        if lock is not None:
            lock.release()
    rows = sum(shard.rows for shard in digests.values())
    return VerifyResult(plan.folder, plan.cut.point.index, len(digests), rows, []), digests


def remove_stale_scratch(beside: Path) -> None:
    """Remove scratch folders of killed processes; a running verification holds a lock."""
    for name in RealDisk(beside).names(""):
        folder = beside / name
        # An empty folder may be about to be locked.
        if not name.startswith(SCRATCH) or not os.path.isdir(folder / _FOLDER):
            continue
        # A folder that cannot be removed now does not prevent this verification.
        with suppress(Refused, Retry):
            lock = RealDisk(folder).lock(_LOCK)
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()


# --- Digests of stores ----------------------------------------------------------------------------
# Rows are hashed column by column, so that batch boundaries make no difference.


class ReadableStore(Protocol):
    """The part of a store's interface that is compared."""

    def shards(self) -> list[ShardId]: ...

    def meta(self, shard: ShardId) -> ShardMeta | None: ...

    def cells(self, shard: ShardId) -> Iterable[tuple[Kind, bytes, bytes]]: ...

    def scan(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> Iterator[pa.RecordBatch]: ...


class ShardDigest(msgspec.Struct, frozen=True):
    """Digest of one shard."""

    index: int
    rows: int
    meta: str
    cells: str
    row_sum: str


def digest_store(store: ReadableStore) -> dict[int, ShardDigest]:
    """Compute the digest of every shard."""
    return {shard: _shard(store, shard) for shard in store.shards()}


def _shard(store: ReadableStore, shard: ShardId) -> ShardDigest:
    meta = store.meta(shard)
    assert meta is not None, "a shard that is listed is there"
    cells = hashlib.blake2b(digest_size=16)
    for kind, key, value in store.cells(shard):
        cells.update(b"%d %d %d " % (kind, len(key), len(value)) + key + value)
    rows = _RowHasher()
    after: int | None = 0
    while after is not None:
        after = _add_rows(store, shard, after, meta.last_seq, rows)
    summed = hashlib.blake2b(msgspec.msgpack.encode(meta), digest_size=16)
    return ShardDigest(
        meta.index, rows.count, summed.hexdigest(), cells.hexdigest(), rows.hexdigest()
    )


def _add_rows(
    store: ReadableStore, shard: ShardId, after: int, upto: int, rows: _RowHasher
) -> int | None:
    """Add the rows in (after, upto]; return the seq to resume after unreadable rows, None at the
    end."""
    try:
        for batch in store.scan(shard, after, upto, Reader(retain=True)):
            rows.add(batch)
    except Unreadable as error:
        # The queue is quarantined; its other rows and cells are still compared.
        rows.miss(error.first, error.last)
        return error.last
    return None


def compare_digests(one: dict[int, ShardDigest], other: dict[int, ShardDigest]) -> list[str]:
    """Return the differences between two stores, shard by shard."""
    differing: list[str] = []
    for shard in sorted({*one, *other}):
        mine, theirs = one.get(shard), other.get(shard)
        if mine is None or theirs is None:
            differing.append(
                f"shard {shard} is only in the {'source' if mine is None else 'backup'}"
            )
            continue
        parts = {
            "entries": (mine.index, theirs.index),
            "counters": (mine.meta, theirs.meta),
            "cells": (mine.cells, theirs.cells),
            "rows": ((mine.rows, mine.row_sum), (theirs.rows, theirs.row_sum)),
        }
        other_parts = [name for name, (left, right) in parts.items() if left != right]
        if other_parts:
            differing.append(f"shard {shard} has other {', '.join(other_parts)}")
    return differing


class _RowHasher:
    """Hashes the rows of a shard, each column separately."""

    def __init__(self) -> None:
        self.count = 0
        self._hashes = {
            name: hashlib.blake2b(digest_size=16)
            for name in (
                "seq",
                "time",
                *(
                    f"{column} {part}"
                    for column in ("key", "value", "name", "header")
                    for part in ("null", "length", "data")
                ),
                "headers",
            )
        }

    def add(self, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows
        self._put("seq", batch.column("seq").to_numpy().tobytes())
        times = batch.column("time").cast(pa.int64()).to_numpy()
        self._put("time", times.tobytes())
        self._add_binary("key", batch.column("key"))
        self._add_binary("value", batch.column("value"))
        headers = cast("pa.ListArray[Any]", batch.column("headers"))
        counts = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        self._put("headers", counts.astype(np.int64).tobytes())
        names, values = cast("pa.StructArray", headers.flatten()).flatten()
        self._add_binary("name", names.cast(pa.binary()))
        self._add_binary("header", values)

    def miss(self, first: int, last: int) -> None:
        """Add a range of unreadable rows."""
        self._put("seq", b"unreadable %d %d" % (first, last))

    def _add_binary(self, column: str, array: pa.Array[Any]) -> None:
        nulls = array.is_null().to_numpy(zero_copy_only=False)
        self._put(f"{column} null", nulls.tobytes())
        if array.null_count:
            array = array.fill_null(b"")
        if not len(array):
            return
        _, offsets, data = array.buffers()
        assert offsets is not None, "an array of bytes has offsets"
        ends = np.frombuffer(memoryview(offsets), np.int32)[
            array.offset : array.offset + len(array) + 1
        ]
        self._put(f"{column} length", np.diff(ends).astype(np.int64).tobytes())
        if data is not None:
            self._put(f"{column} data", memoryview(data)[int(ends[0]) : int(ends[-1])])

    def _put(self, name: str, data: bytes | memoryview) -> None:
        self._hashes[name].update(data)

    def hexdigest(self) -> str:
        together = hashlib.blake2b(digest_size=16)
        for one in self._hashes.values():
            together.update(one.digest())
        return together.hexdigest()


# --- Reading a folder that no engine has open -----------------------------------------------------


def _is_local(group: GroupId) -> bool:
    return group == LOCAL


class OfflineStore:
    """Read-only view of a closed folder: its index, with the end of the WAL folded in.

    Raises:
        Corrupt: the index or the log is damaged.
        NotFound: the folder does not exist, or has no index.
    """

    def __init__(
        self, folder: Path, *, commits_when_synced: Callable[[GroupId], bool] = _is_local
    ) -> None:
        if not (folder / "index" / "data.mdb").exists():
            raise NotFound(f"{folder} holds no queues", field="path")
        disk = RealDisk(folder, read_only=True)
        self._store = ReadOnlyStore(disk, ReadOnlyCells(folder / "index", is_in_use=False))
        self._replay: Replay | None = None
        try:
            replay = self._replay = Replay(
                disk, start=self._store.mark, needed_from=self._store.needed
            )
            for _ in replay:
                pass
            self._store.attach(replay)
            recovery = Recovery(
                self._store.applied,
                self._store.facts,
                self._store.fold,
                commits_when_synced=commits_when_synced,
            )
            recovery.read_all(replay.read_again())
        except MillraceError:
            self.close()
            raise

    def applied(self) -> Index:
        """Return the index of the last entry of the local group."""
        return self._store.applied(LOCAL)

    def shards(self) -> list[ShardId]:
        return [ShardId(shard) for shard in self._store.layered.all()]

    def meta(self, shard: ShardId) -> ShardMeta | None:
        state = self._store.layered.state(shard)
        return state.meta if state is not None else None

    def cells(self, shard: ShardId) -> Iterable[tuple[Kind, bytes, bytes]]:
        for key, value in self._store.cells_of(shard).items():
            yield Kind(key[0]), key[1:], value

    def scan(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> Iterator[pa.RecordBatch]:
        return iter(self._store.point_reads.scan(shard, after, upto, reader))

    def __enter__(self) -> OfflineStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        if self._replay is not None:
            self._replay.close()
        self._store.close()
