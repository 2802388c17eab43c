"""Burying: how dead letters get to the queue that takes them.

Rule 1: burying is one entry: the copy in the dead-letter queue and the end here. So nothing is lost
in between, and nothing is doubled.
Rule 2: where the dead-letter queue was deleted, dead letters wait until there is one again, or the
settings name none.
Rule 3: a dead letter makes nobody drop what would come back to its own queue: that would never end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyroaring import BitMap64

from millrace import limits
from millrace.core import failures, publish
from millrace.core.commands import Bury, Need, Publish
from millrace.core.desk import Desk
from millrace.core.draft import Draft
from millrace.core.group_list import group_numbers
from millrace.core.model import (
    CATALOG,
    Death,
    Doom,
    Headers,
    Message,
    QueueCell,
    QueueSpec,
    ShardId,
)
from millrace.core.place import Place
from millrace.core.route import shard_of
from millrace.core.view import View
from millrace.errors import Invalid, NotFound, Refused, Retry

PREFIX = "millrace-dead-"
"""Of the headers that tell where a dead letter comes from."""

TIME = f"{PREFIX}time"
"""The header that tells when a dead letter was published first, in milliseconds since 1970. One
that dies again keeps it."""

TIME_DIGITS = 14
"""A larger number is no time that a calendar has."""


def check_dead_letter(desk: Desk, shard: ShardId | None, spec: QueueSpec) -> Refused | None:
    """Whether the dead-letter queue that the settings name is there, and is another one."""
    if not spec.dead_letter:
        return None
    target = _target(desk, spec)
    if target is None:
        return NotFound(
            f"there is no queue {spec.dead_letter!r} for dead letters; make or declare it",
            field="dead_letter",
        )
    if shard in target.shards:
        return Invalid("a queue cannot take its own dead letters", field="dead_letter")
    return None


def bury(desk: Desk, draft: Draft, command: Bury) -> int | Refused | Retry | Need:
    """Move those that are still doomed, as many as one entry should hold."""
    view = draft.view
    rows: dict[int, Message] = {}
    times: dict[int, int] = {}
    size = 0
    for seq, time_ms, message in command.rows:
        weight = len(message.body or b"")
        if seq in view.doomed and (not rows or size + weight <= limits.BURY_BYTES_MAX):
            rows[seq] = message
            times[seq] = time_ms
            size += weight
    if not rows:
        return 0
    by_lease: dict[int, BitMap64] = {}
    for seq in rows:
        by_lease.setdefault(view.holder[seq], BitMap64()).add(seq)
    if not view.spec.dead_letter:
        # It was taken out of the settings meanwhile.
        _revive(draft, rows, by_lease)
        _end_all(draft, by_lease, Death.DROPPED)
        return len(rows)
    target = _target(desk, view.spec)
    if target is None:
        return NotFound(f"there is no queue {view.spec.dead_letter!r}", field="dead_letter")
    source = _source_of(desk, view)
    letters: dict[int, list[Message]] = {}
    for seq, message in rows.items():
        at = shard_of(message, target.route, len(target.shards), seq)
        letter = _letter(view, seq, times[seq], message, source)
        letters.setdefault(target.shards[at], []).append(letter)
    parts: list[tuple[Draft, Publish]] = []
    for shard, messages in letters.items():
        taker, part = desk.draft(ShardId(shard)), Publish(tuple(messages))
        if taker is None:
            return NotFound(f"there is no queue {view.spec.dead_letter!r}", field="dead_letter")
        may_drop = not _comes_back(desk, taker.view, source.name)
        checked = publish.check_publish(taker, part)
        checked = checked or publish.check_room(taker, part, may_drop=may_drop)
        if isinstance(checked, Refused | Retry | Need):
            return checked
        parts.append((taker, part))
    for taker, part in parts:
        publish.do_publish(taker, part)
    _end_all(draft, by_lease, Death.DEAD_LETTERED)
    return len(rows)


def _revive(draft: Draft, rows: Mapping[int, Message], by_lease: dict[int, BitMap64]) -> None:
    """Those that would be no dead letters by now are none; they are taken out of `by_lease`."""
    view = draft.view
    for number, seqs in by_lease.items():
        lease = view.leases[number]
        spared = BitMap64([seq for seq in seqs if failures.is_spared(view.spec, lease, seq)])
        seqs -= spared
        grouped = list(spared) if view.spec.is_grouped else []
        messages = tuple(rows[seq] for seq in grouped)
        numbers = dict(zip(grouped, group_numbers(messages), strict=True))
        failures.revive(draft, lease, spared, numbers)


def _comes_back(desk: Desk, taker: View, source: str) -> bool:
    """Whether what the taker drops to make room goes, from queue to queue, to the source."""
    spec = taker.spec
    passed: set[str] = set()
    while spec.overflow == "drop" and spec.dead_letter and spec.dead_letter not in passed:
        if spec.dead_letter == source:
            return True
        passed.add(spec.dead_letter)
        target = _target(desk, spec)
        first = desk.draft(ShardId(target.shards[0])) if target is not None else None
        if first is None:
            return False
        spec = first.view.spec
    return False


def _end_all(draft: Draft, by_lease: Mapping[int, BitMap64], why: Death) -> None:
    for number, seqs in by_lease.items():
        lease = draft.view.leases[number]
        failures.end(draft, lease, seqs, why)
        draft.put_lease(lease)


class _Source(NamedTuple):
    """The queue that a dead letter comes from."""

    name: str
    shard: int
    """Which of its shards, from 0."""
    shards: int


def _letter(view: View, seq: int, time_ms: int, message: Message, source: _Source) -> Message:
    """The message as it goes on, with headers that say what became of it."""
    lease = view.leases[view.holder[seq]]
    deliveries, failures = lease.counts_of(seq)
    told = {
        "queue": source.name,
        "seq": str(seq if source.shards == 1 else Place.of(source.shard, seq)),
        "reason": Doom(lease.doomed[seq]).name.lower(),
        "deliveries": str(deliveries),
        "failures": str(failures),
        "time": str(first_ms(message.headers, time_ms)),
    }
    kept = tuple(pair for pair in message.headers if not pair[0].startswith(PREFIX))
    added = tuple((PREFIX + name, value.encode()) for name, value in told.items())
    return Message(message.body, message.key, kept + added)


def first_ms(headers: Headers, time_ms: int) -> int:
    """When a message was published first; `time_ms`: when it was in the queue where it is."""
    told = next((value for name, value in headers if name == TIME), b"")
    # Whoever publishes may write such a header.
    return int(told) if told.isdigit() and len(told) <= TIME_DIGITS else time_ms


def _target(desk: Desk, spec: QueueSpec) -> QueueCell | None:
    catalog = desk.draft(CATALOG)
    key = spec.dead_letter.replace("/", "\0").encode()
    return catalog.view.queues.get(key) if catalog is not None else None


def _source_of(desk: Desk, view: View) -> _Source:
    catalog = desk.draft(CATALOG)
    key = catalog.view.owners.get(view.shard) if catalog is not None else None
    if catalog is None or key is None:
        return _Source("", 0, 1)
    shards = catalog.view.queues[key].shards
    return _Source(key.decode().replace("\0", "/"), shards.index(view.shard), len(shards))
