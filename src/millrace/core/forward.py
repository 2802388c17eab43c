"""Forwarding: how the rows of a topic get to the queues of its subscriptions.

Rule 1: a parcel's rows in the queue and the subscription's progress are one entry, so that no crash
loses or doubles one. They are published under the subscription's own producer, with the seq of the
last row in the topic as the rising number: where they should come twice, the queue knows.
Rule 2: each parcel is judged alone. A queue that refuses holds up no other one.
Rule 3: a parcel that does not begin where its subscription has come to, or that has passed another
filter than it has by now, is left alone.
Rule 4: rows of a durable subscription whose queue is not there go to its queue of dead letters, or
are dropped; they are counted, in the same entry. Dead letters have no number: the entry alone keeps
them from coming twice, and a queue of dead letters does not end what sends to it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from millrace.core import publish, topic
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
        if way.shard in queues:
            brought.append(Brought(parcel.subscription, moved=False))
            continue
        planned = _plan(desk, draft, parcel, cell, way)
        if isinstance(planned, Need):
            return planned
        if isinstance(planned, Refused | Retry):
            brought.append(Brought(parcel.subscription, moved=False, error=planned))
            continue
        # A second parcel for the same queue would be judged by what it was before the first.
        if way.shard:
            queues.add(way.shard)
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
    space, _, name = cell.dead_letter.partition("/")
    letters = topic.queue_named(desk, space, name)
    return _Way(letters, "dropped" if letters is None else "dead_lettered")


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
    firsts: dict[int, Seq | None] = {}
    for at, (target, wanted, known) in plan.parts.items():
        done = known if known is not None else publish.do_publish(target, wanted)
        firsts[at] = done.first
    _pass(draft, plan.parcel, plan.cell, plan.outcome)
    number = plan.parcel.subscription
    if plan.outcome != "forwarded":
        return Brought(number, moved=True, outcome=plan.outcome)
    if plan.shards is None:
        return Brought(number, moved=True, first=firsts.get(0))
    count = max(firsts, default=-1) + 1
    places = tuple(
        Place.of(shard, (firsts[shard] or 0) + rank) if firsts[shard] else 0
        for shard, rank in zip(
            plan.shards.tolist(), ranks(plan.shards, count).tolist(), strict=True
        )
    )
    return Brought(number, moved=True, places=places)


def _pass(draft: Draft, parcel: Parcel, cell: SubscriptionCell, outcome: Outcome) -> None:
    count = parcel.rows.count if parcel.rows is not None else 0
    draft.put_subscription(
        parcel.subscription,
        msgspec.structs.replace(
            cell,
            passed=parcel.upto,
            forwarded=cell.forwarded + (count if outcome == "forwarded" else 0),
            filtered=cell.filtered + parcel.filtered,
            moved_ms=draft.now,
            dead_lettered=cell.dead_lettered + (count if outcome == "dead_lettered" else 0),
            dropped=cell.dropped + (count if outcome == "dropped" else 0),
        ),
    )
