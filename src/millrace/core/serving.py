"""How partitions are served: which messages a lease call gets.

Rule 1: choosing changes how many partitions there are, and not what anybody gets: that holds
whatever becomes of the lease call.
Rule 2: each message is looked at once when its partition becomes known, in the order of seqs, and
once more when it is handed out; which partition is served is known without a look at the others.
"""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core import bounds, failures
from millrace.core.commands import Need
from millrace.core.draft import Draft
from millrace.core.flight import Chosen
from millrace.core.lease_state import LeaseState
from millrace.core.partition_cells import Slice
from millrace.core.partition_state import Parts
from millrace.core.partitions import parts_in, put, put_slice, resize


def choose(draft: Draft, count: int) -> list[Chosen] | Need:
    """The partition that a lease call is served from, and what it may give; empty: none."""
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
            # Something waits behind locks.
            if not splits or len(parts.slices) >= view.spec.partitions_max:
                return []
            splits -= 1
            resize(draft, len(parts.slices) + 1)
        elif found := _oldest(draft, parts.waiting[number], count):
            return [Chosen(0, number, found)]
        elif len(view.holder) >= limits.IN_FLIGHT_MAX:
            return []


def _turn(draft: Draft, parts: Parts, count: int) -> int | Need | None:
    """The partition whose turn it is, of those that are free and have something.

    So much is looked at before that it is known that the one which was served longest ago has
    nothing, and that the one whose turn it is has no more than is known, unless so many messages
    are known that each partition has some: then a batch is what is known.
    """
    while True:
        first, able = parts.oldest_free(), parts.oldest_able()
        if first is None:
            return None
        if able is not None and able == first:
            # What was given back may be younger than others of which nothing is known yet.
            known: int = parts.waiting[able].rank(parts.scanned)
            if known >= count or (known and len(parts.fresh) >= bounds.PARTITION_AHEAD):
                return able
        if parts.scanned >= draft.view.last_seq:
            return able
        if len(parts.fresh) >= bounds.PARTITION_WINDOW:
            return able
        need = _look_on(draft, parts)
        if need is not None:
            return need


def _look_on(draft: Draft, parts: Parts) -> Need | None:
    """Look at the next rows: which of them wait, and in which partition."""
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
    """Up to `count` of the oldest messages that wait in a partition."""
    view = draft.view
    room = limits.IN_FLIGHT_MAX - len(view.holder)
    found: list[int] = []
    # Dead letters are found on the way, and wait no longer.
    for seq in waiting.copy():
        if seq not in view.returned:
            if room <= 0:
                continue
            room -= 1
        elif not failures.take_again(draft, BitMap64([seq]), 1):
            continue
        found.append(seq)
        if len(found) == count:
            break
    return found


def _forget_unused(draft: Draft) -> None:
    """Partitions that were not needed for long enough go."""
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
    """A lease call was handed out messages of a partition, so many of them for the first time."""
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
