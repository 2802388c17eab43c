"""The checkers of failures: limits hold, and a dead letter is in one place, once.

What is a dead letter leaves its queue and arrives in another, whatever ends in between. At the end
of a run nobody has taken anything out of that other queue, so that it has all of them.
"""

from __future__ import annotations

from collections import defaultdict

from tests.support.checkers.history import (
    Discard,
    History,
    Lease,
    Publish,
    Release,
    Seen,
    Settle,
    Shard,
)


def sources_of(history: History) -> dict[int, list[int]]:
    """Shards that take dead letters, and whose."""
    found: dict[int, list[int]] = defaultdict(list)
    for number, shard in history.shards.items():
        if shard.dead_letter is not None:
            found[shard.dead_letter].append(number)
    return found


def letters_of(history: History) -> dict[tuple[int | None, str], Seen]:
    """The dead letters that arrived, by shard and tag."""
    return {
        (number, row.tag): row
        for number in sources_of(history)
        for row in (history.shards[number].live or {}).values()
    }


def check_failures(history: History) -> list[str]:
    """Nothing is handed out beyond the limits, and no dead letter is lost or doubled."""
    found = _check_limits(history)
    letters = letters_of(history)
    for dead, sources in sources_of(history).items():
        if history.shards[dead].live is None:
            found.append(f"D1: queue {dead} of dead letters is gone, and nobody deleted it")
            continue
        tags = [row.tag for row in (history.shards[dead].live or {}).values()]
        if len(tags) != len(set(tags)):
            found.append(f"D2: a dead letter is in {dead} twice: {sorted(tags)}")
        for source in sources:
            found += _check_source(history, source, letters)
    return found


def _check_limits(history: History) -> list[str]:
    """D3: what has failed, or was handed out, as often as it may is not handed out again."""
    found: list[str] = []
    heard: dict[tuple[int, int], int] = defaultdict(int)
    failed: dict[tuple[int, int], list[int]] = defaultdict(list)
    for release in history.of(Release):
        if release.is_ok and release.failed:
            failed[release.shard, release.seq].append(release.version)
    for lease in history.of(Lease):
        shard = history.shards[lease.shard]
        for row in lease.rows:
            at = (lease.shard, row.seq)
            heard[at] += 1
            failures = sum(version < lease.version for version in failed[at])
            if shard.max_failures and max(failures, row.failures) >= shard.max_failures:
                found.append(f"D3: {row.seq} of {lease.shard} was handed out after {failures}")
            if 0 < shard.max_deliveries < max(heard[at], row.deliveries):
                found.append(f"D3: {row.seq} of {lease.shard} was handed out {heard[at]} times")
    return found


def _check_source(
    history: History, source: int, letters: dict[tuple[int | None, str], Seen]
) -> list[str]:
    """D1, D2: each message is in its own queue or in the other one, for a reason."""
    found: list[str] = []
    shard = history.shards[source]
    tags = _tags(history, source)
    sent = {row.tag for call in history.of(Publish) if call.shard == source for row in call.rows}
    moved = [row for row in letters.values() if row.tag in sent]
    counted = shard.counts.get("dead_lettered", 0)
    if shard.counts and counted != len(moved):
        found.append(f"D2: {source} has moved {counted} dead letters, and {len(moved)} arrived")
    for seq in (shard.live or {}).keys() & tags.keys():
        if (shard.dead_letter, tags[seq]) in letters:
            found.append(f"D2: {tags[seq]} is in {source} and among the dead letters")
    for settle in history.of(Settle):
        tag = tags.get(settle.seq, "")
        if settle.shard == source and settle.is_ok and (shard.dead_letter, tag) in letters:
            found.append(f"D2: {tag} of {source} was settled, and is a dead letter")
    return found + _check_discards(history, source, shard)


def _check_discards(history: History, source: int, shard: Shard) -> list[str]:
    """D3: what was discarded is never handed out again."""
    newest: dict[int, int] = defaultdict(int)
    for lease in history.of(Lease):
        if lease.shard == source:
            for row in lease.rows:
                newest[row.seq] = max(newest[row.seq], lease.version)
    found: list[str] = []
    for call in history.of(Discard):
        if call.shard != source or not call.is_ok:
            continue
        if newest[call.seq] > call.version:
            found.append(f"D3: {call.seq} of {source} was discarded, and handed out again")
        if call.seq in (shard.live or {}):
            found.append(f"D1: {call.seq} of {source} was discarded, and is still there")
    return found


def _tags(history: History, shard: int) -> dict[int, str]:
    """Which message is which, as far as publishers were told or somebody saw it there."""
    found: dict[int, str] = {}
    for call in history.of(Publish):
        if call.shard == shard and call.is_ok and call.first is not None:
            found.update((seq, row.tag) for seq, row in enumerate(call.rows, call.first))
    for lease in history.of(Lease):
        if lease.shard == shard:
            found.update((row.seq, row.tag) for row in lease.rows)
    return found
