"""In-memory state of partitions: their locks and their waiting messages.

It is derived from cells, leases and rows, and never stored. A lease call does not visit all
partitions: changed leases and heaps of times and turns name the ones to visit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import PartitionCell, Slice, SlicesCell
from millrace.core.format.message_id import ID_BITS, IDS, id_of, ids_at
from millrace.core.state.lease_state import LeaseState

_FEW = 16
"""Up to this number, ids are handled one by one."""

Heap = list[tuple[int, int]]
"""(time or turn, partition); outdated entries are skipped."""


def held_until(lease: LeaseState) -> int:
    """Return the latest deadline of the messages that a lease holds; 0: it holds none."""
    if not lease.open:
        return 0
    if not lease.deadlines:
        return lease.deadline_ms
    return max(lease.deadline_of(seq) for seq in lease.open)


class Partitions:
    """The partitions of a shard, and the messages that wait in them."""

    __slots__ = (
        "_able",
        "_by_lease",
        "_ends",
        "_free",
        "_returned",
        "_touched",
        "base",
        "fresh",
        "key",
        "locked",
        "scanned",
        "slices",
        "waiting",
    )

    def __init__(self, key: int, base: int, slices: list[Slice], scanned: int) -> None:
        self.key = key
        self.base = base
        self.slices = slices
        self.scanned = scanned
        """Every undelivered message up to this seq is in `fresh`."""
        self.fresh = BitMap64()
        self.waiting: dict[int, BitMap64] = {}
        """Partition → its deliverable messages, new or released."""
        self._returned = BitMap64()
        """The released messages that `waiting` contains."""
        self.locked: dict[int, int] = dict.fromkeys(range(len(slices)), 0)
        """Locked partition → end of its lock; a new view checks all of them once."""
        self._touched = set(self.locked)
        """Partitions whose lock may have changed."""
        self._by_lease: dict[int, list[int]] = {}
        """Lease → the partitions that name it."""
        self._ends: Heap = []
        self._free: Heap = []
        self._able: Heap = []
        """Free partitions with waiting messages."""
        for number, part in enumerate(slices):
            self._name(number, part)

    @classmethod
    def load(
        cls, cell: PartitionCell, pages: Mapping[int, SlicesCell], ended_to: int
    ) -> Partitions:
        """Load partitions from cells: those of an earlier version have no pages."""
        slices = list(cell.slices)
        for at in sorted(pages):
            slices += pages[at].slices
        return cls(cell.key, cell.root, slices, max(cell.first - 1, ended_to))

    # --- Which partition --------------------------------------------------------------------

    def part_of(self, seq: int) -> int:
        """Return the partition of a message."""
        return part_of(id_of(self.key, seq), self.base, len(self.slices))

    def oldest_free(self) -> int | None:
        """Return the least recently served partition that is not locked."""
        return self._first(self._free)

    def oldest_able(self) -> int | None:
        """Return the least recently served partition that is not locked and has waiting
        messages."""
        return self._first(self._able, self.waiting)

    def _first(self, heap: Heap, among: Mapping[int, object] | None = None) -> int | None:
        slices, locked = self.slices, self.locked
        while heap:
            served, number = heap[0]
            if (
                number < len(slices)
                and slices[number].served == served
                and number not in locked
                and (among is None or number in among)
            ):
                return number
            heapq.heappop(heap)
        return None

    def _push(self, heap: Heap, number: int) -> None:
        heapq.heappush(heap, (self.slices[number].served, number))
        if len(heap) > 4 * len(self.slices) + limits.DEADLINES_SPARE:
            slices = self.slices
            heap[:] = sorted(
                {(slices[other].served, other) for _, other in heap if other < len(slices)}
            )

    # --- Locks ------------------------------------------------------------------------------

    def touch(self, lease: int) -> None:
        """Note a change of a lease: its partitions may be free, or locked again."""
        numbers = self._by_lease.get(lease)
        if numbers is not None:
            self._touched.update(numbers)

    def refresh(self, leases: Mapping[int, LeaseState], now: int) -> None:
        """Update the partitions whose locks may have changed."""
        ends, touched = self._ends, self._touched
        while ends and ends[0][0] <= now:
            touched.add(heapq.heappop(ends)[1])
        for number in touched:
            if number < len(self.slices):
                self._judge(number, leases, now)
        touched.clear()

    def _judge(self, number: int, leases: Mapping[int, LeaseState], now: int) -> None:
        held_leases = (leases.get(lease) for lease in self.slices[number].leases)
        until = max((held_until(lease) for lease in held_leases if lease is not None), default=0)
        if until > now:
            if self.locked.get(number) != until:
                self.locked[number] = until
                heapq.heappush(self._ends, (until, number))
        elif self.locked.pop(number, None) is not None:
            self._push(self._free, number)
            if number in self.waiting:
                self._push(self._able, number)

    def put(self, number: int, part: Slice) -> None:
        """Replace the state of a partition; its lock is known after `refresh`."""
        for lease in self.slices[number].leases:
            named = self._by_lease[lease]
            named.remove(number)
            if not named:
                del self._by_lease[lease]
        self.slices[number] = part
        self._name(number, part)
        # Unless a lease of it turns out to be held, it is free, with another turn than before.
        self.locked[number] = 0
        self._touched.add(number)

    def _name(self, number: int, part: Slice) -> None:
        for lease in part.leases:
            self._by_lease.setdefault(lease, []).append(number)

    # --- Split and merge --------------------------------------------------------------------

    def split(self) -> int:
        """Split a partition; returns the number of the new one, its upper half, which is free."""
        number = len(self.slices)
        parent = parent_of(self.base, number)
        self.slices.append(Slice())
        self._push(self._free, number)
        self._place_anew(parent)
        return number

    def merge(self, joined: Slice) -> int:
        """Merge the last partition into the one that it was split from, as `joined`; returns its
        number."""
        number = len(self.slices) - 1
        parent = parent_of(self.base, number)
        self.put(number, Slice())
        self.slices.pop()
        self.locked.pop(number, None)
        self.put(parent, joined)
        self._place_anew(number)
        return parent

    def _place_anew(self, number: int) -> None:
        seqs = self.waiting.pop(number, None)
        if seqs is not None:
            self._place(seqs)

    # --- Waiting messages -------------------------------------------------------------------

    def learn(self, upto: int, fresh: BitMap64) -> None:
        """Add undelivered messages, found by a scan from `scanned` up to `upto`."""
        self.scanned = upto
        self.fresh |= fresh
        self._place(fresh)

    def give_back(self, returned: BitMap64) -> None:
        """Update the messages that are released and ready."""
        previous = self._returned
        if returned != previous:
            self._drop(previous - returned)
            self._place(returned - previous)
            self._returned = returned.copy()

    def end(self, seqs: Iterable[int]) -> None:
        """Remove messages that no longer wait."""
        gone = BitMap64(seqs)
        gone &= self.fresh | self._returned
        self.fresh -= gone
        self._returned -= gone
        self._drop(gone)

    def forget(self, scanned: int) -> None:
        """Remove all messages up to this seq."""
        self.scanned = scanned
        self.fresh.clear()
        self._returned.clear()
        self.waiting.clear()

    def first(self) -> int:
        """Return a seq below which no undelivered message waits."""
        return self.fresh.min() if self.fresh else self.scanned + 1

    def _place(self, seqs: BitMap64) -> None:
        count = len(self.slices)
        if len(seqs) <= _FEW:
            for seq in seqs:
                self._add(self.part_of(seq), (seq,))
            return
        if count == 1:
            self._add(0, seqs)
            return
        all_seqs = np.fromiter(seqs, np.int64, len(seqs))
        numbers = parts_of(ids_at(self.key, all_seqs), self.base, count)
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        bounds: list[int] = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(order)]
        listed: list[int] = all_seqs[order].tolist()
        found: list[int] = ordered[bounds[:-1]].tolist()
        for number, (low, high) in zip(found, pairwise(bounds), strict=True):
            self._add(number, listed[low:high])

    def _add(self, number: int, seqs: Iterable[int]) -> None:
        waiting = self.waiting.get(number)
        if waiting is not None:
            waiting.update(seqs)
            return
        self.waiting[number] = BitMap64(seqs)
        if number not in self.locked:
            self._push(self._able, number)

    def _drop(self, seqs: BitMap64) -> None:
        for seq in seqs:
            number = self.part_of(seq)
            waiting = self.waiting[number]
            waiting.discard(seq)
            if not waiting:
                del self.waiting[number]


# --- Which partition an id is in ---
# A queue begins with `base` equal slices of all ids. Its partitions grow one by one: in rounds,
# each partition of the round before is split into two halves, in the order of their numbers. The
# lower half keeps the number, and the upper half gets the next number that is free. So one more
# partition changes one other, and no partition is more than twice as large as another.

Ids = NDArray[np.int64]


def bounds_of(at: int, count: int) -> tuple[int, int]:
    """Return the first id of one of `count` equal slices, and the first id after it."""
    return at * IDS // count, (at + 1) * IDS // count


def slice_of(id_: int, count: int) -> int:
    """Return the number of the slice, of `count` equal ones, that contains an id."""
    return ((id_ + 1) * count - 1) // IDS


def parent_of(base: int, number: int) -> int:
    """Return the partition that was split into itself and this one, whose number is `base` or
    more."""
    return number - _round(base, number)


def part_of(id_: int, base: int, count: int) -> int:
    """Return the number of the partition, of `count`, that contains an id."""
    size = _round(base, count)
    number = int(_numbers(base, 2 * size)[slice_of(id_, 2 * size)])
    return number if number < count else number - size


def parts_of(ids: Ids, base: int, count: int) -> Ids:
    """Return the partitions of many ids, as `part_of`."""
    size = _round(base, count)
    # The product of an id and a number has more than 64 bits: it is computed in two parts.
    slices = 2 * size
    high, low = ids >> 32, ids & 0xFFFF_FFFF
    at = (high * slices + ((low * slices + slices - 1) >> 32)) >> (ID_BITS - 32)
    numbers = _numbers(base, slices)[at]
    parts: Ids = np.where(numbers < count, numbers, numbers - size)
    return parts


def numbers_of(base: int, count: int) -> list[int]:
    """Return the partition of each of equal slices in order, so small that none spans several
    partitions."""
    size = _round(base, count)
    numbers = _numbers(base, 2 * size)
    parts: list[int] = np.where(numbers < count, numbers, numbers - size).tolist()
    return parts


def _round(base: int, count: int) -> int:
    """Return the number of partitions at the beginning of the split round of `count`."""
    return base << ((count // base).bit_length() - 1)


@lru_cache(maxsize=64)
def _numbers(base: int, size: int) -> Ids:
    """Return the partition of each of `size` equal slices; `size` is `base` doubled some times."""
    numbers = np.arange(base, dtype=np.int64)
    while len(numbers) < size:
        numbers = np.stack((numbers, numbers + len(numbers)), axis=1).ravel()
    return numbers
