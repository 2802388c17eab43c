"""The promise of a journal: it makes entries durable and says when they are committed.

A journal serves one or more commit groups. What *committed* means is its own: synced here (local),
on every member (chain), on a majority (quorum). The log of the node is every journal's local half;
entries of all groups share its records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millrace.core.changes import Entry
from millrace.core.model import Epoch, GroupId, History, Index
from millrace.errors import MillraceError
from millrace.log.record import Position

Committed = Callable[[Entry, Position], None]
"""Told of each committed entry, in the order of the group's indexes."""

Failed = Callable[[MillraceError], None]
"""Told once that no further entry will be committed; what was not is UNKNOWN, or not accepted."""


class Journal(Protocol):
    """Makes the entries of one commit group durable."""

    group: GroupId
    epoch: Epoch
    history: History
    record_bytes_max: int
    """About how many bytes the commands of one entry may add up to."""

    def append(self, entry: Entry, *, alone: bool, reserve: bool) -> None:
        """Place the entry after everything accepted so far; `committed` is called when it is.

        `alone`: nothing else waits, so that it may be written at once.
        `reserve`: it frees space, and may use what is kept back for that.

        Raises:
            Retry: the journal may not write now; nothing was accepted.
            Fatal: the journal has ended.
        """
        ...

    def listen(self, committed: Committed, failed: Failed) -> None:
        """Say who is told. Called once, before the first append."""
        ...

    def next_index(self) -> Index:
        """The index that the next entry must have."""
        ...

    def waiting(self) -> int:
        """Entries that were accepted and are not committed."""
        ...

    def room(self, *, reserve: bool) -> int:
        """Bytes that may be appended now."""
        ...
