"""Forwards rows of a topic to the queues of its subscriptions.

Rule 1: a parcel's rows in the queue and the subscription's progress are one entry, so that no crash
loses or duplicates one. They are published under the subscription's own producer, with the seq of
the last row in the topic as the rising number, by which the queue detects repeats.
Rule 2: each parcel is judged alone. A queue that refuses does not delay others.
Rule 3: a parcel that does not begin at the progress of its subscription, or was filtered by an
outdated filter, is ignored.
Rule 4: rows of a durable subscription whose queue does not exist, or does not take such large rows,
move to its dead-letter queue, or are dropped; they are counted in the same entry. Dead letters have
no number: the entry alone keeps them from being duplicated, and a dead-letter queue does not end
the subscriptions that send to it.
Rule 5: a parcel is forwarded as a whole: if the queue refuses some rows, or the dead-letter queue
refuses the ones that are too large, nothing is forwarded.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.core.answers import PublishResult
from millrace.core.cells import QueueCell, SubscriptionCell
from millrace.core.commands import ProducerNumber, Publish, RowSchedule
from millrace.core.format.block import Block
from millrace.core.format.column import Column
from millrace.core.model import Place, Seq, ShardId
from millrace.core.needs import Need
from millrace.core.publishing import publish
from millrace.core.publishing.shard_routing import Shards, ranks, shards_of, split, split_runs
from millrace.core.state.draft import BatchContext, Draft
from millrace.core.topic_commands import (
    Forward,
    ForwardDestination,
    ForwardedParcel,
    ForwardResult,
    Parcel,
)
from millrace.core.topics import topic
from millrace.errors import NotFound, Refused, Retry


class _Part(NamedTuple):
    """The rows of a parcel for one shard of the queue, published now or before."""

    target: Draft
    wanted: Publish
    known: PublishResult | None


class _Way(NamedTuple):
    """The destination of the rows of a parcel."""

    queue: QueueCell | None
    """The queue; None: the rows are dropped."""
    outcome: ForwardDestination

    @property
    def shard(self) -> int:
        """First shard of its queue, which identifies the queue; 0: there is none."""
        return self.queue.shards[0] if self.queue is not None else 0


class _Plan(NamedTuple):
    """A parcel that its queue accepts."""

    parcel: Parcel
    cell: SubscriptionCell
    outcome: ForwardDestination
    parts: dict[int, _Part]
    """Shard number within the queue → its rows; shards without rows are missing."""
    shards: Shards | None
    """The shard of each row, if there are several."""
    beside: _Plan | None = None
    """The plan for rows that are too large for the queue."""
    gone: tuple[int, ...] = ()
    """Row numbers, from 0, of the rows that are too large."""

    @property
    def total(self) -> int:
        """Number of rows that it forwards."""
        return self.parcel.rows.count if self.parcel.rows is not None else 0


class _Cut(NamedTuple):
    """The rows of a parcel that are too large for its queue, and the others."""

    fitting: Parcel
    large: Parcel
    at: tuple[int, ...]
    """Row numbers, from 0, of the rows that are too large."""


def forward(context: BatchContext, draft: Draft, command: Forward) -> ForwardResult | Need:
    """Forward each parcel to its queue, if that accepts it."""
    brought: list[ForwardedParcel] = []
    plans: list[_Plan] = []
    queues: set[int] = set()
    for parcel in command.parcels:
        cell = draft.view.subscriptions.get(parcel.subscription)
        if cell is None or cell.passed != parcel.after:
            brought.append(ForwardedParcel(parcel.subscription, moved=False))
            continue
        if cell.filter != parcel.filter:
            brought.append(ForwardedParcel(parcel.subscription, moved=False))
            continue
        way = _way(context, cell)
        cut = _cut(context, parcel, cell, way)
        beside = _dead_letter_way(context, cell, way.shard) if cut is not None else way
        if way.shard in queues or beside.shard in queues:
            brought.append(ForwardedParcel(parcel.subscription, moved=False))
            continue
        planned = _plan(context, draft, parcel if cut is None else cut.fitting, cell, way)
        if cut is not None and isinstance(planned, _Plan):
            large = _plan(context, draft, cut.large, cell, beside)
            if isinstance(large, _Plan):
                large = planned._replace(beside=large, gone=cut.at)
            planned = large
        if isinstance(planned, Need):
            return planned
        if isinstance(planned, Refused | Retry):
            brought.append(ForwardedParcel(parcel.subscription, moved=False, error=planned))
            continue
        # A second parcel for the same queue would be checked against the state before the first.
        queues |= {destination.shard for destination in (way, beside) if destination.shard}
        plans.append(planned)
    before = topic.passed_by_all(draft.view)
    for plan in plans:
        brought.append(_do(draft, plan))
    if topic.passed_by_all(draft.view) > before:
        topic.drop_passed(draft)
    return ForwardResult(tuple(brought))


def _way(context: BatchContext, cell: SubscriptionCell) -> _Way:
    queue = topic.queue_of(context, cell)
    if queue is not None or not cell.is_unbound:
        return _Way(queue, "forwarded")
    return _dead_letter_way(context, cell, 0)


def _dead_letter_way(context: BatchContext, cell: SubscriptionCell, without: int) -> _Way:
    """Return the destination of rows that their queue cannot be given; `without`: the first
    shard of that queue, which may also be named as its own dead-letter queue."""
    space, _, name = cell.dead_letter.partition("/")
    letters = topic.queue_named(context, space, name)
    if letters is None or letters.shards[0] == without:
        return _Way(None, "dropped")
    return _Way(letters, "dead_lettered")


def _cut(context: BatchContext, parcel: Parcel, cell: SubscriptionCell, way: _Way) -> _Cut | None:
    """Split off rows that are too large for their queue; None: there are none."""
    rows, queue = parcel.rows, way.queue
    if rows is None or queue is None or way.outcome != "forwarded" or not cell.durable:
        return None
    target = context.draft(ShardId(queue.shards[0]))
    limit = target.view.spec.message_bytes_max if target is not None else 0
    if not limit:
        return None
    flags = oversized_rows(rows, limit)
    if not flags.any():
        return None
    ways = flags.astype(np.int64)
    fitting, large = (
        msgspec.structs.replace(
            parcel, rows=block if block.count else None, aside=aside, lives=lives
        )
        for block, aside, lives in zip(
            split(rows, ways, 2),
            split_runs(parcel.aside, ways, 2),
            split_runs(parcel.lives, ways, 2),
            strict=True,
        )
    )
    return _Cut(fitting, large, tuple(np.flatnonzero(flags).tolist()))


def _plan(
    context: BatchContext, draft: Draft, parcel: Parcel, cell: SubscriptionCell, way: _Way
) -> _Plan | Refused | Retry | Need:
    queue, outcome = way
    if queue is None and outcome == "forwarded":
        return NotFound(f"queue {cell.target} was deleted", field="queue")
    rows = parcel.rows
    if rows is None or queue is None:
        return _Plan(parcel, cell, outcome, {}, None)
    count, shards = len(queue.shards), None
    blocks, asides, lives = [rows], [parcel.aside], [parcel.lives]
    if count > 1:
        # Rows without a key take turns, a parcel to one shard.
        shards = shards_of(rows, queue.route, count, parcel.upto)
        blocks, asides = split(rows, shards, count), split_runs(parcel.aside, shards, count)
        lives = split_runs(parcel.lives, shards, count)
    numbered = None
    if outcome == "forwarded":
        name = topic.producer_of(draft.view.shard, parcel.subscription, cell)
        numbered = ProducerNumber(name, parcel.upto, "rising")
    parts: dict[int, _Part] = {}
    for at, (block, aside, ends) in enumerate(zip(blocks, asides, lives, strict=True)):
        target = context.draft(ShardId(queue.shards[at]))
        if target is None:
            gone = cell.target if outcome == "forwarded" else cell.dead_letter
            return NotFound(f"queue {gone} was deleted", field="queue")
        if not block.count:
            continue
        # A log has neither priorities, delays nor TTLs: it takes messages as they come.
        turns, until = (aside, ends) if target.view.spec.retention == "work" else ((), ())
        if target.view.spec.is_partitioned:
            # Partitions have no priorities and delays either.
            turns = ()
        if target.view.spec.order != "none":
            # Ordered queues have no priorities: they are dropped rather than the message refused.
            turns = tuple(RowSchedule(run.at, run.count, delay_ms=run.delay_ms) for run in turns)
        wanted = Publish(block, numbered, turns, lives=until)
        checked = publish.check_publish(target, wanted) or publish.check_room(target, wanted)
        if isinstance(checked, Refused | Retry | Need):
            return checked
        parts[at] = _Part(target, wanted, checked)
    return _Plan(parcel, cell, outcome, parts, shards)


def _do(draft: Draft, plan: _Plan) -> ForwardedParcel:
    firsts = _put(plan)
    if plan.beside is not None:
        _put(plan.beside)
    _pass(draft, plan)
    number = plan.parcel.subscription
    if plan.outcome != "forwarded":
        return ForwardedParcel(number, moved=True, outcome=plan.outcome)
    if plan.shards is None:
        return ForwardedParcel(number, moved=True, first=firsts.get(0), gone=plan.gone)
    count = max(firsts, default=-1) + 1
    places = tuple(
        Place.of(shard, (firsts[shard] or 0) + rank) if firsts[shard] else 0
        for shard, rank in zip(
            plan.shards.tolist(), ranks(plan.shards, count).tolist(), strict=True
        )
    )
    return ForwardedParcel(number, moved=True, places=places, gone=plan.gone)


def _put(plan: _Plan) -> dict[int, Seq | None]:
    """Publish the rows; returns the first seq in each shard."""
    firsts: dict[int, Seq | None] = {}
    for at, (target, wanted, published) in plan.parts.items():
        done = published if published is not None else publish.do_publish(target, wanted)
        firsts[at] = done.first
    return firsts


def _pass(draft: Draft, plan: _Plan) -> None:
    parcel, cell = plan.parcel, plan.cell
    counts: dict[ForwardDestination, int] = {"forwarded": 0, "dead_lettered": 0, "dropped": 0}
    for part in (plan, plan.beside):
        if part is not None:
            counts[part.outcome] += part.total
    draft.put_subscription(
        parcel.subscription,
        msgspec.structs.replace(
            cell,
            passed=parcel.upto,
            forwarded=cell.forwarded + counts["forwarded"],
            filtered=cell.filtered + parcel.filtered,
            moved_ms=draft.now,
            dead_lettered=cell.dead_lettered + counts["dead_lettered"],
            dropped=cell.dropped + counts["dropped"],
        ),
    )


# --- Size of messages, for queues with a limit (`message_bytes_max`) -----------------------------
# Body and headers count, names and values. Headers written by the server do not: they are no part
# of the published message.

_OWN = (b"aws.", b"millrace-")
"""Prefixes of headers that the server writes."""

Flags = npt.NDArray[np.bool_]


def oversized_rows(block: Block, limit: int) -> Flags:
    """Return the mask of the rows of a block with more than `limit` bytes; a constant number of
    calls."""
    sizes = np.diff(block.bodies.bounds()).astype(np.int64)
    names, values, lists = block.header_names, block.header_values, block.header_lists
    if names is None or values is None or lists is None:
        return np.greater(sizes, limit)
    ends = np.frombuffer(lists, np.int32)
    of_headers = np.diff(names.bounds()).astype(np.int64) + np.diff(values.bounds())
    large: Flags = np.greater(sizes + _sums(of_headers, ends), limit)
    # Nearly always there are none, and no name needs to be checked.
    if large.any():
        for prefix in _OWN:
            of_headers[_begin_with(names, prefix)] = 0
        large = np.greater(sizes + _sums(of_headers, ends), limit)
    return large


def _sums(of_headers: npt.NDArray[np.int64], ends: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the sums over the headers of each row."""
    return np.diff(np.concatenate(([0], np.cumsum(of_headers)))[ends])


def _begin_with(names: Column, prefix: bytes) -> npt.NDArray[np.int64]:
    """Return the mask of the names with this prefix."""
    bounds = names.bounds().astype(np.int64)
    candidates = np.flatnonzero(np.diff(bounds) >= len(prefix))
    data = np.frombuffer(names.data, np.uint8)
    for at, letter in enumerate(prefix):
        candidates = candidates[data[bounds[candidates] + at] == letter]
    return candidates
