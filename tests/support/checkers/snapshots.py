"""The checkers of followers: I7, and I9 for cursors."""

from __future__ import annotations

from collections import defaultdict

from tests.support.checkers.history import (
    Commit,
    Drop,
    History,
    Publish,
    Purge,
    Read,
    Seen,
    Settle,
)


def check_snapshots(history: History) -> list[str]:
    """A snapshot is the shard as of one moment: whole, always the same, and nothing is skipped."""
    reads = [read for read in history.of(Read) if read.is_ok]
    facts = _Facts(history)
    found: list[str] = []
    found += _check_same(reads)
    for read in reads:
        found += _check_inside(read)
        found += facts.check_boundary(read)
        found += facts.check_newest(read)
        found += facts.check_complete(read)
    found += _check_cursors(history)
    return found


def _check_same(reads: list[Read]) -> list[str]:
    """I7: whoever reads a snapshot, and when, gets the same rows."""
    found: list[str] = []
    first: dict[tuple[int, int, bool], Read] = {}
    for read in reads:
        known = first.setdefault((read.shard, read.index, read.retain), read)
        if known.boundary != read.boundary:
            found.append(
                f"I7: snapshot {read.index} of {read.shard} ended at {known.boundary} and then "
                f"at {read.boundary}"
            )
        after = max(known.after, read.after)
        one = [row for row in known.rows if row.seq > after]
        other = [row for row in read.rows if row.seq > after]
        if one != other:
            missing = sorted({row.seq for row in one} ^ {row.seq for row in other})
            found.append(
                f"I7: snapshot {read.index} of {read.shard} was read in call {known.number} and "
                f"again in {read.number} with other rows: {missing or 'same seqs'}"
            )
        if read.after < known.after:
            first[read.shard, read.index, read.retain] = read
    return found


def _check_inside(read: Read) -> list[str]:
    found: list[str] = []
    seqs = [row.seq for row in read.rows]
    if seqs != sorted(set(seqs)):
        found.append(f"I7: call {read.number} gave rows out of order")
    if any(not read.after < seq <= read.boundary for seq in seqs):
        found.append(f"I7: call {read.number} gave rows outside ({read.after}, {read.boundary}]")
    return found


class _Facts:
    """What is known of each shard's rows, over the whole history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._asked = history.first_asked()
        self._rows: dict[int, dict[int, tuple[Publish, int]]] = defaultdict(dict)
        self._keys: dict[tuple[int, bytes], list[int | None]] = defaultdict(list)
        self._spans: dict[int, list[tuple[int, int, Publish]]] = defaultdict(list)
        self._settles: dict[tuple[int, int], list[Settle]] = defaultdict(list)
        for settle in history.of(Settle):
            self._settles[settle.shard, settle.seq].append(settle)
        tags = _seqs_of_tags(history)
        for call in history.of(Publish):
            if not call.may_be_done:
                continue
            first = call.first if call.is_ok else None
            for at, row in enumerate(call.rows):
                seq = first + at if first is not None else tags.get((call.shard, row.tag))
                if row.key is not None and history.shards[call.shard].keyed:
                    self._keys[call.shard, row.key].append(seq)
                if seq is not None:
                    rows = self._rows[call.shard]
                    if call.is_ok or seq not in rows:
                        rows[seq] = (call, at)
                    first = seq - at
            if first is not None and len(call.rows) > 1:
                self._spans[call.shard].append((first, first + len(call.rows) - 1, call))

    def check_boundary(self, read: Read) -> list[str]:
        """I7: no boundary lies within a batch."""
        return [
            f"I7: the snapshot of call {read.number} ends at {read.boundary}, within the rows "
            f"{low}–{high} of call {call.number}"
            for low, high, call in self._spans[read.shard]
            if low <= read.boundary < high
        ]

    def check_newest(self, read: Read) -> list[str]:
        """I6: of each key, a snapshot has the newest revision and no other."""
        found: list[str] = []
        for row in read.rows:
            if row.key is None:
                continue
            newer = [
                seq
                for seq in self._keys.get((read.shard, row.key), [])
                if seq is not None and row.seq < seq <= read.boundary
            ]
            if newer:
                found.append(
                    f"I6: call {read.number} shows {row.seq} of {read.shard} for key "
                    f"{row.key!r}, though {newer[0]} had replaced it"
                )
        return found

    def check_complete(self, read: Read) -> list[str]:
        """I1, I7: what was published before the boundary and has not ended is in the snapshot."""
        found: list[str] = []
        shown = {row.seq for row in read.rows}
        for seq, (call, at) in self._rows[read.shard].items():
            if not read.after < seq <= read.boundary or seq in shown or not call.is_ok:
                continue
            if not self._may_be_gone(read, seq, call, at):
                found.append(
                    f"I7: {call.rows[at].tag}, {seq} of {read.shard}, is missing in the snapshot "
                    f"of call {read.number}"
                )
        return found

    def _may_be_gone(self, read: Read, seq: int, call: Publish, at: int) -> bool:
        row = call.rows[at]
        if row.body is None:
            # Deletes go by age.
            return True
        if row.key is not None:
            others = self._keys.get((read.shard, row.key), [])
            if any(other is None or seq < other <= read.boundary for other in others):
                return True
        asked = self._asked[read.shard, row.tag]
        end = read.ended if read.ended is not None else 1 << 62
        reasons = [
            *(settle for settle in self._settles[read.shard, seq] if self._hides(read, settle)),
            *(purge for purge in self._history.of(Purge) if _may_purge(purge, seq, asked)),
            *self._history.of(Drop),
        ]
        return any(
            other.shard == read.shard and other.may_be_done and other.number <= end
            for other in reasons
        )

    def _hides(self, read: Read, settle: Settle) -> bool:
        if self._history.shards[read.shard].retention != "work":
            return False
        return not read.retain or settle.number < read.opened


def _may_purge(purge: Purge, seq: int, asked: int) -> bool:
    if purge.is_ok:
        return purge.upto >= seq
    return purge.latest is None or purge.latest > asked


def _seqs_of_tags(history: History) -> dict[tuple[int, str], int]:
    found: dict[tuple[int, str], int] = {}

    def note(shard: int, row: Seen) -> None:
        found[shard, row.tag] = row.seq

    for call in history.calls:
        for row in getattr(call, "rows", ()):
            if isinstance(row, Seen):
                note(call.shard, row)
    for number, shard in history.shards.items():
        for row in (shard.live or {}).values():
            note(number, row)
    return found


def _seen_transactions(history: History) -> set[int]:
    """Transactions that were done, whatever was answered: what they published is there."""
    tags = _seqs_of_tags(history)
    return {
        call.transaction
        for call in history.of(Publish)
        if call.transaction is not None and any((call.shard, row.tag) in tags for row in call.rows)
    }


def _check_cursors(history: History) -> list[str]:
    """I9: a cursor moves forwards, and what was committed is never shown to it again."""
    found: list[str] = []
    committed: dict[tuple[int, str], int] = defaultdict(int)
    done = _seen_transactions(history)
    events = sorted(
        (
            call
            for call in history.calls
            if isinstance(call, Commit | Read) and (call.is_ok or call.transaction in done)
        ),
        key=lambda call: call.latest or call.number,
    )
    for call in events:
        at = (call.shard, call.cursor)
        if isinstance(call, Commit):
            committed[at] = max(committed[at], call.seq)
        elif call.cursor and call.after < committed[at]:
            found.append(
                f"I9: cursor {call.cursor} of {call.shard} was committed at {committed[at]} and "
                f"then read from {call.after}"
            )
    return found
