"""How partitions are served: which messages a lease call gets.

Rule 1: choosing changes how many partitions there are, and not what anybody gets: that holds
whatever becomes of the lease call.
Rule 2: what is looked at is bounded by what is asked for and by what is in flight.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core import bounds, failures
from millrace.core.codec import decode_cell
from millrace.core.commands import Need
from millrace.core.draft import Draft
from millrace.core.flight import Chosen
from millrace.core.lease_state import LeaseState
from millrace.core.message_id import IDS
from millrace.core.model import Kind
from millrace.core.partition_cells import IdCell, Slice
from millrace.core.partitions import bounds_of, era_in, id_in, id_key, locks, put, resize


def choose(draft: Draft, count: int) -> list[Chosen] | Need:
    """The partition that a lease call is served from, and what it may give; empty: none."""
    view = draft.view
    _forget_unused(draft)
    cell = view.partition
    assert cell is not None
    if not cell.waiting and not view.returned:
        return []
    slices = cell.slices
    free = [at for at, one in enumerate(slices) if not locks(view, one, draft.now)]
    changed = _changed(draft)
    for at in sorted(free, key=lambda at: slices[at].served):
        found = _look(draft, at, count, changed)
        if isinstance(found, Need):
            return found
        if found:
            return [Chosen(0, at, found)]
    # All must have been served since one was added: one poll after the other adds no more.
    is_busy = not free and min(one.served for one in slices) > cell.resized
    if is_busy and len(slices) < view.spec.partitions_max:
        resize(draft, cell, len(slices) + 1)
    return []


def _forget_unused(draft: Draft) -> None:
    """Partitions that were not needed for long enough go."""
    view = draft.view
    cell, spec = view.partition, view.spec
    assert cell is not None
    if cell.since_ms + spec.partition_age_ms > draft.now or len(cell.slices) <= spec.partitions_min:
        return
    used = max(cell.peak, spec.partitions_min)
    if used < len(cell.slices):
        resize(draft, cell, used)
    else:
        put(draft, msgspec.structs.replace(cell, peak=0, since_ms=draft.now))


class _Changed(NamedTuple):
    """What batches that are not folded yet, and this one, did to the cells of ids."""

    ids: list[int]
    """Sorted."""
    seqs: dict[int, int | None]
    """None: the message has ended."""


def _changed(draft: Draft) -> _Changed:
    era = draft.view.pointers.era
    seqs: dict[int, int | None] = {}
    for points in (*(layer.points for layer in draft.view.layers), draft.points):
        for (kind, key), cell in points.items():
            if kind is Kind.ID and era_in(key) == era:
                seqs[id_in(key)] = cell.seq if isinstance(cell, IdCell) else None
    return _Changed(sorted(seqs), seqs)


def _look(draft: Draft, at: int, count: int, changed: _Changed) -> list[int] | Need:
    """Up to `count` messages of a partition that may be handed out, by their ids."""
    view = draft.view
    cell = view.partition
    assert cell is not None
    low, high = bounds_of(at, len(cell.slices))
    room = limits.IN_FLIGHT_MAX - len(view.holder)
    out: list[int] = []
    while low < high:
        page = _page(draft, low, count)
        if isinstance(page, Need):
            return page
        known, upto = page
        upto = min(upto, high)
        seqs: dict[int, int | None] = {id_: seq for id_, seq in known if id_ < upto}
        first, last = bisect_left(changed.ids, low), bisect_left(changed.ids, upto)
        for id_ in changed.ids[first:last]:
            seqs[id_] = changed.seqs[id_]
        for _, seq in sorted(seqs.items()):
            if seq is None:
                continue
            if seq not in view.holder:
                if room > 0:
                    room -= 1
                    out.append(seq)
            elif seq in view.returned and failures.take_again(draft, BitMap64([seq]), 1):
                out.append(seq)
            if len(out) == count:
                return out
        low = upto
    return out


def _page(draft: Draft, low: int, count: int) -> tuple[Sequence[tuple[int, int]], int] | Need:
    """Ids and seqs as the store knows them from an id on, and the first id that it may not tell."""
    view = draft.view
    if not view.stored_index:
        return (), IDS
    found = view.facts.ids.get(low)
    if found is None:
        limit = max(bounds.ID_CELLS_MIN, min(count, bounds.ID_CELLS_MAX))
        return Need(view.shard, cells=(Kind.ID, id_key(view.pointers.era, low), limit))
    return found


def learn(draft: Draft, low: bytes, found: Sequence[tuple[bytes, bytes]], limit: int) -> None:
    """The store's answer to a need."""
    ids: list[tuple[int, int]] = []
    for key, value in found:
        cell = decode_cell(Kind.ID, value)
        assert isinstance(cell, IdCell)
        ids.append((id_in(key), cell.seq))
    upto = ids[-1][0] + 1 if len(found) == limit else IDS
    draft.view.facts.ids[id_in(low)] = (ids, upto)


def served(draft: Draft, at: int, lease: LeaseState, fresh: int) -> None:
    """A lease call was handed out messages of a partition, so many of them for the first time."""
    view = draft.view
    cell = view.partition
    assert cell is not None
    slices = list(cell.slices)
    slices[at] = Slice(cell.turn + 1, (lease.id,))
    locked = sum(1 for one in slices if locks(view, one, draft.now))
    put(
        draft,
        msgspec.structs.replace(
            cell,
            slices=tuple(slices),
            waiting=cell.waiting - fresh,
            turn=cell.turn + 1,
            peak=max(cell.peak, locked),
        ),
    )
