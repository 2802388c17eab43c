"""The checkers of messages that go by themselves: times to live, and logs that keep so many.

E1: nobody is handed a message whose time is over.
E2: only messages that have said so expire, and all of them do: what is over is not left behind.
E3: a log that keeps so many messages has its newest ones in the end, and no others.
Where expired messages are dead letters, nothing is excused: each is settled or among those.
"""

from __future__ import annotations

from millrace.testing.checker_history import History, Lease, Publish, Shard

LASTING_MS = 24 * 3600 * 1000
"""No run takes so long, wherever its clock is set: who lives longer does not expire."""


def life_of(history: History, shard: Shard, tag: str) -> int:
    """A message's time to live, in milliseconds; 0: for ever."""
    given = [ms for ms in (history.lives.get(tag, 0), shard.ttl_ms) if ms]
    return min(given, default=0)


def may_be_over(history: History, shard: Shard, seq: int, tag: str) -> bool:
    """Whether a message may have gone by itself, and into nothing."""
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
        elif shard.counts and not shard.expired_are_letters:
            found += _check_expired(history, number, shard)
    return found


def _check_kept(number: int, shard: Shard) -> list[str]:
    """E3; that none of the newest is missing is I1."""
    old = shard.counts.get("published", 0) - shard.keep_messages
    left = sorted(seq for seq in shard.live or {} if seq <= old)
    return [f"E3: {left} of {number} are there, and older than what it keeps"] if left else []


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
