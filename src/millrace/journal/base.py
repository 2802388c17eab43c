"""The promise of a journal: it makes entries durable and says when they are committed.

A journal serves one commit group, for one decider. What *committed* means is its own: synced here
(local), on every member (chain), on a majority (quorum). The log of the node is every journal's
local half; entries of all groups share its records.

Whoever listens is told on the event loop's thread, perhaps before `append` has returned, and must
not raise: an entry that is committed and was not taken in is for recovery, so that the node ends.
`tests.support.contracts.check_journal` holds every journal to this page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millrace.core.changes import Entry
from millrace.core.model import Epoch, GroupId, History, Index
from millrace.errors import Fatal, MillraceError
from millrace.wal.record import Position

Committed = Callable[[Entry, Position], None]
"""Told of each committed entry, once, in the order of the group's indexes, and of where it lies.

That may be another place than the first one, and the entry another object: one that waited for long
was appended again. Entries that an earlier decider has left are told of, too.
"""

Dropped = Callable[[Index, MillraceError], None]
"""Told that the entries from this index on were not accepted, and why: nothing of them was written.

The next entry must have this index again. Entries before it stay, and are committed in their time.
"""

Failed = Callable[[Fatal], None]
"""Told once that nothing more is committed here; what was accepted and was not is UNKNOWN."""


class Journal(Protocol):
    """Makes the entries of one commit group durable."""

    group: GroupId
    epoch: Epoch
    history: History
    record_bytes_max: int
    """About how many bytes the commands of one entry may add up to."""

    def append(self, entry: Entry, *, alone: bool, reserve: bool) -> None:
        """Place the entry after everything accepted so far; one of the listeners is told of it.

        `alone`: nothing else waits, so that it may be written at once.
        `reserve`: it frees space, and may use what is kept back for that.

        Raises:
            TooLarge: it could never be written; nothing was accepted.
            Retry: the journal may not write now; nothing was accepted.
            Fatal: the journal has ended, or the entry is not the next one.
        """
        ...

    def listen(self, committed: Committed, dropped: Dropped, failed: Failed) -> None:
        """Say who is told. Called once, before the first append."""
        ...

    def next_index(self) -> Index:
        """The index that the next entry must have."""
        ...

    def waiting(self) -> int:
        """Entries that were accepted and are not committed; one that is told of is not counted.

        Where it is not 0 at the beginning, an earlier decider has left entries: the store is not
        what the next decision must be based on before they are committed.
        """
        ...

    def room(self, *, reserve: bool) -> int:
        """Bytes that may be appended now."""
        ...
