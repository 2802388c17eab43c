"""Rate limits of message groups, one token bucket for each.

Rule 1: a group that waits for its rate has no turn; its cell names its bucket (BUCKET), which is
sorted by the time when the group gets a turn again.
Rule 2: an empty group is remembered as long as its past deliveries count against its rate.
"""

from __future__ import annotations

import msgspec

from millrace import limits
from millrace.core import token_bucket
from millrace.core.cells import Kind, RingCell, TurnCell
from millrace.core.needs import Need
from millrace.core.ordering import groups
from millrace.core.state.draft import Draft


def put_left(draft: Draft, group: int, cell: TurnCell) -> None:
    """Write back what is left of a group, or delete its cell if neither messages nor rate need
    it."""
    spec = draft.view.spec
    if groups.waits(cell):
        groups.put_cell(draft, group, cell)
        return
    if spec.group_rate_us and cell.paid_us > 1000 * draft.now:
        if not cell.due_ms:
            due_ms = -(-cell.paid_us // 1000)
            cell = msgspec.structs.replace(cell, due_ms=due_ms)
            _put_bucket(draft, due_ms, group)
        groups.put_cell(draft, group, cell)
        return
    groups.put_cell(draft, group, None)


def limit(draft: Draft, group: int, cell: TurnCell | None, *, has_turn: bool) -> None:
    """Let a group without rate budget wait in its bucket; the caller drops its turn."""
    view, spec = draft.view, draft.view.spec
    assert cell is not None
    rate_us, burst = spec.group_rate_us, spec.group_burst
    paid_us = token_bucket.owed(cell.paid_us, draft.now, rate_us, burst)
    due_ms = min(
        token_bucket.ready_ms(paid_us, rate_us, burst), draft.now + token_bucket.WAIT_MS_MAX
    )
    draft.passed += 1
    _put_bucket(draft, due_ms, group)
    cell = msgspec.structs.replace(cell, paid_us=paid_us)
    if has_turn:
        cell = msgspec.structs.replace(cell, due_ms=due_ms)
    groups.put_cell(draft, group, cell)
    if has_turn:
        return
    flight = view.groups.flights[group]
    flight.is_limited = True
    groups.look(view, group, flight)


def _put_bucket(draft: Draft, due_ms: int, group: int) -> None:
    key = groups.bucket_key(draft.view.pointers.era, due_ms, group)
    draft.points[Kind.BUCKET, key] = RingCell((group,))
    draft.view.groups.buckets.put(key, group)


def fire(draft: Draft) -> Need | None:
    """Give turns back to groups whose rate allows another message."""
    view = draft.view
    buckets = view.groups.buckets
    while draft.promoted < limits.PROMOTE_CELLS_MAX:
        first_cell = buckets.first()
        if first_cell is None:
            low = buckets.wanted_from()
            if low is None:
                return None
            return Need(view.shard, cells=(Kind.BUCKET, low, limits.WINDOW_CELLS))
        key, group = first_cell
        due_ms = groups.bucket_due(key)
        if due_ms > draft.now:
            return None
        if group not in view.groups.cells:
            need = _need_due(draft)
            if need is not None:
                return need
        draft.promoted += 1
        draft.points[Kind.BUCKET, key] = None
        buckets.drop(key)
        flight = view.groups.flights.get(group)
        if flight is not None and flight.is_limited:
            flight.is_limited = False
            groups.look(view, group, flight)
        cell = groups.turn_cell(draft, group)
        if cell is None or cell.due_ms != due_ms:
            continue
        put_left(draft, group, msgspec.structs.replace(cell, due_ms=0))
        is_free = flight is None or flight.count < groups.bound_of(view.spec)
        if groups.waits(cell) and is_free:
            groups.put_turns(draft, [group])
    return None


def _need_due(draft: Draft) -> Need | None:
    """Return the Need of the cells of the groups that come back first, all at once, or None."""
    first = draft.view.groups.buckets.firsts(limits.GROUPS_AHEAD)
    due = [group for key, group in first if groups.bucket_due(key) <= draft.now]
    need = groups.need_cells(draft, due)
    for group in due if need is None else ():
        groups.turn_cell(draft, group)
    return need
