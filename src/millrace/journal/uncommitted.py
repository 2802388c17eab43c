"""Uncommitted suffixes: entries of commit groups in the log that are not folded yet, and facts.

A group whose journal commits late has a suffix: entries that are synced here, and that may still be
committed, voided or replaced. They exist only in the log, so that replay must begin at the oldest
of them, as long as they are uncommitted.

Rule 1: this is the same as what a replay of the log would find: it changes when a record is synced,
in the order of the log, and by `folded`.
Rule 2: facts and suffixes belong to this node: every checkpoint has the facts as values, and the
suffixes by the mark at which replay begins (L6).
Rule 3: a suffix fits into one record, so that it can be rewritten in one (L7). Rewriting it entry
by entry would not do: the first entry voids the others in the log, and a crash before they are
rewritten would lose entries that this node has promised to keep.
Rule 4: an entry or a void acts on entries of the same and lower epochs only (L10): a late void of a
former decider would otherwise drop what its successor has acknowledged.
Rule 5: an entry, its position in the log and the locations of its blocks belong together. A rewrite
is a copy, which replaces the old entry when it is synced, and not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from millrace.core.changes import Batch, Entry, EntryKind
from millrace.core.format.codec import decode_entries, encode_entry
from millrace.core.model import Epoch, GroupId, Index
from millrace.errors import Fatal
from millrace.wal.record import LogPosition

NO_EPOCH = Epoch(0)
"""Lower than the epoch of every decider."""


class EpochStarts:
    """The first index of each epoch of a group: tells entries of replaced deciders (L10).

    Entries of a decider may reach the log after those of its successor, which began at the index
    behind the last entry that the former decider could commit. So an entry is stale if a higher
    epoch has begun at or below its index, and a void if a higher epoch has begun at all: what
    precedes that epoch was committed by its decider. Entries of a lower epoch below that are not
    stale: a suffix is rewritten with the epochs of its entries.
    """

    __slots__ = ("_starts",)

    def __init__(self, applied: Index, epoch: Epoch) -> None:
        """Begin with the last entry in the store, whose epoch began at or below it."""
        self._starts: dict[Epoch, int] = {epoch: applied}

    def admit(self, entry: Entry) -> bool:
        """Return whether a data entry or void takes effect, and note the start of its epoch."""
        is_void = entry.kind is EntryKind.VOID
        first = entry.index + 1 if is_void else entry.index
        for epoch, start in self._starts.items():
            if epoch > entry.epoch and (is_void or start <= first):
                return False
        self._starts[entry.epoch] = min(first, self._starts.get(entry.epoch, first))
        return True


class UncommittedEntry(NamedTuple):
    """An entry of a suffix, and its position in the log."""

    entry: Entry
    position: LogPosition
    size: int
    """Size of the entry in its record, in bytes."""


class _Suffix:
    __slots__ = ("epochs", "folded", "held", "size")

    def __init__(self, folded: Index, epoch: Epoch) -> None:
        self.folded = folded
        self.epochs = EpochStarts(folded, epoch)
        self.held: dict[Index, UncommittedEntry] = {}
        """Entries in the order of their indexes, without a gap, from `folded` + 1 on."""
        self.size = 0

    def void(self, above: int) -> None:
        while self.held:
            index, held = self.held.popitem()
            if index <= above:
                self.held[index] = held
                return
            self.size -= held.size

    def put(self, held: UncommittedEntry) -> None:
        """Add an entry in place of those of its own and higher indexes."""
        index = held.entry.index
        last = self.held.get(self.last())
        if last is not None and last.entry.epoch > held.entry.epoch:
            # It is written again, below the first entry of a higher epoch, which stays.
            if index in self.held:
                self.size += held.size - self.held[index].size
                self.held[index] = held
            return
        self.void(max(index - 1, self.folded))
        if index > self.folded:
            self.held[index] = held
            self.size += held.size

    def last(self) -> Index:
        return next(reversed(self.held), self.folded)


class UncommittedSuffixes:
    """Facts and uncommitted suffixes of a node's groups."""

    def __init__(self, facts: dict[GroupId, bytes] | None = None) -> None:
        self.facts: dict[GroupId, bytes] = {} if facts is None else facts
        """The newest fact of each group; the dictionary that was passed in is kept up to date."""
        self._suffixes: dict[GroupId, _Suffix] = {}

    # --- Beginnings -----------------------------------------------------------------------------

    def track(self, group: GroupId, applied: Index, epoch: Epoch = NO_EPOCH) -> None:
        """Track a group that commits late; `applied` is the last index that the store has folded,
        `epoch` the one of that entry.

        A group that is tracked already stays as it is.
        """
        if group not in self._suffixes:
            self._suffixes[group] = _Suffix(applied, epoch)

    def restore(
        self,
        group: GroupId,
        applied: Index,
        recovered: Mapping[Index, tuple[Entry, LogPosition]],
        epochs: EpochStarts,
    ) -> None:
        """Track a group with the suffix and the epochs that recovery has found."""
        suffix = self._suffixes[group] = _Suffix(applied, NO_EPOCH)
        suffix.epochs = epochs
        for index, (entry, position) in sorted(recovered.items()):
            if index != suffix.last() + 1:
                raise Fatal(f"group {group}: entry {index} cannot follow {suffix.last()}")
            suffix.put(_compact(entry, position))

    def __contains__(self, group: GroupId) -> bool:
        return group in self._suffixes

    # --- What happens ---------------------------------------------------------------------------

    def synced(self, entry: Entry, position: LogPosition, size: int) -> None:
        """Add an entry that was synced; called in the order of the log."""
        if entry.kind is EntryKind.FACT:
            self.facts[entry.group] = entry.fact
            return
        suffix = self._suffixes.get(entry.group)
        if suffix is None:
            return
        if entry.kind not in (EntryKind.VOID, EntryKind.DATA) or not suffix.epochs.admit(entry):
            return
        if entry.kind is EntryKind.VOID:
            suffix.void(max(entry.index, suffix.folded))
        else:
            suffix.put(UncommittedEntry(entry, position, size))

    def folded(self, group: GroupId, upto: Index) -> None:
        """Drop the group's entries up to this index: the store has folded them."""
        suffix = self._suffixes[group]
        for index in [index for index in suffix.held if index <= upto]:
            suffix.size -= suffix.held.pop(index).size
        suffix.folded = max(suffix.folded, upto)

    # --- Questions ------------------------------------------------------------------------------

    def last(self, group: GroupId) -> Index:
        """Return the index of the group's last entry in the log."""
        return self._suffixes[group].last()

    def applied(self, group: GroupId) -> Index:
        """Return the index of the group's last entry in the store."""
        return self._suffixes[group].folded

    def held(self, group: GroupId) -> list[UncommittedEntry]:
        """Return the group's suffix, in order: the entries that are synced here and not folded."""
        return list(self._suffixes[group].held.values())

    def size(self, group: GroupId, below: Index | None = None) -> int:
        """Return the bytes of the suffix, or of its entries below an index."""
        suffix = self._suffixes[group]
        if below is None or below > suffix.last():
            return suffix.size
        return sum(held.size for index, held in suffix.held.items() if index < below)

    def oldest(self) -> LogPosition | None:
        """Return the oldest record that replay must read for any group; None if all are folded."""
        return min((held.position for held in self._firsts().values()), default=None)

    def before(self, generation: int) -> list[GroupId]:
        """Return the groups whose suffix begins in, and so keeps, an older generation."""
        return [
            group for group, held in self._firsts().items() if held.position.generation < generation
        ]

    def copies(self, group: GroupId) -> list[Entry]:
        """Return copies of the suffix to append again: same indexes, same epochs."""
        return [_copy(held.entry) for held in self._suffixes[group].held.values()]

    def _firsts(self) -> dict[GroupId, UncommittedEntry]:
        # Entries of a group lie in the log in the order of their indexes.
        return {
            group: next(iter(suffix.held.values()))
            for group, suffix in self._suffixes.items()
            if suffix.held
        }


def _copy(entry: Entry) -> Entry:
    """Return the same entry without the locations of its blocks."""
    batches = [
        Batch(batch.shard, batch.index, batch.time_ms, batch.changes, batch.blocks)
        for batch in entry.batches
    ]
    return Entry(entry.group, entry.epoch, entry.index, entry.history, batches, kind=entry.kind)


def _compact(entry: Entry, position: LogPosition) -> UncommittedEntry:
    """Copy a recovered entry to memory of its own: it may have to be kept for hours.

    Replay gives it as a view, which keeps everything alive that was read with it.
    """
    data = b"".join(encode_entry(_copy(entry), 0))
    [compact] = decode_entries(memoryview(data))
    for batch, old in zip(compact.batches, entry.batches, strict=True):
        batch.places = old.places
    return UncommittedEntry(compact, position, len(data))
