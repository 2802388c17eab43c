"""The journal interface: makes entries durable and reports when they are committed.

A journal serves one commit group, for one decider. Each journal defines *committed*: synced here
(local), on every member (chain), on a majority (quorum). The log of the node is every journal's
local half; entries of all groups share its records.

Callbacks run on the event loop's thread, perhaps before `append` has returned, and must not raise:
a committed entry that was not folded is for recovery, so that the node stops.
`tests.support.contracts.check_journal` holds every journal to this page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millrace.core.changes import Entry
from millrace.core.model import Epoch, GroupId, History, Index
from millrace.errors import Fatal, MillraceError
from millrace.wal.record import LogPosition

Committed = Callable[[Entry, LogPosition], None]
"""Callback for each committed entry, once, in the order of the group's indexes, with its position.

The position may differ from the first one, and the entry may be another object: an entry that
waited for long was appended again. Entries of an earlier decider are reported, too.
"""

Dropped = Callable[[Index, MillraceError], None]
"""Callback: the entries from this index on were not accepted, and nothing of them was written.

The next entry must have this index again. Entries before it stay, and will be committed.
"""

Failed = Callable[[Fatal], None]
"""Callback, once: nothing more is committed here; the outcome of accepted entries is UNKNOWN."""


class Journal(Protocol):
    """Makes the entries of one commit group durable."""

    group: GroupId
    epoch: Epoch
    history: History
    record_bytes_max: int
    """Approximate limit of the bytes of one entry's commands."""

    def append(self, entry: Entry, *, alone: bool, reserve: bool) -> None:
        """Append the entry after all accepted ones; one of the callbacks reports the outcome.

        `alone`: nothing else is queued, so that it may be written at once.
        `reserve`: it frees space, and may use the segments kept for that.

        Raises:
            TooLarge: it could never be written; nothing was accepted.
            Retry: the journal may not write now; nothing was accepted.
            Fatal: the journal has ended, or the entry is not the next one.
        """
        ...

    def listen(self, committed: Committed, dropped: Dropped, failed: Failed) -> None:
        """Register the callbacks. Called once, before the first append."""
        ...

    def next_index(self) -> Index:
        """Return the index that the next entry must have."""
        ...

    def waiting(self) -> int:
        """Return the number of entries in flight, without the one whose callback is running.

        If it is not 0 at the beginning, an earlier decider has left entries: the store is not yet
        the state on which the next decision must be based.
        """
        ...

    def room(self, *, reserve: bool) -> int:
        """Return the bytes that may be appended now."""
        ...
