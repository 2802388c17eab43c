"""A folder at rest, as an engine would serve it; nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from millrace.core.fold import Reader, ShardMeta
from millrace.core.model import GroupId, Index, Kind, ShardId
from millrace.errors import MillraceError, NotFound
from millrace.journal.local import LOCAL
from millrace.journal.recovery import Recovery
from millrace.store.inspect import Inspection, ReadOnlyCells
from millrace.wal.files import RealDisk
from millrace.wal.replay import Replay


def _is_local(group: GroupId) -> bool:
    return group == LOCAL


class Look:
    """The index of a folder, with the log's end folded over it.

    Raises:
        Corrupt: the index or the log is damaged.
        NotFound: there is no folder of queues.
    """

    def __init__(
        self, folder: Path, *, commits_when_synced: Callable[[GroupId], bool] = _is_local
    ) -> None:
        if not (folder / "index" / "data.mdb").exists():
            raise NotFound(f"{folder} holds no queues", field="path")
        disk = RealDisk(folder, read_only=True)
        self._store = Inspection(disk, ReadOnlyCells(folder / "index", is_in_use=False))
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
            recovery.read_all(replay.again())
        except MillraceError:
            self.close()
            raise

    def applied(self) -> Index:
        """The last entry of the local group."""
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
        return iter(self._store.asking.scan(shard, after, upto, reader))

    def __enter__(self) -> Look:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files."""
        if self._replay is not None:
            self._replay.close()
        self._store.close()
