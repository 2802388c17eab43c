"""A journal that commits late, out of step or never, as one that depends on other nodes would.

Its entries are synced at once, with everyone's, in the log that all groups share. When they are
committed, the test says; it also says when they are taken back or replaced, as a new leader would.
It writes what a Raft log would: entries, the commit point, term and vote. So it shows that the seam
is wide enough for journals that come later, and drives the rules L1, L6, L7 and C1.

Rule 1: only synced entries can be committed, and only uncommitted ones can be rolled back.
Rule 2: no rollback is reported before it is synced: a crash would bring the entries back.
Rule 3: the suffix has the position of an entry: a rewrite may have changed it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import NamedTuple

from millrace import limits
from millrace.core.changes import Entry, EntryKind
from millrace.core.model import Epoch, GroupId, History, Index
from millrace.errors import Fatal, Full, MillraceError, Retry
from millrace.journal.base import Committed, Dropped, Failed
from millrace.journal.log_writer import LogWriter
from millrace.wal.record import LogPosition

_FACT = struct.Struct("<QQ")


class Ballot(NamedTuple):
    """Durable state of a member of a quorum."""

    term: int
    vote: int


class LateJournal:
    """Commits what the test says, when it says so."""

    def __init__(
        self, group: GroupId, epoch: Epoch, history: History, applied: Index, writer: LogWriter
    ) -> None:
        """Go on with what the writer knows of the group; the store has folded it up to `applied`.

        Entries that an earlier decider has left wait here, as if they had been appended.
        """
        self.group = group
        self.epoch = epoch
        """The epoch of the next entry: it rises above that of another leader (L10)."""
        self._claim = epoch
        self._own_epochs = {epoch}
        self.history = history
        self.record_bytes_max = writer.suffix_bytes_max - limits.RECORD_SLACK_BYTES
        self._writer = writer
        self._suffixes = writer.suffixes
        self._suffixes.track(group, applied)
        self._accepted = self._suffixes.last(group)
        self.last = self._accepted
        """The index of the last entry, once all that was asked for is written."""
        self._committed_index = self._suffixes.applied(group)
        self._rolling_back = 0
        self._ended: Fatal | None = None
        self._committed: Committed | None = None
        self._dropped: Dropped | None = None
        self._failed: Failed | None = None
        self._loop = asyncio.get_running_loop()
        writer.own(group, epoch, self._lose)

    # --- The journal ----------------------------------------------------------------------------

    def listen(self, committed: Committed, dropped: Dropped, failed: Failed) -> None:
        self._committed = committed
        self._dropped = dropped
        self._failed = failed

    def append(self, entry: Entry, *, alone: bool, reserve: bool) -> None:
        self._check()
        if self._rolling_back:
            raise Full("the group is rolling back; send again", field="journal")
        if entry.index != self._accepted + 1:
            raise Fatal(f"entry {entry.index} cannot follow entry {self._accepted}")
        self._accepted = self.last = entry.index
        try:
            self._writer.submit(entry, _nobody, self._lose, alone=alone, reserve=reserve)
        except MillraceError:
            self._accepted = self.last = Index(entry.index - 1)
            raise

    def next_index(self) -> Index:
        return Index(self._accepted + 1)

    def waiting(self) -> int:
        return self._accepted - self._committed_index

    def room(self, *, reserve: bool) -> int:
        left = self._writer.suffix_bytes_max - self._suffixes.size(self.group)
        return min(left, self._writer.room(reserve=reserve))

    # --- What the test says ---------------------------------------------------------------------

    def commit(self, upto: int | None = None, *, is_written: bool = True) -> Index:
        """Commit the synced entries up to an index, and report them; return the commit point.

        Nothing is committed during a rollback: it may be part of the rollback.
        `is_written`: the commit point goes into the log, with the next record. Without it a restart
        has to learn of it from elsewhere, unless a checkpoint has it.
        """
        self._check()
        assert self._committed is not None
        before = self._committed_index
        for held in self._suffixes.held(self.group):
            if self._rolling_back:
                break
            if upto is not None and held.entry.index > upto:
                break
            self._committed_index = held.entry.index
            self._committed(held.entry, held.position)
            self._suffixes.folded(self.group, held.entry.index)
        if is_written and self._committed_index > before:
            self._note(EntryKind.COMMIT, self._committed_index)
        return self._committed_index

    def void(self, after: int) -> asyncio.Future[None]:
        """Roll back the entries above this index; done when that is synced and reported."""
        self._check_uncommitted(after)
        return self._note(EntryKind.VOID, Index(after))

    def replace(self, entries: Sequence[Entry]) -> asyncio.Future[None]:
        """Replace the present entries, from the first index on, by these of another leader.

        They need not be synced together: each voids what it replaces, and all that came after it.
        """
        futures: list[asyncio.Future[None]] = []
        for entry in entries:
            self._check_uncommitted(entry.index - 1)
            futures.append(self._submit(entry))
            self.epoch = Epoch(max(self.epoch, entry.epoch + 1))
        self._own_epochs.add(self.epoch)
        return futures[-1]

    def remember(self, term: int, vote: int) -> asyncio.Future[None]:
        """Write down term and vote; nobody may hear of them before this is done."""
        return self._note(EntryKind.FACT, Index(0), _FACT.pack(term, vote))

    @property
    def commit_point(self) -> Index:
        """The index of the last entry that is committed."""
        return self._committed_index

    def ballot(self) -> Ballot:
        """Term and vote, as the log has them."""
        fact = self._suffixes.facts.get(self.group)
        return Ballot(*_FACT.unpack(fact)) if fact else Ballot(0, 0)

    def resign(self, why: str = "another node decides for this queue now") -> None:
        """Stop deciding: the outcome of waiting calls is unknown."""
        self._lose(Fatal(why))

    # --- Within ---------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended.with_traceback(None)
        self._writer.check_owner(self.group, self._claim)

    def _check_uncommitted(self, after: int) -> None:
        if not self._committed_index <= after <= self.last:
            raise Fatal(
                f"entries after {after} cannot be taken back: {self._committed_index} is committed "
                f"and {self.last} the last one"
            )

    def _note(self, kind: EntryKind, index: Index, fact: bytes = b"") -> asyncio.Future[None]:
        """Write an entry that only this node reads; done when it is synced."""
        entry = Entry(self.group, self.epoch, index, self.history, [], kind=kind, fact=fact)
        return self._submit(entry)

    def _submit(self, entry: Entry) -> asyncio.Future[None]:
        """Write an entry that no decider of this journal has made; done when it is synced."""
        self._check()
        told: asyncio.Future[None] = self._loop.create_future()
        rolls_back = entry.kind in (EntryKind.VOID, EntryKind.DATA)

        def synced(entry: Entry, position: LogPosition) -> None:
            if rolls_back:
                self._rolling_back -= 1
                self._roll_back()
            if not told.done():
                told.set_result(None)

        def failed(error: MillraceError) -> None:
            if rolls_back:
                self._rolling_back -= 1
            if not told.done():
                told.set_exception(error)
                # A commit point that was not written down is learnt again; others are awaited.
                told.exception()
            self._lose(error)

        self._rolling_back += rolls_back
        try:
            self._writer.submit(entry, synced, failed, alone=False, reserve=True)
        except MillraceError:
            self._rolling_back -= rolls_back
            raise
        if rolls_back:
            self.last = entry.index
        return told

    def _roll_back(self) -> None:
        """The log has fewer entries of the group than were accepted, or others."""
        decided = [
            held.entry.index
            for held in self._suffixes.held(self.group)
            if held.entry.epoch in self._own_epochs
        ]
        self._accepted = self._suffixes.last(self.group)
        if self._dropped is not None:
            first = max(decided, default=self._committed_index) + 1
            self._dropped(Index(first), Retry("it was rolled back; send again"))

    def _lose(self, error: MillraceError) -> None:
        if isinstance(error, Fatal):
            if self._ended is None:
                self._ended = error
                if self._failed is not None:
                    self._failed(error)
            return
        # Entries in the log stay; only those on their way to it are gone.
        last = self.last = self._suffixes.last(self.group)
        if self._accepted > last:
            self._accepted = last
            if self._dropped is not None:
                self._dropped(Index(last + 1), error)


def _nobody(entry: Entry, position: LogPosition) -> None:
    """The suffix knows that it is synced; no callback runs before it is committed."""
