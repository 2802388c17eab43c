"""What this node alone must not forget of its groups: facts, and entries that are not folded yet.

A group whose journal commits late has a suffix: entries that are synced here, and that may still be
committed, taken back or replaced. They lie in the log alone, so that the log must be read from the
oldest of them, for as long as they stand.

Rule 1: this is what a replay of the log would find: it changes when a record is synced, in the
order of the log, and by nothing else but `folded`.
Rule 2: facts and suffixes are of this node: in every checkpoint, the facts as values, the suffixes
by the mark where replay begins (L6).
Rule 3: a suffix fits into one record, so that it can be appended again in one (L7). Entry by entry
would not do: the first of them voids the others that are in the log, and a crash before they are
written again would lose what was promised to be here.
Rule 4: an entry, its place in the log and the places of its blocks belong together. What is written
again is a copy; it takes the place of the old one when it is synced, and not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from millrace.core.changes import Batch, Entry, EntryKind
from millrace.core.codec import decode_entries, encode_entry
from millrace.core.model import GroupId, Index
from millrace.errors import Fatal
from millrace.wal.record import Position


class Held(NamedTuple):
    """An entry of a suffix, and where it lies."""

    entry: Entry
    position: Position
    size: int
    """Bytes of the entry in its record."""


class _Suffix:
    __slots__ = ("folded", "held", "size")

    def __init__(self, folded: Index) -> None:
        self.folded = folded
        self.held: dict[Index, Held] = {}
        """In the order of the indexes, without a gap, from `folded` + 1 on."""
        self.size = 0

    def void(self, above: int) -> None:
        while self.held:
            index, held = self.held.popitem()
            if index <= above:
                self.held[index] = held
                return
            self.size -= held.size

    def last(self) -> Index:
        return next(reversed(self.held), self.folded)


class Suffixes:
    """The facts and the suffixes of a node's groups."""

    def __init__(self, facts: dict[GroupId, bytes] | None = None) -> None:
        self.facts: dict[GroupId, bytes] = {} if facts is None else facts
        """The newest fact of each group; the dictionary that was given is kept up to date."""
        self._suffixes: dict[GroupId, _Suffix] = {}

    # --- Beginnings -----------------------------------------------------------------------------

    def track(self, group: GroupId, applied: Index) -> None:
        """Look after a group that commits late; `applied` is what the store has folded of it.

        One that is looked after already stays as it is.
        """
        if group not in self._suffixes:
            self._suffixes[group] = _Suffix(applied)

    def restore(
        self,
        group: GroupId,
        applied: Index,
        found: Mapping[Index, tuple[Entry, Position]],
    ) -> None:
        """Look after a group, of which recovery has found this suffix."""
        suffix = self._suffixes[group] = _Suffix(applied)
        for index, (entry, position) in sorted(found.items()):
            if index != suffix.last() + 1:
                raise Fatal(f"group {group}: entry {index} cannot follow {suffix.last()}")
            held = _compact(entry, position)
            suffix.held[index] = held
            suffix.size += held.size

    def __contains__(self, group: GroupId) -> bool:
        return group in self._suffixes

    # --- What happens ---------------------------------------------------------------------------

    def synced(self, entry: Entry, position: Position, size: int) -> None:
        """The entry is in the log now; the next one of the log is told after it."""
        if entry.kind is EntryKind.FACT:
            self.facts[entry.group] = entry.fact
            return
        suffix = self._suffixes.get(entry.group)
        if suffix is None:
            return
        if entry.kind is EntryKind.VOID:
            suffix.void(max(entry.index, suffix.folded))
        elif entry.kind is EntryKind.DATA:
            suffix.void(max(entry.index - 1, suffix.folded))
            if entry.index > suffix.folded:
                suffix.held[entry.index] = Held(entry, position, size)
                suffix.size += size

    def folded(self, group: GroupId, upto: Index) -> None:
        """The store holds the group's entries up to this index: it answers for them."""
        suffix = self._suffixes[group]
        for index in [index for index in suffix.held if index <= upto]:
            suffix.size -= suffix.held.pop(index).size
        suffix.folded = max(suffix.folded, upto)

    # --- Questions ------------------------------------------------------------------------------

    def last(self, group: GroupId) -> Index:
        """The index of the group's last entry in the log."""
        return self._suffixes[group].last()

    def applied(self, group: GroupId) -> Index:
        """The index of the group's last entry in the store."""
        return self._suffixes[group].folded

    def held(self, group: GroupId) -> list[Held]:
        """The group's suffix, in order: what is synced here and not folded."""
        return list(self._suffixes[group].held.values())

    def size(self, group: GroupId, below: Index | None = None) -> int:
        """Bytes of the suffix, or of its entries below an index."""
        suffix = self._suffixes[group]
        if below is None or below > suffix.last():
            return suffix.size
        return sum(held.size for index, held in suffix.held.items() if index < below)

    def oldest(self) -> Position | None:
        """The oldest record that replay must read, of all groups; None if none holds anything."""
        return min((held.position for held in self._firsts().values()), default=None)

    def before(self, generation: int) -> list[GroupId]:
        """The groups whose suffix begins in an older generation, and so keeps it in the log."""
        return [
            group for group, held in self._firsts().items() if held.position.generation < generation
        ]

    def copies(self, group: GroupId) -> list[Entry]:
        """The suffix as entries that can be appended again: same indexes, same epochs."""
        return [_copy(held.entry) for held in self._suffixes[group].held.values()]

    def _firsts(self) -> dict[GroupId, Held]:
        # Entries of a group lie in the log in the order of their indexes.
        return {
            group: next(iter(suffix.held.values()))
            for group, suffix in self._suffixes.items()
            if suffix.held
        }


def _copy(entry: Entry) -> Entry:
    """The same entry, whose blocks may lie elsewhere."""
    batches = [
        Batch(batch.shard, batch.index, batch.time_ms, batch.changes, batch.blocks)
        for batch in entry.batches
    ]
    return Entry(entry.group, entry.epoch, entry.index, entry.history, batches, kind=entry.kind)


def _compact(entry: Entry, position: Position) -> Held:
    """A recovered entry in memory of its own: it may have to be kept for hours.

    As replay gives it, its blocks lie over everything that was read with it.
    """
    data = b"".join(encode_entry(_copy(entry), 0))
    [compact] = decode_entries(memoryview(data))
    for batch, old in zip(compact.batches, entry.batches, strict=True):
        batch.places = old.places
    return Held(compact, position, len(data))
