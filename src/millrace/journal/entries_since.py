"""Reads the committed entries of a group since an index from the WAL, for a replica to catch up.

Rule 1: all entries that were committed since then, or none: an entry that the log no longer has
cannot be distinguished from one that never was.
Rule 2: entries come in the order of their indexes, each once, as they were committed: voided and
rewritten entries are resolved as in recovery (L1, L7).
Rule 3: the checksum of every record is verified. One generation of the log is held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millrace.core.changes import Entry, EntryKind
from millrace.core.format.codec import decode_entries
from millrace.core.model import GroupId, Index
from millrace.errors import Retry
from millrace.journal.recovery import Recovery
from millrace.wal.record import LogPosition
from millrace.wal.write_ahead_log import WriteAheadLog


def entries_since(
    log: WriteAheadLog,
    group: GroupId,
    after: Index,
    upto: Index,
    *,
    commits_when_synced: Callable[[GroupId], bool],
) -> Iterator[Entry] | None:
    """Return the group's entries above `after` up to the committed `upto`; None if some are gone.

    Blocks of the entries are views of the buffers that were read: copy blocks that are kept.

    Raises:
        Retry: the log was recycled faster than it was read; the entries so far are right.
        Corrupt: a record is damaged. Both from the iterator.
    """
    if upto <= after:
        return iter(())
    start = _start(log, group, after)
    if start is None:
        return None
    return _read(log, start, group, after, upto, commits_when_synced)


def _start(log: WriteAheadLog, group: GroupId, after: Index) -> int | None:
    """Return the newest generation whose first entry of the group is at most `after` + 1, or None.

    That entry voids all earlier entries of the same or higher indexes: no older one is needed.
    """
    for segment in reversed(log.segments()):
        first = _first(log, segment.generation, group)
        if first is not None and first <= after + 1:
            return segment.generation
    return None


def _first(log: WriteAheadLog, generation: int, group: GroupId) -> Index | None:
    for _, payload in log.records(generation) or ():
        for entry in decode_entries(payload):
            if entry.group == group and entry.kind is EntryKind.DATA:
                return entry.index
    return None


def _read(
    log: WriteAheadLog,
    start: int,
    group: GroupId,
    after: Index,
    upto: Index,
    commits_when_synced: Callable[[GroupId], bool],
) -> Iterator[Entry]:
    reached = after
    committed: list[Entry] = []

    def fold(entry: Entry, position: LogPosition) -> None:
        nonlocal reached
        reached = entry.index
        committed.append(entry)

    recovery = Recovery(lambda _: reached, {}, fold, commits_when_synced=commits_when_synced)
    for generation in [live.generation for live in log.segments() if live.generation >= start]:
        records = log.records(generation)
        if records is None:
            break
        for position, payload in records:
            for entry in decode_entries(payload):
                if entry.group == group and entry.kind is not EntryKind.FACT:
                    recovery.read(entry, position)
            for entry in committed:
                if entry.index <= upto:
                    yield entry
            committed.clear()
            if reached >= upto:
                return
    raise Retry(f"group {group}: the log no longer has what follows entry {reached}", field="log")
