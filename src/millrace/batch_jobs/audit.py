"""Whether a queue holds what its counters say.

Rule 1: for each shard, published = live + all the ways in which messages end, and the last seq is
what was published: nothing else takes a seq.
Rule 2: the rows of a snapshot, counted one by one, are as many as are live, none of them twice and
none after the last seq. Every seq that no row has is one that a counter has ended.
Rule 3: counters and rows are of one moment, or the audit says between which numbers it judges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from millrace import limits, sync
from millrace.batch_jobs.row_statistics import Seam, look
from millrace.batch_jobs.site import Site
from millrace.client.ticket import with_kept, write_ticket

_NOTHING = Seam(0, 0, 0)

ENDS = ("settled", "superseded", "expired", "dead_lettered", "dropped", "purged")
"""The ways in which a message ends, as counters name them."""


class ShardAudit(msgspec.Struct, frozen=True):
    """What was found of one shard."""

    shard: int
    """Which one of the queue's, from 0."""
    counts: Mapping[str, int]
    rows: Seam
    upto: int
    """The last seq of the snapshot."""
    live: tuple[int, int]
    """How many are live by the counters: at least and at most."""
    faults: tuple[str, ...]


class QueueAudit(msgspec.Struct, frozen=True):
    """What was found of a queue."""

    space: str
    queue: str
    retention: str
    shards: tuple[ShardAudit, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong, in words."""
        return tuple(fault for shard in self.shards for fault in shard.faults)


def audit(site: Site, queue: sync.Queue) -> QueueAudit:
    """Compare the counters of a queue with its rows.

    Raises:
        Retry: what is read was pinned no longer.
    """
    before, snapshot, after = _moment(queue)
    try:
        ticket = write_ticket(with_kept(snapshot._twin))
        with site.asking("the audit", "queue"):
            frame = site.read(queue, view="changes", endingSnapshot=ticket, columns="shard,seq")
            found = look(frame)
        shards = tuple(
            judge(shard, one, other, upto, found.get(shard, _NOTHING))
            for shard, (one, other, upto) in enumerate(
                zip(before, after, snapshot.boundaries, strict=True)
            )
        )
    finally:
        snapshot.unpin()
    return QueueAudit(queue.space, queue.name, queue.spec().retention, shards)


Counts = Mapping[str, int]


def _moment(
    queue: sync.Queue,
) -> tuple[Sequence[Counts], sync.Snapshot, Sequence[Counts]]:
    """A snapshot, and the counters before and after: the same, if there is a quiet moment."""
    tries = limits.AUDIT_TRIES
    while True:
        before = queue.shard_stats()
        snapshot = queue.snapshot(seconds=limits.JOB_PIN_SECONDS).__enter__()
        try:
            after = queue.shard_stats()
        except BaseException:
            snapshot.unpin()
            raise
        tries -= 1
        if before == after or not tries:
            return before, snapshot, after
        snapshot.unpin()


def judge(shard: int, before: Counts, after: Counts, upto: int, rows: Seam) -> ShardAudit:
    """What is wrong with a shard, by its counters before and after a snapshot, and its rows.

    `upto` is the last seq of the snapshot.
    """
    ended = sum(before[name] for name in ENDS), sum(after[name] for name in ENDS)
    live = max(upto - ended[1], 0), upto - ended[0]
    faults: list[str] = []
    for counts in (before, after) if before != after else (before,):
        total = counts["live"] + sum(counts[name] for name in ENDS)
        if counts["published"] != total:
            faults.append(
                f"published is {counts['published']}, and live with all that ended is {total}"
            )
    if not before["published"] <= upto <= after["published"]:
        faults.append(f"the last seq is {upto}, and {after['published']} were published")
    if not live[0] <= rows.rows <= live[1]:
        said = str(live[0]) if live[0] == live[1] else f"between {live[0]} and {live[1]}"
        faults.append(f"rows are {rows.rows}, and {said} should be live")
    if rows.repeats:
        faults.append(f"rows with the seq of another one: {rows.repeats}")
    if rows.strays:
        faults.append(f"rows that are not in the order of seqs: {rows.strays}")
    if rows.last > upto:
        faults.append(f"a row has seq {rows.last}, after the last one, {upto}")
    if rows.rows and rows.first < 1:
        faults.append(f"a row has seq {rows.first}; they begin with 1")
    lost = absent(rows, upto) - ended[1]
    if lost > 0:
        faults.append(f"seqs without a row that no counter has ended: {lost}{_named(rows)}")
    return ShardAudit(
        shard, after, rows, upto, live, tuple(f"shard {shard}: {fault}" for fault in faults)
    )


def absent(rows: Seam, upto: int) -> int:
    """Seqs from 1 up to the last one that no row has."""
    if not rows.rows:
        return upto
    return (rows.first - 1) + rows.missing + max(upto - rows.last, 0)


def _named(rows: Seam) -> str:
    if not rows.examples:
        return ""
    shown = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in rows.examples)
    return f"; gaps at {shown}" + (" …" if rows.gaps > len(rows.examples) else "")
