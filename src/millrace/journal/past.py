"""What a commit group did since an entry, read from the log: for those who were away for a while.

Rule 1: everything that is committed since then, or nothing: what the log no longer has cannot be
told apart from what never was.
Rule 2: entries come in the order of their indexes, each once, as they were committed: what was
voided or written again is settled as recovery settles it (L1, L7).
Rule 3: every record is summed before it is believed. One generation of the log is held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millrace.core.changes import Entry, EntryKind
from millrace.core.codec import decode_entries
from millrace.core.model import GroupId, Index
from millrace.errors import Retry
from millrace.journal.recovery import Recovery
from millrace.wal.record import Position
from millrace.wal.write_ahead_log import Log


def entries_since(
    log: Log,
    group: GroupId,
    after: Index,
    upto: Index,
    *,
    commits_when_synced: Callable[[GroupId], bool],
) -> Iterator[Entry] | None:
    """The group's entries above `after` up to `upto`, which is committed; None if some are gone.

    Blocks of the entries lie over memory that was read for them: who keeps many should copy them.

    Raises:
        Retry: the log was recycled faster than it was read; what was given so far is right.
        Corrupt: a record is damaged. Both from the iterator.
    """
    if upto <= after:
        return iter(())
    start = _start(log, group, after)
    if start is None:
        return None
    return _read(log, start, group, after, upto, commits_when_synced)


def _start(log: Log, group: GroupId, after: Index) -> int | None:
    """The newest generation whose first entry of the group is not above the first one wanted.

    That entry voids what lies before it and is not below, so that nothing older is needed.
    """
    for segment in reversed(log.segments()):
        first = _first(log, segment.generation, group)
        if first is not None and first <= after + 1:
            return segment.generation
    return None


def _first(log: Log, generation: int, group: GroupId) -> Index | None:
    for _, payload in log.records(generation) or ():
        for entry in decode_entries(payload):
            if entry.group == group and entry.kind is EntryKind.DATA:
                return entry.index
    return None


def _read(
    log: Log,
    start: int,
    group: GroupId,
    after: Index,
    upto: Index,
    commits_when_synced: Callable[[GroupId], bool],
) -> Iterator[Entry]:
    reached = after
    found: list[Entry] = []

    def fold(entry: Entry, position: Position) -> None:
        nonlocal reached
        reached = entry.index
        found.append(entry)

    recovery = Recovery(lambda _: reached, {}, fold, commits_when_synced=commits_when_synced)
    for generation in [live.generation for live in log.segments() if live.generation >= start]:
        records = log.records(generation)
        if records is None:
            break
        for position, payload in records:
            for entry in decode_entries(payload):
                if entry.group == group and entry.kind is not EntryKind.FACT:
                    recovery.read(entry, position)
            for entry in found:
                if entry.index <= upto:
                    yield entry
            found.clear()
            if reached >= upto:
                return
    raise Retry(f"group {group}: the log no longer has what follows entry {reached}", field="log")
