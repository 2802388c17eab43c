"""The checkers of messages that go by themselves: times to live, and logs that keep so much.

E1: nobody is handed a message whose time is over.
E2: only messages that have said so expire, and all of them do: what is over is not left behind.
E3: a log that keeps so many messages has its newest ones in the end, and no others; so it is with
those of a certain age, and with so many bytes, but for what it may keep longer.
Where expired messages are dead letters, nothing is excused: each is settled or among those.
"""

from __future__ import annotations

from tests.support.checkers.history import (
    History,
    Lease,
    Publish,
    Seen,
    Sent,
    Shard,
)

LASTING_MS = 24 * 3600 * 1000
"""No run takes so long, wherever its clock is set: who lives longer does not expire."""

AGE_SLACK_MS = 10_000
"""So much longer a message may stay than a log keeps it: it looks for old ones now and then."""

BYTES_SLACK = 2 * 1024**2
"""So many bytes more may stay."""

ROW_BYTES = 200
"""What a message may count for beside its body."""


def life_of(history: History, shard: Shard, tag: str) -> int:
    """A message's time to live, in milliseconds; 0: for ever."""
    given = [ms for ms in (history.lives.get(tag, 0), shard.ttl_ms) if ms]
    return min(given, default=0)


class Lives:
    """What is known of the messages of all shards: when each came, and how large it is."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._times: dict[tuple[int, str], int] = {}
        for lease in history.of(Lease):
            self._note(lease.shard, lease.rows)
        self._sizes: dict[int, dict[int, int]] = {}
        for call in history.of(Publish):
            # Of what nobody has answered the place is not known; it counts for nothing.
            if call.is_ok and call.first is not None:
                sizes = self._sizes.setdefault(call.shard, {})
                for seq, row in enumerate(call.rows, call.first):
                    sizes[seq] = _size(row)

    def _note(self, shard: int, rows: tuple[Seen, ...]) -> None:
        for row in rows:
            self._times[shard, row.tag] = row.time_ms

    def may_be_over(self, number: int, seq: int, tag: str) -> bool:
        """Whether a message may have gone by itself, and into nothing."""
        shard = self._history.shards[number]
        if shard.keep_bytes and self._bytes_after(number, seq) >= shard.keep_bytes:
            return True
        if shard.keep_ms:
            came_ms = self._times.get((number, tag))
            if came_ms is None:
                return shard.keep_ms < LASTING_MS
            return came_ms + shard.keep_ms <= shard.seen_ms
        return _may_be_over(self._history, shard, seq, tag)

    def _bytes_after(self, number: int, seq: int) -> int:
        """What is newer has so many bytes at most: gaps may be of any size."""
        sizes = self._sizes.get(number, {})
        last = self._history.shards[number].counts.get("published", 0)
        return sum(sizes.get(other, BYTES_SLACK) for other in range(seq + 1, last + 1))


def _size(row: Sent) -> int:
    return len(row.body or b"") + len(row.key or b"") + ROW_BYTES


def _may_be_over(history: History, shard: Shard, seq: int, tag: str) -> bool:
    if shard.keep_messages:
        return seq <= shard.counts.get("published", 0) - shard.keep_messages
    return not shard.expired_are_letters and 0 < life_of(history, shard, tag) < LASTING_MS


def check_lives(history: History) -> list[str]:
    """Nothing comes too late, and nothing goes that has not said so."""
    found: list[str] = []
    for lease in history.of(Lease):
        began_ms = lease.deadline_ms - lease.lease_ms
        shard = history.shards[lease.shard]
        for row in lease.rows:
            life_ms = life_of(history, shard, row.tag)
            if life_ms and row.time_ms + life_ms <= began_ms:
                found.append(
                    f"E1: {row.seq} of {lease.shard} was handed out at {began_ms} under lease "
                    f"{lease.version}, and its time was over at {row.time_ms + life_ms}"
                )
    for number, shard in history.shards.items():
        if shard.keep_messages:
            found += _check_kept(number, shard)
        elif shard.keep_ms or shard.keep_bytes:
            found += _check_aged(number, shard)
        elif shard.counts and not shard.expired_are_letters:
            found += _check_expired(history, number, shard)
    return found


def _check_kept(number: int, shard: Shard) -> list[str]:
    """E3; that none of the newest is missing is I1."""
    old = shard.counts.get("published", 0) - shard.keep_messages
    left = sorted(seq for seq in shard.live or {} if seq <= old)
    return [f"E3: {left} of {number} are there, and older than what it keeps"] if left else []


def _check_aged(number: int, shard: Shard) -> list[str]:
    """E3 of ages and bytes; that nothing goes too early is I1."""
    rows = (shard.live or {}).values()
    over_ms = shard.seen_ms - shard.keep_ms - AGE_SLACK_MS
    old = sorted(row.seq for row in rows if row.time_ms < over_ms) if shard.keep_ms else []
    found = [f"E3: {old} of {number} are there, and older than what it keeps"] if old else []
    size = sum(len(row.body or b"") for row in rows)
    if shard.keep_bytes and size > shard.keep_bytes + BYTES_SLACK:
        found.append(f"E3: {number} has {size} bytes, and keeps {shard.keep_bytes}")
    return found


def _check_expired(history: History, number: int, shard: Shard) -> list[str]:
    tags = {
        row.tag
        for call in history.of(Publish)
        if call.shard == number and call.may_be_done
        for row in call.rows
        if row.body is None or 0 < life_of(history, shard, row.tag) < LASTING_MS
    }
    expired = shard.counts.get("expired", 0)
    if expired > len(tags):
        return [f"E2: {expired} of {number} have expired, and {len(tags)} were to"]
    return []
