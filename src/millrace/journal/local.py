"""The local journal: committed means synced on this machine's disk."""

from __future__ import annotations

from millrace.core.changes import Entry
from millrace.core.model import Epoch, GroupId, History, Index
from millrace.errors import MillraceError
from millrace.journal.base import Committed, Failed
from millrace.journal.writer import LogWriter
from millrace.log.record import Position


class LocalJournal:
    """Commits what the log has synced. Survives kill, crash and loss of power."""

    def __init__(
        self, group: GroupId, epoch: Epoch, history: History, last: Index, writer: LogWriter
    ) -> None:
        self.group = group
        self.epoch = epoch
        self.history = history
        self._last = last
        self._waiting = 0
        self._writer = writer
        self.record_bytes_max = writer.record_bytes_max
        self._committed: Committed | None = None
        self._failed: Failed | None = None

    def listen(self, committed: Committed, failed: Failed) -> None:
        self._committed = committed
        self._failed = failed

    def append(self, entry: Entry, *, alone: bool, reserve: bool) -> None:
        self._last = entry.index
        self._waiting += 1
        self._writer.submit(entry, self._synced, self._lost, alone=alone, reserve=reserve)

    def next_index(self) -> Index:
        return Index(self._last + 1)

    def waiting(self) -> int:
        return self._waiting

    def room(self, *, reserve: bool) -> int:
        return self._writer.room(reserve=reserve)

    def _synced(self, entry: Entry, position: Position) -> None:
        self._waiting -= 1
        assert self._committed is not None
        self._committed(entry, position)

    def _lost(self, error: MillraceError) -> None:
        self._waiting = 0
        assert self._failed is not None
        self._failed(error)
