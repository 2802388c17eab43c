"""What the log says of each commit group, read from a mark to its end.

Records are what was synced together, not what committed together: entries of many groups lie side
by side, some of them taken back later, some not committed when the node ended.

Rule 1: an entry voids its group's earlier entries of the same and higher indexes (L1).
Rule 2: what is committed is folded once: entries at or below the applied index are skipped, though
they still void others (C1).
Rule 3: the uncommitted suffix and the node's facts survive: they are handed to the journal (L6).
Rule 4: what is committed and not there is `Corrupt`: the checkpoint should not have let it go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millrace.core.changes import Entry, EntryKind
from millrace.core.codec import decode_entries
from millrace.core.model import GroupId, Index
from millrace.errors import Corrupt
from millrace.journal.suffix import Suffixes
from millrace.wal.record import Position

Fold = Callable[[Entry, Position], None]

Records = Iterable[tuple[Position, memoryview]]
"""Place and payload of each, as a replay gives them."""


class Recovery:
    """Feeds committed entries to a store, in the order in which they were committed."""

    def __init__(
        self,
        applied: Callable[[GroupId], Index],
        facts: dict[GroupId, bytes],
        fold: Fold,
        *,
        commits_when_synced: Callable[[GroupId], bool],
    ) -> None:
        self._applied = applied
        self._fold = fold
        self._commits_when_synced = commits_when_synced
        self.facts = dict(facts)
        """What each journal wrote down of its group for this node alone; the newest."""
        self.suffixes: dict[GroupId, dict[Index, tuple[Entry, Position]]] = {}
        """Entries that are not known to be committed, by index, in order."""

    def read_all(self, records: Records) -> None:
        """Take in the entries of these records; none is kept longer than it must be."""
        for position, payload in records:
            for entry in decode_entries(payload):
                self.read(entry, position)

    def read(self, entry: Entry, position: Position) -> None:
        """Take in the next entry of the log."""
        suffix = self.suffixes.setdefault(entry.group, {})
        match entry.kind:
            case EntryKind.DATA:
                _void(suffix, entry.index - 1)
                if entry.index > self._applied(entry.group):
                    suffix[entry.index] = (entry, position)
                if self._commits_when_synced(entry.group):
                    self._commit(entry.group, entry.index)
            case EntryKind.VOID:
                _void(suffix, entry.index)
            case EntryKind.COMMIT:
                self._commit(entry.group, entry.index)
            case EntryKind.FACT:
                self.facts[entry.group] = entry.fact

    def hand_over(self) -> Suffixes:
        """What the journals go on with; read the whole log first.

        The dictionary of facts is shared, and kept up to date from then on.
        """
        suffixes = Suffixes(self.facts)
        for group, found in self.suffixes.items():
            if not self._commits_when_synced(group):
                suffixes.restore(group, self._applied(group), found)
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


def rehearse(
    records: Records,
    applied: Callable[[GroupId], Index],
    facts: dict[GroupId, bytes],
    *,
    commits_when_synced: Callable[[GroupId], bool],
) -> dict[GroupId, bytes]:
    """Read the records as a `Recovery` will, but fold nothing; return the newest facts.

    What recovery would refuse is refused here, before anything was changed.

    Raises:
        Corrupt: an entry does not decode, or a committed one is missing.
    """
    reached: dict[GroupId, Index] = {}

    def note(entry: Entry, position: Position) -> None:
        reached[entry.group] = entry.index

    recovery = Recovery(
        lambda group: reached.get(group, applied(group)),
        facts,
        note,
        commits_when_synced=commits_when_synced,
    )
    recovery.read_all(records)
    return recovery.facts


def _void(suffix: dict[Index, tuple[Entry, Position]], above: int) -> None:
    for index in [index for index in suffix if index > above]:
        del suffix[index]
