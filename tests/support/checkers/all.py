"""The history checkers: what clients saw must be what a queue promises (I1–I7, I9, I12).

Each takes a history and says what is wrong with it, in words. They know nothing of how the engine
works, and nothing that a client could not know.

I1 no acknowledged loss    I2 no phantom            I3 order per producer
I4 no two live leases      I5 settle OK is final    I6 the newest revision of a key wins
I7 snapshots are atomic    I9 seqs only rise        I12 the counters add up
Those of failures are in `checker_failures.py`, those of priorities and delays in
`checker_turns.py`, those of orders in `checker_groups.py`, those of messages that go by themselves
in `checker_lives.py`, those of partitions in `checker_partitions.py`, those of maxima in
`checker_length.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.support.checkers.expiry import Lives, check_lives
from tests.support.checkers.failures import check_failures, letters_of, sources_of
from tests.support.checkers.groups import check_groups
from tests.support.checkers.history import (
    Drop,
    History,
    Lease,
    Peek,
    Publish,
    Purge,
    Read,
    Seen,
    Sent,
    Settle,
    Shard,
)
from tests.support.checkers.leases import check_leases
from tests.support.checkers.length import check_length, handed_out
from tests.support.checkers.partitions import check_partitions
from tests.support.checkers.priorities import check_turns
from tests.support.checkers.snapshots import check_snapshots
from tests.support.checkers.topics import check_topics

Violations = list[str]


def check(history: History) -> Violations:
    """Everything that is wrong with the history; nothing if all is well."""
    found: Violations = []
    for checker in (
        check_values,
        check_answers,
        check_order,
        check_leases,
        check_turns,
        check_groups,
        check_lives,
        check_partitions,
        check_length,
        check_failures,
        check_snapshots,
        check_keys,
        check_loss,
        check_together,
        check_counts,
        check_topics,
    ):
        found += checker(history)
    return found


def seen_rows(history: History) -> Iterator[tuple[int, Seen]]:
    """Every sight of a message, with its shard."""
    for call in history.calls:
        if isinstance(call, Lease | Read | Peek):
            for row in call.rows:
                yield call.shard, row
    for number, shard in history.shards.items():
        for row in (shard.live or {}).values():
            yield number, row


def check_values(history: History) -> Violations:
    """I2: what is seen was sent, there, and not refused; a seq is one message, and the reverse."""
    found: Violations = []
    sent: dict[tuple[int, str], Sent] = {}
    refused: set[tuple[int, str]] = set()
    for call in history.of(Publish):
        for given in call.rows:
            if call.may_be_done:
                sent[call.shard, given.tag] = given
            else:
                refused.add((call.shard, given.tag))
    tags: dict[tuple[int, int], str] = {}
    seqs: dict[tuple[int, str], int] = {}
    for shard, row in _placed(history):
        at = (shard, row.seq)
        if tags.setdefault(at, row.tag) != row.tag:
            found.append(f"I2: seq {row.seq} of {shard} is both {tags[at]} and {row.tag}")
        name = (shard, row.tag)
        if seqs.setdefault(name, row.seq) != row.seq:
            found.append(f"I6: {row.tag} of {shard} is both {seqs[name]} and {row.seq}")
    sources = sources_of(history)
    for shard, row in seen_rows(history):
        homes = [shard, *sources.get(shard, [])]
        known = next((sent[at, row.tag] for at in homes if (at, row.tag) in sent), None)
        if known is None:
            why = "was refused" if (shard, row.tag) in refused else "was never sent"
            found.append(f"I2: {row.tag} was seen as {row.seq} of {shard}, but {why} there")
        elif (known.key, known.body) != (row.key, row.body):
            found.append(f"I2: {row.tag} ({row.seq} of {shard}) has another key or body than sent")
    return found


def _placed(history: History) -> Iterator[tuple[int, Seen]]:
    """Every claim that a message has a seq: sights, and answers to publishers."""
    yield from seen_rows(history)
    for call in history.of(Publish):
        if call.is_ok and call.first is not None:
            for seq, row in enumerate(call.rows, call.first):
                yield call.shard, Seen(seq, *row)


def check_answers(history: History) -> Violations:
    """I6: the same producer and number are answered with the same seq."""
    found: Violations = []
    answers: dict[tuple[int, str, int], int] = {}
    for call in history.of(Publish):
        if call.is_ok and call.first and call.producer is not None and call.sequence is not None:
            name = (call.shard, call.producer, call.sequence)
            if answers.setdefault(name, call.first) != call.first:
                found.append(
                    f"I6: {call.producer}/{call.sequence} on {call.shard} was answered "
                    f"{answers[name]} and then {call.first}"
                )
    return found


def check_order(history: History) -> Violations:
    """I3, I9: who publishes one thing after another gets rising seqs; time rises with them."""
    found: Violations = []
    last: dict[tuple[int, str], int] = {}
    for call in history.of(Publish):
        if call.is_ok and call.first is not None and not call.is_late:
            who = (call.shard, call.actor)
            if call.first <= last.get(who, 0):
                found.append(
                    f"I3: {call.actor} was given {call.first} on {call.shard} after {last[who]}"
                )
            last[who] = call.first + len(call.rows) - 1
    times: dict[int, dict[int, int]] = defaultdict(dict)
    for shard, row in seen_rows(history):
        times[shard][row.seq] = row.time_ms
    for shard, known in times.items():
        newest = 0
        for seq in sorted(known):
            if known[seq] < newest:
                found.append(f"I9: time falls at seq {seq} of {shard}")
            newest = max(newest, known[seq])
    return found


def revisions(history: History) -> dict[tuple[int, bytes], list[tuple[int | None, Publish]]]:
    """What may have been published under each key of keyed shards: seq if it is known, and call."""
    seqs = {(shard, row.tag): row.seq for shard, row in _placed(history)}
    found: dict[tuple[int, bytes], list[tuple[int | None, Publish]]] = defaultdict(list)
    for call in history.of(Publish):
        if not call.may_be_done or not history.shards[call.shard].keyed:
            continue
        for row in call.rows:
            if row.key is not None:
                seq = seqs.get((call.shard, row.tag))
                found[call.shard, row.key].append((seq, call))
    return found


def check_keys(history: History) -> Violations:
    """I6: what is left under a key is its newest revision."""
    found: Violations = []
    known = revisions(history)
    for number, shard in history.shards.items():
        if not shard.keyed or shard.live is None:
            continue
        for row in shard.live.values():
            if row.key is None:
                continue
            newer = [seq for seq, _ in known[number, row.key] if seq is not None and seq > row.seq]
            if newer:
                found.append(
                    f"I6: {row.seq} is left of key {row.key!r} on {number}, but {newer[-1]} "
                    "was published"
                )
    return found


def check_loss(history: History) -> Violations:
    """I1: what was acknowledged is there, or has ended for a reason that somebody gave."""
    found: Violations = []
    settled = {(call.shard, call.seq) for call in history.of(Settle) if call.may_be_done}
    dropped = {drop.shard for drop in history.of(Drop) if drop.may_be_done}
    known = revisions(history)
    asked = history.first_asked()
    letters, lives = letters_of(history), Lives(history)
    given = {
        number: handed_out(history, number)
        for number, shard in history.shards.items()
        if shard.is_dropping and shard.dead_letter is None
    }
    for call in history.of(Publish):
        shard = history.shards[call.shard]
        if not call.is_ok or call.first is None or call.shard in dropped:
            continue
        if shard.live is None:
            found.append(f"I1: queue {call.shard} is gone, and nobody deleted it")
            continue
        for seq, row in enumerate(call.rows, call.first):
            if (
                seq in shard.live
                or is_purged(history, call.shard, seq, asked[call.shard, row.tag])
                or row.body is None
                or lives.may_be_over(call.shard, seq, row.tag)
                # Dropped to make room, which nobody who was handed out is.
                or (call.shard in given and row.tag not in given[call.shard])
                or (shard.dead_letter, row.tag) in letters
                or ((call.shard, seq) in settled and shard.retention == "work")
                or (row.key and _is_superseded(known[call.shard, row.key], seq))
            ):
                continue
            found.append(f"I1: {row.tag}, {seq} of {call.shard}, was acknowledged and is lost")
    return found


def is_purged(history: History, shard: int, seq: int, asked: int) -> bool:
    """Whether a purge may have ended the row, which was asked for at `asked`."""
    for purge in history.of(Purge):
        if purge.shard == shard and purge.may_be_done:
            if purge.is_ok and purge.upto >= seq:
                return True
            if not purge.is_ok and (purge.latest is None or purge.latest > asked):
                return True
    return False


def _is_superseded(revisions: list[tuple[int | None, Publish]], seq: int) -> bool:
    return any(other is None or other > seq for other, _ in revisions)


def check_together(history: History) -> Violations:
    """I7: the parts of a transaction, and the rows of a batch, are all there or none is."""
    found: Violations = []
    seqs = {(shard, row.tag): row.seq for shard, row in _placed(history)}
    parts: dict[int, list[Publish | Settle]] = defaultdict(list)
    for call in history.calls:
        if isinstance(call, Publish | Settle) and call.transaction is not None:
            parts[call.transaction].append(call)
    delivered: dict[tuple[int, int], list[Lease]] = defaultdict(list)
    for lease in history.of(Lease):
        for seen in lease.rows:
            delivered[lease.shard, seen.seq].append(lease)
    for number, calls in parts.items():
        is_seen = any(
            (call.shard, row.tag) in seqs
            for call in calls
            if isinstance(call, Publish)
            for row in call.rows
        )
        for call in calls:
            if not isinstance(call, Settle) or not is_seen:
                continue
            if any(
                lease.version > call.version
                and not history.is_rewound(call.shard, call.number, lease.ended)
                for lease in delivered[call.shard, call.seq]
            ):
                found.append(
                    f"I7: transaction {number} published, but {call.seq} of {call.shard}, "
                    "which it settled, was handed out again"
                )
    for publish in history.of(Publish):
        firsts = {
            seqs[publish.shard, row.tag] - at
            for at, row in enumerate(publish.rows)
            if (publish.shard, row.tag) in seqs
        }
        if len(firsts) > 1:
            found.append(
                f"I7: the rows of call {publish.number} on {publish.shard} do not follow each "
                f"other: they begin at {sorted(firsts)}"
            )
    return found


def check_counts(history: History) -> Violations:
    """I12: what was published is live or has ended in one of the ways that are counted."""
    found: Violations = []
    for number, shard in history.shards.items():
        counts = shard.counts
        if not counts:
            continue
        if any(value < 0 for value in counts.values()):
            found.append(f"I12: a counter of {number} is below zero: {counts}")
        ended = sum(value for name, value in counts.items() if name not in ("published", "live"))
        if counts["published"] != counts["live"] + ended:
            found.append(f"I12: the counters of {number} do not add up: {counts}")
        least, most = _published(history, number, shard)
        if not least <= counts["published"] <= most:
            found.append(
                f"I12: {number} counts {counts['published']} as published, but it was between "
                f"{least} and {most}"
            )
    return found


def _published(history: History, number: int, shard: Shard) -> tuple[int, int]:
    """How many messages were published at least and at most."""
    sources = sources_of(history).get(number)
    if sources:
        moved = sum(history.shards[at].counts.get("dead_lettered", 0) for at in sources)
        return moved, moved
    sure: set[str] = set()
    maybe: set[str] = set()
    for call in history.of(Publish):
        if call.shard == number and call.may_be_done:
            tags = {row.tag for row in call.rows}
            (sure if call.is_ok else maybe).update(tags)
    return len(sure), len(sure | maybe)
