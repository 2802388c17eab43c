"""Expiry by age on each tick of a shard, in bounded steps."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import Literal

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import CursorCell, StageCell
from millrace.core.delivery import attempt_id, lease, sessions
from millrace.core.followers.cursors import unpin
from millrace.core.model import Death
from millrace.core.needs import Need
from millrace.core.ordering import deferred
from millrace.core.publishing.stages import do_drop_stage
from millrace.core.retention import (
    expiry,
    log_retention,
    queue_ttl,
)
from millrace.core.state.draft import Draft
from millrace.core.state.view import View
from millrace.core.topics.topic import FORWARDERS


def do_tick(draft: Draft) -> Literal[True] | Need | None:
    """Expire and collect what is too old, a bounded number of each kind; True if more is due."""
    need = (
        log_retention.check(draft) or expiry.check_tick(draft) or queue_ttl.need_check_empty(draft)
    )
    need = need or expiry.check(draft)
    if need is not None:
        return need
    is_cut = deferred.sweep(draft)
    if isinstance(is_cut, Need):
        return is_cut
    is_cut = expiry.do_tick(draft) or is_cut
    queue_ttl.check_empty(draft)
    is_cut = expiry.collect(draft) or is_cut
    is_cut = log_retention.expire(draft) or is_cut
    view, now, limit = draft.view, draft.now, limits.TICK_ENDS_MAX
    pins = sorted(number for number in view.pins if _is_pin_due(view, number, now))
    stages = sorted(name for name, stage in view.stages.items() if _is_stage_due(stage, now))
    cursors = sorted(n for n, c in view.retaining.items() if _is_retaining_due(view, c, now))
    for number in pins[:limit]:
        unpin(draft, number)
    for name in stages[:limit]:
        do_drop_stage(draft, name)
    for _ in takewhile(lambda _: _is_producer_due(view, now), range(limit)):
        draft.put_producer(_oldest_producer(view), None)
    for _ in takewhile(lambda _: _is_lease_due(view, now), range(limit)):
        draft.forget_lease()
    for _ in takewhile(lambda _: attempt_id.is_due(view, now), range(limit)):
        attempt_id.forget(draft)
    lease.expire_returned(draft)
    for name in cursors[:limit]:
        draft.put_cursor(name, msgspec.structs.replace(view.cursors[name], dropped=True))
        draft.pass_to(view.retain_floor())
    is_cut = sessions.tick(draft) or is_cut
    is_cut = _expire_deletes(draft) or is_cut or max(len(pins), len(stages), len(cursors)) > limit
    is_cut = is_cut or attempt_id.is_due(view, now)
    return is_cut or _is_producer_due(view, now) or _is_lease_due(view, now) or None


def may_age(view: View) -> bool:
    """Return True if anything can expire by age; else no tick is due until the next decision."""
    spec = view.spec
    return bool(
        view.expiry_ms is not None
        or (spec.ttl_ms and view.aged < view.last_seq)
        or view.ended
        or view.swept_from is not None
        or view.overdue
        or view.deletes.oldest() is not None
        or view.sessions
        or view.producers
        or view.attempts
        or view.pins
        or view.stages
        or view.retaining
        or spec.keep_ms
        or spec.keep_messages
        or spec.keep_bytes
    )


def tick_due(view: View, now: int) -> bool:
    """Return True if a tick at `now` may change anything; cheap enough for every second."""
    # Most queues have nearly nothing to expire, and there may be thousands: the check must be
    # cheap.
    oldest = view.deletes.oldest()
    return (
        (view.expiry_ms is not None and (expiry.tick_due(view, now) or expiry.is_due(view, now)))
        or (view.spec.ttl_ms and queue_ttl.tick_due(view, now))
        or (bool(view.ended) and _is_lease_due(view, now))
        or (view.swept_from is not None and deferred.sweep_due(view))
        or (bool(view.overdue) and lease.expire_due(view, now))
        or (oldest is not None and _is_second_due(view, oldest, now))
        or (bool(view.sessions) and sessions.tick_due(view, now))
        or (bool(view.producers) and _is_producer_due(view, now))
        or (bool(view.attempts) and attempt_id.is_due(view, now))
        or (bool(view.pins) and any(_is_pin_due(view, number, now) for number in view.pins))
        or (bool(view.stages) and any(_is_stage_due(stage, now) for stage in view.stages.values()))
        or (bool(view.retaining) and _is_any_retaining_due(view, now))
        or log_retention.is_due(view, now)
    )


def _is_pin_due(view: View, number: int, now: int) -> bool:
    pin = view.pins[number]
    return pin.index > 0 and (
        pin.deadline_ms <= now or log_retention.is_pin_too_large(view, number)
    )


def _is_stage_due(stage: StageCell, now: int) -> bool:
    return stage.time_ms + limits.STAGE_MS_MAX <= now


def _is_producer_due(view: View, now: int) -> bool:
    oldest = view.producers.get(_oldest_producer(view))
    return oldest is not None and oldest.time_ms + limits.PRODUCER_REMEMBERED_MS <= now


def _oldest_producer(view: View) -> str:
    """Return the least recently used producer; forwarders are excluded and end with their
    subscriptions (P4)."""
    return next((name for name in view.producers if not name.startswith(FORWARDERS)), "")


def _is_lease_due(view: View, now: int) -> bool:
    return bool(view.ended) and view.ended[0][0] + limits.LEASE_REMEMBERED_MS <= now


def _is_retaining_due(view: View, cell: CursorCell, now: int) -> bool:
    """Return True if a retaining cursor lags too long or too far; rows that were never delivered
    do not count as kept by it."""
    place = view.place_of(cell)
    spec = view.spec
    is_old = cell.moved_ms + (spec.retain_max_ms or limits.CURSOR_RETAIN_MS_MAX) <= now
    is_far = view.pointers.next - 1 - place > limits.CURSOR_RETAIN_ROWS_MAX
    limit = spec.retain_max_bytes or log_retention.CURSOR_RETAIN_BYTES
    is_far = is_far or log_retention.held_back(view, place) > limit
    return place < view.last_seq and (is_old or is_far)


def _is_any_retaining_due(view: View, now: int) -> bool:
    return any(_is_retaining_due(view, cell, now) for cell in view.retaining.values())


def _is_second_due(view: View, second: int, now: int) -> bool:
    return (second + 1) * 1000 + view.spec.keep_deletes_ms <= now


def _expire_deletes(draft: Draft) -> bool:
    """End deletes that are old enough and passed by every retaining cursor.

    Returns True if there are more than one batch ends.
    """
    view = draft.view
    floor = view.retain_floor()
    died = BitMap64()
    is_cut = False
    for at, (second, seqs) in enumerate(view.deletes):
        if not _is_second_due(view, second, draft.now) or seqs.min() > floor:
            break
        room = limits.TICK_DELETES_MAX - len(died)
        is_cut = at == limits.TICK_ENDS_MAX or len(seqs) > room
        died |= BitMap64(islice(seqs, room)) if at < limits.TICK_ENDS_MAX else BitMap64()
        if is_cut:
            break
    if died and died.max() > floor:
        died.remove_range(floor + 1, died.max() + 1)
    if died:
        draft.die(Death.EXPIRED, died)
        purged = max(view.pointers.floor, died.max())
        draft.put_pointers(msgspec.structs.replace(view.pointers, floor=purged))
    return is_cut and bool(died)
