"""Forwarding: how the rows of a topic get to the queues of its subscriptions.

Rule 1: a parcel's rows in the queue and the subscription's progress are one entry, so that no crash
loses or doubles one. They are published under the subscription's own producer, with the seq of the
last row in the topic as the rising number: where they should come twice, the queue knows.
Rule 2: each parcel is judged alone. A queue that refuses holds up no other one.
Rule 3: a parcel that does not begin where its subscription has come to, or that has passed another
filter than it has by now, is left alone.
Rule 4: rows of a durable subscription whose queue is not there, or takes none so large, go to its
queue of dead letters, or are dropped; they are counted, in the same entry. Dead letters have no
number: the entry alone keeps them from coming twice, and a queue of dead letters does not end what
sends to it.
Rule 5: a parcel is brought as a whole: where the queue refuses some rows, or that of dead letters
those that are too large, none is brought.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from millrace.core import message_size, publish, topic
from millrace.core.answers import Published
from millrace.core.commands import Aside, Need, Numbered, Publish
from millrace.core.desk import Desk
from millrace.core.draft import Draft
from millrace.core.model import QueueCell, Seq, ShardId
from millrace.core.place import Place
from millrace.core.route import Shards, ranks, shards_of, split, split_runs
from millrace.core.topic_cells import SubscriptionCell
from millrace.core.topic_commands import Brought, Forward, Forwarded, Outcome, Parcel
from millrace.errors import NotFound, Refused, Retry


class _Part(NamedTuple):
    """What one shard of the queue gets, or was given before."""

    target: Draft
    wanted: Publish
    known: Published | None


class _Way(NamedTuple):
    """Where the rows of a parcel go."""

    queue: QueueCell | None
    """None: nowhere."""
    outcome: Outcome

    @property
    def shard(self) -> int:
        """The first one of its queue, which tells queues apart; 0: there is none."""
        return self.queue.shards[0] if self.queue is not None else 0


class _Plan(NamedTuple):
    """A parcel that its queue takes."""

    parcel: Parcel
    cell: SubscriptionCell
    outcome: Outcome
    parts: dict[int, _Part]
    """By the shard's number within the queue; without those that get nothing."""
    shards: Shards | None
    """Which of several shards each row belongs to."""
    beside: _Plan | None = None
    """What becomes of the rows that are too large for the queue."""
    gone: tuple[int, ...] = ()
    """Which of all rows those are, from 0."""

    @property
    def total(self) -> int:
        """How many rows it brings."""
        return self.parcel.rows.count if self.parcel.rows is not None else 0


class _Cut(NamedTuple):
    """The rows of a parcel that are too large for its queue, and the others."""

    fitting: Parcel
    large: Parcel
    at: tuple[int, ...]
    """Which ones are, from 0."""


def forward(desk: Desk, draft: Draft, command: Forward) -> Forwarded | Need:
    """Bring each parcel to its queue, if that takes it."""
    brought: list[Brought] = []
    plans: list[_Plan] = []
    queues: set[int] = set()
    for parcel in command.parcels:
        cell = draft.view.subscriptions.get(parcel.subscription)
        if cell is None or cell.passed != parcel.after:
            brought.append(Brought(parcel.subscription, moved=False))
            continue
        if cell.filter != parcel.filter:
            brought.append(Brought(parcel.subscription, moved=False))
            continue
        way = _way(desk, cell)
        cut = _cut(desk, parcel, cell, way)
        beside = _instead(desk, cell, way.shard) if cut is not None else way
        if way.shard in queues or beside.shard in queues:
            brought.append(Brought(parcel.subscription, moved=False))
            continue
        planned = _plan(desk, draft, parcel if cut is None else cut.fitting, cell, way)
        if cut is not None and isinstance(planned, _Plan):
            large = _plan(desk, draft, cut.large, cell, beside)
            if isinstance(large, _Plan):
                large = planned._replace(beside=large, gone=cut.at)
            planned = large
        if isinstance(planned, Need):
            return planned
        if isinstance(planned, Refused | Retry):
            brought.append(Brought(parcel.subscription, moved=False, error=planned))
            continue
        # A second parcel for the same queue would be judged by what it was before the first.
        queues |= {one.shard for one in (way, beside) if one.shard}
        plans.append(planned)
    before = topic.passed_by_all(draft.view)
    for plan in plans:
        brought.append(_do(draft, plan))
    if topic.passed_by_all(draft.view) > before:
        topic.drop_passed(draft)
    return Forwarded(tuple(brought))


def _way(desk: Desk, cell: SubscriptionCell) -> _Way:
    queue = topic.queue_of(desk, cell)
    if queue is not None or not cell.is_unbound:
        return _Way(queue, "forwarded")
    return _instead(desk, cell, 0)


def _instead(desk: Desk, cell: SubscriptionCell, without: int) -> _Way:
    """Where rows go that their queue cannot be given; `without`: the first shard of that queue,
    which may be named as its own queue of dead letters."""
    space, _, name = cell.dead_letter.partition("/")
    letters = topic.queue_named(desk, space, name)
    if letters is None or letters.shards[0] == without:
        return _Way(None, "dropped")
    return _Way(letters, "dead_lettered")


def _cut(desk: Desk, parcel: Parcel, cell: SubscriptionCell, way: _Way) -> _Cut | None:
    """None: no row is too large for its queue."""
    rows, queue = parcel.rows, way.queue
    if rows is None or queue is None or way.outcome != "forwarded" or not cell.durable:
        return None
    target = desk.draft(ShardId(queue.shards[0]))
    most = target.view.spec.message_bytes_max if target is not None else 0
    if not most:
        return None
    flags = message_size.larger(rows, most)
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
    desk: Desk, draft: Draft, parcel: Parcel, cell: SubscriptionCell, way: _Way
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
        # What has no key goes by turns, a parcel to one shard.
        shards = shards_of(rows, queue.route, count, parcel.upto)
        blocks, asides = split(rows, shards, count), split_runs(parcel.aside, shards, count)
        lives = split_runs(parcel.lives, shards, count)
    numbered = None
    if outcome == "forwarded":
        name = topic.producer_of(draft.view.shard, parcel.subscription, cell)
        numbered = Numbered(name, parcel.upto, "rising")
    parts: dict[int, _Part] = {}
    for at, (block, aside, ends) in enumerate(zip(blocks, asides, lives, strict=True)):
        target = desk.draft(ShardId(queue.shards[at]))
        if target is None:
            gone = cell.target if outcome == "forwarded" else cell.dead_letter
            return NotFound(f"queue {gone} was deleted", field="queue")
        if not block.count:
            continue
        # A log knows neither priorities, delays nor times to live: it takes messages as they come.
        turns, until = (aside, ends) if target.view.spec.retention == "work" else ((), ())
        if target.view.spec.is_partitioned:
            # Nor do partitions know turns.
            turns = ()
        if target.view.spec.order != "none":
            # Nor does an order know priorities: they are a wish, and no reason to stop.
            turns = tuple(Aside(run.at, run.count, delay_ms=run.delay_ms) for run in turns)
        wanted = Publish(block, numbered, turns, lives=until)
        checked = publish.check_publish(target, wanted) or publish.check_room(target, wanted)
        if isinstance(checked, Refused | Retry | Need):
            return checked
        parts[at] = _Part(target, wanted, checked)
    return _Plan(parcel, cell, outcome, parts, shards)


def _do(draft: Draft, plan: _Plan) -> Brought:
    firsts = _put(plan)
    if plan.beside is not None:
        _put(plan.beside)
    _pass(draft, plan)
    number = plan.parcel.subscription
    if plan.outcome != "forwarded":
        return Brought(number, moved=True, outcome=plan.outcome)
    if plan.shards is None:
        return Brought(number, moved=True, first=firsts.get(0), gone=plan.gone)
    count = max(firsts, default=-1) + 1
    places = tuple(
        Place.of(shard, (firsts[shard] or 0) + rank) if firsts[shard] else 0
        for shard, rank in zip(
            plan.shards.tolist(), ranks(plan.shards, count).tolist(), strict=True
        )
    )
    return Brought(number, moved=True, places=places, gone=plan.gone)


def _put(plan: _Plan) -> dict[int, Seq | None]:
    """Publish the rows; returns where the first one is in each shard."""
    firsts: dict[int, Seq | None] = {}
    for at, (target, wanted, known) in plan.parts.items():
        done = known if known is not None else publish.do_publish(target, wanted)
        firsts[at] = done.first
    return firsts


def _pass(draft: Draft, plan: _Plan) -> None:
    parcel, cell = plan.parcel, plan.cell
    counts: dict[Outcome, int] = {"forwarded": 0, "dead_lettered": 0, "dropped": 0}
    for one in (plan, plan.beside):
        if one is not None:
            counts[one.outcome] += one.total
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
