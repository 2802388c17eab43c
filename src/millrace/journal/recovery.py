"""Recovery: replays the WAL into the store, group by group.

A record holds entries that were synced together, not committed together: it has entries of many
groups, some of them voided later, some not committed when the node ended.

Rule 1: an entry voids its group's earlier entries of the same and higher indexes, as far as their
epochs are not higher (L1, L10).
Rule 2: committed entries are folded once: entries at or below the applied index are skipped, but
still void others (C1).
Rule 3: the uncommitted suffix and the node's facts survive: they are passed to the journal (L6).
Rule 4: a committed entry that is missing is `Corrupt`: the checkpoint should have kept it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millrace.core.changes import Entry, EntryKind
from millrace.core.format.codec import decode_entries
from millrace.core.model import Epoch, GroupId, Index
from millrace.errors import Corrupt
from millrace.journal.uncommitted import NO_EPOCH, EpochStarts, UncommittedSuffixes
from millrace.wal.record import LogPosition

Fold = Callable[[Entry, LogPosition], None]

Records = Iterable[tuple[LogPosition, memoryview]]
"""Position and payload of each record, from a replay."""


class Recovery:
    """Feeds committed entries to a store, in the order in which they were committed."""

    def __init__(
        self,
        applied: Callable[[GroupId], Index],
        facts: dict[GroupId, bytes],
        fold: Fold,
        *,
        commits_when_synced: Callable[[GroupId], bool],
        epoch: Callable[[GroupId], Epoch] = lambda _: NO_EPOCH,
    ) -> None:
        """`applied` returns the last index of a group in the store, `epoch` the epoch that the
        last entry of a group had when the replay began."""
        self._applied = applied
        self._epoch = epoch
        self._fold = fold
        self._commits_when_synced = commits_when_synced
        self.facts = dict(facts)
        """The newest fact that each journal recorded of its group for this node only."""
        self.suffixes: dict[GroupId, dict[Index, tuple[Entry, LogPosition]]] = {}
        """Entries that are not known to be committed, by index, in order."""
        self._epochs: dict[GroupId, EpochStarts] = {}

    def read_all(self, records: Records) -> None:
        """Process the entries of these records; none is kept in memory longer than necessary."""
        for position, payload in records:
            for entry in decode_entries(payload):
                self.read(entry, position)

    def read(self, entry: Entry, position: LogPosition) -> None:
        """Process the next entry of the log."""
        suffix = self.suffixes.setdefault(entry.group, {})
        match entry.kind:
            case EntryKind.DATA:
                if self._epochs_of(entry.group).admit(entry):
                    self._put(entry, position)
                if self._commits_when_synced(entry.group):
                    self._commit(entry.group, entry.index)
            case EntryKind.VOID:
                if self._epochs_of(entry.group).admit(entry):
                    _void(suffix, entry.index)
            case EntryKind.COMMIT:
                self._commit(entry.group, entry.index)
            case EntryKind.FACT:
                self.facts[entry.group] = entry.fact

    def _epochs_of(self, group: GroupId) -> EpochStarts:
        epochs = self._epochs.get(group)
        if epochs is None:
            epochs = self._epochs[group] = EpochStarts(self._applied(group), self._epoch(group))
        return epochs

    def _put(self, entry: Entry, position: LogPosition) -> None:
        """Add an entry to its suffix, in place of those of its own and higher indexes."""
        suffix = self.suffixes[entry.group]
        last = next(reversed(suffix.values()), None)
        if last is not None and last[0].epoch > entry.epoch:
            # It is written again, below the first entry of a higher epoch, which stays. Replay may
            # begin between the two, behind its first copy: then it is missing here.
            if entry.index > self._applied(entry.group):
                suffix[entry.index] = (entry, position)
                in_order = sorted(suffix.items())
                suffix.clear()
                suffix.update(in_order)
            return
        _void(suffix, entry.index - 1)
        if entry.index > self._applied(entry.group):
            suffix[entry.index] = (entry, position)

    def hand_over(self) -> UncommittedSuffixes:
        """Return the uncommitted suffixes for the journals, after the whole log was read.

        The dictionary of facts is shared, and kept up to date from then on.
        """
        suffixes = UncommittedSuffixes(self.facts)
        for group, suffix in self.suffixes.items():
            if not self._commits_when_synced(group):
                suffixes.restore(group, self._applied(group), suffix, self._epochs_of(group))
        return suffixes

    def _commit(self, group: GroupId, upto: Index) -> None:
        suffix = self.suffixes[group]
        for index in [index for index in suffix if index <= upto]:
            entry, position = suffix.pop(index)
            if index != self._applied(group) + 1:
                break
            self._fold(entry, position)
        if self._applied(group) < upto:
            raise Corrupt(
                f"group {group}: entry {upto} is committed, but {self._applied(group) + 1} is "
                "missing; restore the folder from a backup"
            )


def dry_run(
    records: Records,
    applied: Callable[[GroupId], Index],
    facts: dict[GroupId, bytes],
    *,
    commits_when_synced: Callable[[GroupId], bool],
    epoch: Callable[[GroupId], Epoch] = lambda _: NO_EPOCH,
) -> dict[GroupId, bytes]:
    """Read the records like `Recovery`, without folding; return the newest facts.

    Everything that recovery would refuse is refused here, before anything was changed.

    Raises:
        Corrupt: an entry does not decode, or a committed one is missing.
    """
    reached: dict[GroupId, Index] = {}

    def note(entry: Entry, position: LogPosition) -> None:
        reached[entry.group] = entry.index

    recovery = Recovery(
        lambda group: reached.get(group, applied(group)),
        facts,
        note,
        commits_when_synced=commits_when_synced,
        epoch=epoch,
    )
    recovery.read_all(records)
    return recovery.facts


def _void(suffix: dict[Index, tuple[Entry, LogPosition]], above: int) -> None:
    for index in [index for index in suffix if index > above]:
        del suffix[index]
