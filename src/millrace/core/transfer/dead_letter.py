"""Moves dead letters to their dead-letter queue.

Rule 1: a move is one entry: the copy in the dead-letter queue and the end here. So no message is
lost in between, and none is duplicated.
Rule 2: if the dead-letter queue was deleted, dead letters wait until it exists again, or the
settings name none.
Rule 3: a dead letter never makes a queue drop messages that would come back to its own queue: that
would never end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import QueueCell
from millrace.core.commands import MoveDeadLetters, Publish
from millrace.core.delivery import redelivery
from millrace.core.model import (
    CATALOG,
    DeadLetterReason,
    Death,
    Headers,
    NewMessage,
    Place,
    ShardId,
)
from millrace.core.needs import Need
from millrace.core.ordering.group_numbers import group_numbers
from millrace.core.publishing import publish
from millrace.core.publishing.shard_routing import shard_of
from millrace.core.spec import QueueSpec
from millrace.core.state.draft import BatchContext, Draft
from millrace.core.state.view import View
from millrace.errors import Invalid, NotFound, Refused, Retry

PREFIX = "millrace-dead-"
"""Prefix of the headers that name the origin of a dead letter."""

TIME = f"{PREFIX}time"
"""The header with the time of the first publish, in milliseconds since 1970. A message that is
dead-lettered again keeps it."""

TIME_DIGITS = 14
"""A number with more digits is no calendar time."""


def check_dead_letter(
    context: BatchContext, shard: ShardId | None, spec: QueueSpec
) -> Refused | None:
    """Check that the dead-letter queue of the settings exists, and is another one."""
    if not spec.dead_letter:
        return None
    target = _target(context, spec)
    if target is None:
        return NotFound(
            f"there is no queue {spec.dead_letter!r} for dead letters; make or declare it",
            field="dead_letter",
        )
    if shard in target.shards:
        return Invalid("a queue cannot take its own dead letters", field="dead_letter")
    return None


def move_dead_letters(
    context: BatchContext, draft: Draft, command: MoveDeadLetters
) -> int | Refused | Retry | Need:
    """Move messages that are still dead letters, as many as one entry should hold."""
    view = draft.view
    rows: dict[int, NewMessage] = {}
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
        # The settings no longer name it.
        _revive(draft, rows, by_lease)
        _end_all(draft, by_lease, Death.DROPPED)
        return len(rows)
    target = _target(context, view.spec)
    if target is None:
        return NotFound(f"there is no queue {view.spec.dead_letter!r}", field="dead_letter")
    source = _source_of(context, view)
    letters: dict[int, list[NewMessage]] = {}
    for seq, message in rows.items():
        at = shard_of(message, target.route, len(target.shards), seq)
        letter = _letter(view, seq, times[seq], message, source)
        letters.setdefault(target.shards[at], []).append(letter)
    parts: list[tuple[Draft, Publish]] = []
    for shard, messages in letters.items():
        taker, part = context.draft(ShardId(shard)), Publish(tuple(messages))
        if taker is None:
            return NotFound(f"there is no queue {view.spec.dead_letter!r}", field="dead_letter")
        may_drop = not _comes_back(context, taker.view, source.name)
        checked = publish.check_publish(taker, part)
        checked = checked or publish.check_room(taker, part, may_drop=may_drop)
        if isinstance(checked, Refused | Retry | Need):
            return checked
        parts.append((taker, part))
    for taker, part in parts:
        publish.do_publish(taker, part)
    _end_all(draft, by_lease, Death.DEAD_LETTERED)
    return len(rows)


def _revive(draft: Draft, rows: Mapping[int, NewMessage], by_lease: dict[int, BitMap64]) -> None:
    """Make messages of dead letters that would be none by the present settings, and take them
    out of `by_lease`."""
    view = draft.view
    for number, seqs in by_lease.items():
        lease = view.leases[number]
        spared = BitMap64([seq for seq in seqs if redelivery.is_revivable(view.spec, lease, seq)])
        seqs -= spared
        grouped = list(spared) if view.spec.is_grouped else []
        messages = tuple(rows[seq] for seq in grouped)
        numbers = dict(zip(grouped, group_numbers(messages), strict=True))
        redelivery.revive(draft, lease, spared, numbers)


def _comes_back(context: BatchContext, taker: View, source: str) -> bool:
    """Return True if messages dropped by the taker get, from queue to queue, back to the source."""
    spec = taker.spec
    passed: set[str] = set()
    while spec.overflow == "drop" and spec.dead_letter and spec.dead_letter not in passed:
        if spec.dead_letter == source:
            return True
        passed.add(spec.dead_letter)
        target = _target(context, spec)
        first = context.draft(ShardId(target.shards[0])) if target is not None else None
        if first is None:
            return False
        spec = first.view.spec
    return False


def _end_all(draft: Draft, by_lease: Mapping[int, BitMap64], why: Death) -> None:
    for number, seqs in by_lease.items():
        lease = draft.view.leases[number]
        redelivery.end(draft, lease, seqs, why)
        draft.put_lease(lease)


class _Source(NamedTuple):
    """The queue that a dead letter comes from."""

    name: str
    shard: int
    """Number of its shard, from 0."""
    shards: int


def _letter(view: View, seq: int, time_ms: int, message: NewMessage, source: _Source) -> NewMessage:
    """Return the dead letter: the message with headers that name its origin and the reason."""
    lease = view.leases[view.holder[seq]]
    deliveries, failures = lease.counts_of(seq)
    origin = {
        "queue": source.name,
        "seq": str(seq if source.shards == 1 else Place.of(source.shard, seq)),
        "reason": DeadLetterReason(lease.doomed[seq]).name.lower(),
        "deliveries": str(deliveries),
        "failures": str(failures),
        "time": str(first_ms(message.headers, time_ms)),
    }
    kept = tuple(pair for pair in message.headers if not pair[0].startswith(PREFIX))
    added = tuple((PREFIX + name, value.encode()) for name, value in origin.items())
    return NewMessage(message.body, message.key, kept + added)


def first_ms(headers: Headers, time_ms: int) -> int:
    """Return the time of the first publish of a message; `time_ms`: its publish time in this
    queue."""
    digits = next((value for name, value in headers if name == TIME), b"")
    # Any publisher may write such a header.
    return int(digits) if digits.isdigit() and len(digits) <= TIME_DIGITS else time_ms


def _target(context: BatchContext, spec: QueueSpec) -> QueueCell | None:
    catalog = context.draft(CATALOG)
    key = spec.dead_letter.replace("/", "\0").encode()
    return catalog.view.queues.get(key) if catalog is not None else None


def _source_of(context: BatchContext, view: View) -> _Source:
    catalog = context.draft(CATALOG)
    key = catalog.view.owners.get(view.shard) if catalog is not None else None
    if catalog is None or key is None:
        return _Source("", 0, 1)
    shards = catalog.view.queues[key].shards
    return _Source(key.decode().replace("\0", "/"), shards.index(view.shard), len(shards))
