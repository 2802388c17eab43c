"""The local journal: committed means synced on this machine's disk."""

from __future__ import annotations

from millrace.core.changes import Entry
from millrace.core.model import Epoch, GroupId, History, Index
from millrace.errors import Fatal, MillraceError
from millrace.journal.base import Committed, Dropped, Failed
from millrace.journal.log_writer import LogWriter
from millrace.wal.record import LogPosition

LOCAL = GroupId(0)
"""The commit group of the local journal."""


class LocalJournal:
    """Commits an entry when the log has synced it. Survives kill, crash and loss of power."""

    def __init__(
        self, group: GroupId, epoch: Epoch, history: History, last: Index, writer: LogWriter
    ) -> None:
        """Continue after the entry `last`, and fence earlier deciders of the group."""
        self.group = group
        self.epoch = epoch
        self.history = history
        self._accepted = last
        self._synced = last
        self._writer = writer
        self.record_bytes_max = writer.record_bytes_max
        self._committed: Committed | None = None
        self._dropped: Dropped | None = None
        self._failed: Failed | None = None
        writer.own(group, epoch, self._lose)

    def listen(self, committed: Committed, dropped: Dropped, failed: Failed) -> None:
        self._committed = committed
        self._dropped = dropped
        self._failed = failed

    def append(self, entry: Entry, *, alone: bool, reserve: bool) -> None:
        self._writer.check_owner(self.group, self.epoch)
        if entry.index != self._accepted + 1:
            raise Fatal(f"entry {entry.index} cannot follow entry {self._accepted}")
        self._accepted = entry.index
        try:
            self._writer.submit(entry, self._commit, self._lose, alone=alone, reserve=reserve)
        except MillraceError:
            self._accepted = Index(entry.index - 1)
            raise

    def next_index(self) -> Index:
        return Index(self._accepted + 1)

    def waiting(self) -> int:
        return self._accepted - self._synced

    def room(self, *, reserve: bool) -> int:
        return self._writer.room(reserve=reserve)

    def _commit(self, entry: Entry, position: LogPosition) -> None:
        self._synced = entry.index
        assert self._committed is not None
        self._committed(entry, position)

    def _lose(self, error: MillraceError) -> None:
        self._accepted = self._synced
        if isinstance(error, Fatal):
            if self._failed is not None:
                self._failed(error)
            return
        assert self._dropped is not None
        self._dropped(Index(self._synced + 1), error)
