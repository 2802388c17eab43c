"""Selection of messages for a lease call on a queue with partitions.

Rule 1: the selection changes the number of partitions, but not which messages anybody gets; this
stays, whether or not the lease call succeeds.
Rule 2: each message is visited once when its partition becomes known, in the order of seqs, and
once more when it is delivered; the partition to serve is found without visiting the others.
"""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core import bounds
from millrace.core.cells import Slice
from millrace.core.delivery import redelivery
from millrace.core.needs import Need
from millrace.core.ordering.partitions import (
    parts_in,
    put,
    put_slice,
    resize,
)
from millrace.core.state.draft import Draft
from millrace.core.state.group_state import ChosenGroup
from millrace.core.state.lease_state import LeaseState
from millrace.core.state.partition_state import Partitions


def choose(draft: Draft, count: int) -> list[ChosenGroup] | Need:
    """Return the partition for a lease call and its deliverable messages; empty: there is none."""
    view = draft.view
    _forget_unused(draft)
    splits = bounds.PARTITION_SPLITS_MAX
    while True:
        cell, parts = view.partition, parts_in(view)
        assert cell is not None
        if not cell.waiting and not view.returned:
            return []
        parts.refresh(view.leases, draft.now)
        parts.give_back(view.returned)
        number = _turn(draft, parts, count)
        if isinstance(number, Need):
            return number
        if number is None:
            # Messages wait behind locks.
            if not splits or len(parts.slices) >= view.spec.partitions_max:
                return []
            splits -= 1
            resize(draft, len(parts.slices) + 1)
        elif oldest := _oldest(draft, parts.waiting[number], count):
            return [ChosenGroup(0, number, oldest)]
        elif len(view.holder) >= limits.IN_FLIGHT_MAX:
            return []


def _turn(draft: Draft, parts: Partitions, count: int) -> int | Need | None:
    """Return the least recently served partition that is free and has messages.

    Rows are scanned until it is certain that no partition served longer ago has messages, and that
    the selected one has no more than those known. With very many known messages the scan is
    skipped, and a batch gets the known ones.
    """
    while True:
        first, able = parts.oldest_free(), parts.oldest_able()
        if first is None:
            return None
        if able is not None and able == first:
            # Released messages may be younger than undelivered ones that were not scanned yet.
            known_count: int = parts.waiting[able].rank(parts.scanned)
            if known_count >= count or (known_count and len(parts.fresh) >= bounds.PARTITION_AHEAD):
                return able
        if parts.scanned >= draft.view.last_seq:
            return able
        if len(parts.fresh) >= bounds.PARTITION_WINDOW:
            return able
        need = _scan_further(draft, parts)
        if need is not None:
            return need


def _scan_further(draft: Draft, parts: Partitions) -> Need | None:
    """Return the Need of the next rows, to find which of them wait, and in which partition."""
    view = draft.view
    low = parts.scanned + 1
    high = min(low + limits.CHUNK_ROWS - 1, view.last_seq)
    gone = draft.hidden()
    ended = draft.ended_to
    for layer in view.layers:
        gone |= layer.died
        gone |= layer.kept
        ended = max(ended, layer.purged)
    if low <= view.stored_seq:
        high = min(high, view.stored_seq)
        known = view.facts.ended.get((low, high))
        if known is None:
            return Need(view.shard, ended=((low, high),))
        gone |= known
    fresh = BitMap64(range(max(low, ended + 1), high + 1)) - gone
    if view.holder:
        fresh -= BitMap64([seq for seq in fresh if seq in view.holder])
    parts.learn(high, fresh)
    return None


def _oldest(draft: Draft, waiting: BitMap64, count: int) -> list[int]:
    """Return up to `count` of the oldest messages that wait in a partition."""
    view = draft.view
    room = limits.IN_FLIGHT_MAX - len(view.holder)
    seqs: list[int] = []
    # Dead letters are found on the way, and no longer wait.
    for seq in waiting.copy():
        if seq not in view.returned:
            if room <= 0:
                continue
            room -= 1
        elif not redelivery.take_returned(draft, BitMap64([seq]), 1):
            continue
        seqs.append(seq)
        if len(seqs) == count:
            break
    return seqs


def _forget_unused(draft: Draft) -> None:
    """Merge partitions that were unused for long enough."""
    view = draft.view
    cell, spec = view.partition, view.spec
    assert cell is not None
    if cell.since_ms + spec.partition_age_ms > draft.now or cell.size <= spec.partitions_min:
        return
    used = max(cell.peak, spec.partitions_min)
    if used < cell.size:
        resize(draft, used)
    else:
        put(draft, msgspec.structs.replace(cell, peak=0, since_ms=draft.now))


def served(draft: Draft, at: int, lease: LeaseState, fresh: int) -> None:
    """Record that a lease call got messages of a partition, `fresh` of them for the first time."""
    view = draft.view
    cell, parts = view.partition, parts_in(view)
    assert cell is not None
    put_slice(draft, at, Slice(cell.turn + 1, (lease.id,)))
    parts.end(lease.open)
    parts.refresh(view.leases, draft.now)
    put(
        draft,
        msgspec.structs.replace(
            cell,
            waiting=cell.waiting - fresh,
            turn=cell.turn + 1,
            peak=max(cell.peak, len(parts.locked)),
            first=parts.first(),
        ),
    )
