"""What the log says of each commit group, read from a mark to its end.

Records are what was synced together, not what committed together: entries of many groups lie side
by side, some of them taken back later, some not committed when the node ended.

Rule 1: an entry voids its group's earlier entries of the same and higher indexes (L1).
Rule 2: what is committed is folded once: entries at or below the applied index are skipped (C1).
Rule 3: the uncommitted suffix and the node's facts survive: they are handed to the journal (L6).
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.core.changes import Entry, EntryKind
from millrace.core.model import GroupId, Index
from millrace.errors import Corrupt
from millrace.log.record import Position

Fold = Callable[[Entry, Position], None]


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
        """Entries that are not known to be committed, by index."""

    def read(self, entry: Entry, position: Position) -> None:
        """Take in the next entry of the log."""
        suffix = self.suffixes.setdefault(entry.group, {})
        match entry.kind:
            case EntryKind.DATA:
                for index in [index for index in suffix if index >= entry.index]:
                    del suffix[index]
                suffix[entry.index] = (entry, position)
                if self._commits_when_synced(entry.group):
                    self._commit(entry.group, entry.index)
            case EntryKind.VOID:
                for index in [index for index in suffix if index > entry.index]:
                    del suffix[index]
            case EntryKind.COMMIT:
                self._commit(entry.group, entry.index)
            case EntryKind.FACT:
                self.facts[entry.group] = entry.fact

    def _commit(self, group: GroupId, upto: Index) -> None:
        suffix = self.suffixes[group]
        for index in sorted(index for index in suffix if index <= upto):
            entry, position = suffix.pop(index)
            applied = self._applied(group)
            if index <= applied:
                continue
            if index != applied + 1:
                raise Corrupt(
                    f"group {group}: entry {index} is committed, but {applied + 1} is missing; "
                    "restore the folder from a backup"
                )
            self._fold(entry, position)
