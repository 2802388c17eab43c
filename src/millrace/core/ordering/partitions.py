"""Partitions: slices of the message ids, each served by one lease call at a time.

Rule 1: a message is in the partition that contains its id. A cell under that id names it until it
ends. In a partition the oldest message comes first, delivered before or not.
Rule 2: a lease call is served from one partition: the least recently served one of those that are
free and have messages. A call that gets nothing changes no lock.
Rule 3: delivered messages lock their partition while any of them is held: until the deadline, or
until all have ended or were released. So a lock is derived from leases, and as durable as they are.
Rule 4: the number of partitions follows the load. A call that finds nothing, although messages wait
behind locks, splits a partition: one half keeps the lock, and the other half is free. This
duplicates no delivery: held messages are never delivered. Partitions that were unused for long are
merged, and the merged one has the locks of all.
Rule 5: the cost of a call does not grow with the number of partitions: it writes one page of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from millrace.core import bounds
from millrace.core.cells import (
    IdCell,
    Kind,
    PartitionCell,
    Slice,
    SlicesCell,
)
from millrace.core.format.message_id import id_of, ids_of, key_of
from millrace.core.spec import QueueSpec
from millrace.core.state.draft import Draft
from millrace.core.state.lease_state import LeaseState
from millrace.core.state.partition_state import (
    Partitions,
    bounds_of,
    held_until,
    numbers_of,
    parent_of,
    slice_of,
)
from millrace.core.state.view import View, number_key
from millrace.errors import Invalid, Refused, TooLarge

_TWO = struct.Struct(">QQ")


def id_key(era: int, id_: int) -> bytes:
    """Return the key of a message's cell."""
    return _TWO.pack(era, id_)


def id_in(key: bytes) -> int:
    """Return the id in a key of kind ID."""
    return int(_TWO.unpack(key)[1])


def era_in(key: bytes) -> int:
    """Return the era in such a key."""
    return int(_TWO.unpack(key)[0])


# --- Settings ------------------------------------------------------------------------------------


def check_spec(spec: QueueSpec) -> Refused | None:
    """Check that the settings fit together."""
    if spec.partitions_max > bounds.PARTITIONS_MAX:
        return TooLarge(
            f"a queue has up to {bounds.PARTITIONS_MAX} partitions",
            field="partitions_max",
            limit=bounds.PARTITIONS_MAX,
        )
    if not 1 <= spec.partitions_min <= spec.partitions_max:
        return Invalid(
            f"partitions_min is {spec.partitions_min}, not from 1 to partitions_max, which is "
            f"{spec.partitions_max}",
            field="partitions_min",
            limit=spec.partitions_max,
        )
    if not spec.is_partitioned:
        return None
    for field, is_wrong, why in (
        ("keyed", spec.keyed, "revisions of a key replace each other wherever they wait"),
        ("retention", spec.retention == "log", "a log is worked in the order of its seqs"),
        ("order", spec.order != "none", "messages come in the order of random ids"),
        ("delay", spec.delay_ms > 0, "a lock is all that a message waits for"),
    ):
        if is_wrong:
            return Invalid(
                f"delivery 'partitions' goes without {field}: {why}; leave it out, or take "
                "delivery 'messages'",
                field=field,
            )
    return None


def make(draft: Draft, secret: bytes) -> int:
    """Create the partitions of a new queue; returns the key of its messages' ids."""
    view = draft.view
    key = key_of(secret, view.shard)
    count = view.spec.partitions_min
    view.parts = Partitions(key, count, [Slice()] * count, scanned=0)
    put(draft, PartitionCell(key, since_ms=draft.now, count=count, base=count))
    _put_pages(draft, range(count))
    return key


def configured(draft: Draft) -> None:
    """Bring the number of partitions into the configured range."""
    parts = draft.view.parts
    if parts is not None:
        spec = draft.view.spec
        limit = max(len(parts.slices), spec.partitions_min)
        resize(draft, min(limit, spec.partitions_max))


def put(draft: Draft, cell: PartitionCell) -> None:
    """Put the changed counters of the partitions."""
    if cell.slices:
        # Of an earlier version: from now on they are in pages.
        cell = msgspec.structs.replace(cell, slices=(), count=cell.size, base=cell.root)
        _put_pages(draft, range(cell.count))
    draft.points[Kind.PARTITION, b""] = cell
    draft.view.partition = cell


def put_slice(draft: Draft, number: int, part: Slice) -> None:
    """Put a partition with another turn, or other locks."""
    parts_in(draft.view).put(number, part)
    _put_pages(draft, (number,))


def _put_pages(draft: Draft, numbers: Iterable[int]) -> None:
    """Write the pages of these partitions; a page without any is deleted."""
    slices, size = parts_in(draft.view).slices, bounds.PARTITIONS_PAGE
    for page in dict.fromkeys(number // size for number in numbers):
        page_slices = tuple(slices[page * size : (page + 1) * size])
        draft.points[Kind.SLICES, number_key(page)] = (
            SlicesCell(page_slices) if page_slices else None
        )


def parts_in(view: View) -> Partitions:
    """Return the partitions of a queue that has some."""
    assert view.parts is not None
    return view.parts


# --- Waiting messages ----------------------------------------------------------------------------


def enter(draft: Draft, first: int, count: int, *, held: bool = False) -> None:
    """Give new rows their ids; they wait for delivery, or (`held`) are leased already."""
    view = draft.view
    cell = view.partition
    assert cell is not None
    era = view.pointers.era
    for seq, id_ in enumerate(ids_of(cell.key, first, count), first):
        draft.points[Kind.ID, id_key(era, id_)] = IdCell(seq)
    draft.put_pointers(msgspec.structs.replace(view.pointers, next=view.last_seq + 1))
    if not held:
        put(draft, msgspec.structs.replace(cell, waiting=cell.waiting + count))


def ended(draft: Draft, seqs: Iterable[int], *, fresh: int = 0) -> None:
    """Remove ended messages, `fresh` of which were never delivered."""
    view = draft.view
    cell = view.partition
    if cell is None:
        return
    era = view.pointers.era
    for seq in seqs:
        draft.points[Kind.ID, id_key(era, id_of(cell.key, seq))] = None
    parts_in(view).end(seqs)
    if fresh:
        put(draft, msgspec.structs.replace(cell, waiting=cell.waiting - fresh))


def purged(draft: Draft, upto: int) -> None:
    """Remove all waiting messages up to this seq."""
    cell = draft.view.partition
    if cell is None:
        return
    parts_in(draft.view).forget(upto)
    if cell.waiting:
        put(draft, msgspec.structs.replace(cell, waiting=0, first=upto + 1))


# --- Locks ---------------------------------------------------------------------------------------


def locks(view: View, part: Slice, now: int) -> list[LeaseState]:
    """Return the lease calls that lock a partition."""
    leases = (view.leases.get(number) for number in part.leases)
    return [lease for lease in leases if lease is not None and held_until(lease) > now]


def locked_by(view: View, seq: int, now: int) -> list[LeaseState]:
    """Return the lease calls that lock the partition of a message."""
    parts = view.parts
    return [] if parts is None else locks(view, parts.slices[parts.part_of(seq)], now)


# --- Split and merge -----------------------------------------------------------------------------


def resize(draft: Draft, count: int) -> None:
    """Split or merge partitions until there are `count`."""
    view = draft.view
    parts, cell = parts_in(view), view.partition
    assert cell is not None
    before = len(parts.slices)
    if count == before:
        return
    if cell.slices:
        put(draft, cell)
    if count > before:
        _put_pages(draft, [parts.split() for _ in range(before, count)])
    elif count >= parts.base:
        _merge(draft, parts, count)
    else:
        _replace_all(draft, parts, count)
    put(
        draft,
        msgspec.structs.replace(
            view.partition or cell,
            resized=cell.turn,
            peak=0,
            since_ms=draft.now,
            count=count,
            base=parts_in(view).base,
        ),
    )


def _merge(draft: Draft, parts: Partitions, count: int) -> None:
    """Undo the last splits until there are `count` partitions."""
    changed: list[int] = []
    for last in range(len(parts.slices) - 1, count - 1, -1):
        two = (parts.slices[parent_of(parts.base, last)], parts.slices[last])
        changed += (last, parts.merge(_joined(draft, two)))
    _put_pages(draft, changed)


def _replace_all(draft: Draft, parts: Partitions, count: int) -> None:
    """Replace all partitions by `count` equal ones, fewer than there were at creation."""
    before = len(parts.slices)
    within: list[dict[int, None]] = [{} for _ in range(count)]
    numbers = numbers_of(parts.base, before)
    for at, number in enumerate(numbers):
        low, high = bounds_of(at, len(numbers))
        for new in range(slice_of(low, count), slice_of(high - 1, count) + 1):
            within[new][number] = None
    slices = [_joined(draft, [parts.slices[old] for old in within[new]]) for new in range(count)]
    draft.view.parts = Partitions(parts.key, count, slices, parts.first() - 1)
    _put_pages(draft, range(before))


def _joined(draft: Draft, several: Iterable[Slice]) -> Slice:
    """Return a partition with the locks of all of these, and the oldest of their turns."""
    view, listed = draft.view, list(several)
    leases = {lease.id for part in listed for lease in locks(view, part, draft.now)}
    return Slice(min(part.served for part in listed), tuple(sorted(leases)))
