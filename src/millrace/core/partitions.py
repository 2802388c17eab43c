"""The rules of partitions: equal slices of the ids, each served by one lease call at a time.

Rule 1: a message is in the partition that its id falls into. A cell under that id names it until
it ends; nothing waits in the order of seqs.
Rule 2: a lease call is served from one partition: of those that are not locked and have something,
the one that was served longest ago. A call that is given nothing changes no lock.
Rule 3: what a call was handed out locks its partition while any of it is held: until the deadline,
or until all of it has ended or was given back. So a lock is a fact of leases, and survives whatever
they survive.
Rule 4: their number follows the load. Whoever finds all of them locked, though something waits,
adds one; those that nobody needed for long go. A new slice has the locks of all that it overlaps.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from millrace.core import bounds
from millrace.core.draft import Draft
from millrace.core.lease_state import LeaseState
from millrace.core.message_id import IDS, id_of, ids_of, key_of
from millrace.core.model import Kind, QueueSpec
from millrace.core.partition_cells import IdCell, PartitionCell, Slice
from millrace.core.view import View
from millrace.errors import Invalid, Refused, TooLarge

_TWO = struct.Struct(">QQ")


def id_key(era: int, id_: int) -> bytes:
    """The key of a message's cell."""
    return _TWO.pack(era, id_)


def id_in(key: bytes) -> int:
    """The id that a key of `Kind.ID` names."""
    return int(_TWO.unpack(key)[1])


def era_in(key: bytes) -> int:
    """The era of such a key."""
    return int(_TWO.unpack(key)[0])


def bounds_of(at: int, count: int) -> tuple[int, int]:
    """The first id of a partition, and the first one behind it."""
    return at * IDS // count, (at + 1) * IDS // count


def slice_of(id_: int, count: int) -> int:
    """Which of so many partitions an id falls into."""
    return ((id_ + 1) * count - 1) // IDS


# --- Settings ------------------------------------------------------------------------------------


def check_spec(spec: QueueSpec) -> Refused | None:
    """Whether the settings fit together."""
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
    """Begin the partitions of a new queue; returns the key of its messages' ids."""
    key = key_of(secret, draft.view.shard)
    slices = (Slice(),) * draft.view.spec.partitions_min
    put(draft, PartitionCell(key, slices, since_ms=draft.now))
    return key


def configured(draft: Draft) -> None:
    """Their number stays within what the queue says."""
    cell = draft.view.partition
    if cell is not None:
        spec = draft.view.spec
        most = max(len(cell.slices), spec.partitions_min)
        resize(draft, cell, min(most, spec.partitions_max))


def put(draft: Draft, cell: PartitionCell) -> None:
    """The partitions were changed."""
    draft.points[Kind.PARTITION, b""] = cell
    draft.view.partition = cell


# --- What waits ----------------------------------------------------------------------------------


def enter(draft: Draft, first: int, count: int, *, held: bool = False) -> None:
    """New rows have ids; they wait to be handed out, or (`held`) are held by a worker already."""
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
    """These messages have ended; so many of them were never handed out."""
    view = draft.view
    cell = view.partition
    if cell is None:
        return
    era = view.pointers.era
    for seq in seqs:
        draft.points[Kind.ID, id_key(era, id_of(cell.key, seq))] = None
    if fresh:
        put(draft, msgspec.structs.replace(cell, waiting=cell.waiting - fresh))


def purged(draft: Draft) -> None:
    """Nothing waits any more."""
    cell = draft.view.partition
    if cell is not None and cell.waiting:
        put(draft, msgspec.structs.replace(cell, waiting=0))


# --- Locks ---------------------------------------------------------------------------------------


def locks(view: View, part: Slice, now: int) -> list[LeaseState]:
    """The lease calls that lock a partition."""
    found = (view.leases.get(number) for number in part.leases)
    return [lease for lease in found if lease is not None and _is_held(lease, now)]


def _is_held(lease: LeaseState, now: int) -> bool:
    if not lease.deadlines:
        return bool(lease.open) and lease.deadline_ms > now
    return any(lease.deadline_of(seq) > now for seq in lease.open)


def resize(draft: Draft, cell: PartitionCell, count: int) -> None:
    """Have so many partitions; each has the locks of those that it overlaps."""
    before = len(cell.slices)
    if count == before:
        return
    view = draft.view
    held = [{lease.id for lease in locks(view, one, draft.now)} for one in cell.slices]
    slices: list[Slice] = []
    for at in range(count):
        low, high = bounds_of(at, count)
        old = range(slice_of(low, before), slice_of(high - 1, before) + 1)
        leases = set[int]().union(*(held[one] for one in old))
        served = min(cell.slices[one].served for one in old)
        slices.append(Slice(served, tuple(sorted(leases))))
    put(
        draft,
        msgspec.structs.replace(
            cell, slices=tuple(slices), resized=cell.turn, peak=0, since_ms=draft.now
        ),
    )


def locked_by(view: View, seq: int, now: int) -> list[LeaseState]:
    """The lease calls that lock the partition of a message."""
    cell = view.partition
    if cell is None:
        return []
    at = slice_of(id_of(cell.key, seq), len(cell.slices))
    return locks(view, cell.slices[at], now)
