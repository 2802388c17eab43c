"""What a view remembers of partitions: which are free, and what waits in each.

All of it follows from cells, leases and rows, and is never stored. Nothing here looks at all
partitions when a lease is asked for: changed leases and heaps of times and turns say which to look
at.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np
from pyroaring import BitMap64

from millrace import limits
from millrace.core.lease_state import LeaseState
from millrace.core.message_id import id_of, ids_at
from millrace.core.partition_cells import PartitionCell, Slice, SlicesCell
from millrace.core.partition_layout import parent_of, part_of, parts_of

_FEW = 16
"""So many ids are looked at one by one."""

Heap = list[tuple[int, int]]
"""Of (time or turn, partition); an entry that no longer holds is passed over."""


def held_until(lease: LeaseState) -> int:
    """When the time of the last message is over that a lease call holds; 0: it holds none."""
    if not lease.open:
        return 0
    if not lease.deadlines:
        return lease.deadline_ms
    return max(lease.deadline_of(seq) for seq in lease.open)


class Parts:
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
        """Up to here every message that was never handed out is in `fresh`."""
        self.fresh = BitMap64()
        self.waiting: dict[int, BitMap64] = {}
        """What may be handed out, fresh or given back, of partitions that have any."""
        self._returned = BitMap64()
        """The messages that were given back, as far as `waiting` knows of them."""
        self.locked: dict[int, int] = dict.fromkeys(range(len(slices)), 0)
        """Locked partitions, and until when; a new view looks at all of them once."""
        self._touched = set(self.locked)
        """Partitions that may be locked no longer, or again."""
        self._by_lease: dict[int, list[int]] = {}
        """Lease → the partitions that name it."""
        self._ends: Heap = []
        self._free: Heap = []
        self._able: Heap = []
        """Free partitions in which something waits."""
        for number, one in enumerate(slices):
            self._name(number, one)

    @classmethod
    def load(cls, cell: PartitionCell, pages: Mapping[int, SlicesCell], ended_to: int) -> Parts:
        """From cells: those of an earlier version have no pages."""
        slices = list(cell.slices)
        for at in sorted(pages):
            slices += pages[at].slices
        return cls(cell.key, cell.root, slices, max(cell.first - 1, ended_to))

    # --- Which partition --------------------------------------------------------------------

    def part_of(self, seq: int) -> int:
        """The partition that a message is in."""
        return part_of(id_of(self.key, seq), self.base, len(self.slices))

    def oldest_free(self) -> int | None:
        """The partition that was served longest ago, of those that are not locked."""
        return self._first(self._free)

    def oldest_able(self) -> int | None:
        """The same, of those in which something is known to wait."""
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
            heap[:] = sorted({(slices[one].served, one) for _, one in heap if one < len(slices)})

    # --- Locks ------------------------------------------------------------------------------

    def touch(self, lease: int) -> None:
        """A lease was changed: what it locks may be free, or locked again."""
        numbers = self._by_lease.get(lease)
        if numbers is not None:
            self._touched.update(numbers)

    def refresh(self, leases: Mapping[int, LeaseState], now: int) -> None:
        """Look at the partitions whose locks may have changed."""
        ends, touched = self._ends, self._touched
        while ends and ends[0][0] <= now:
            touched.add(heapq.heappop(ends)[1])
        for number in touched:
            if number < len(self.slices):
                self._judge(number, leases, now)
        touched.clear()

    def _judge(self, number: int, leases: Mapping[int, LeaseState], now: int) -> None:
        found = (leases.get(one) for one in self.slices[number].leases)
        until = max((held_until(one) for one in found if one is not None), default=0)
        if until > now:
            if self.locked.get(number) != until:
                self.locked[number] = until
                heapq.heappush(self._ends, (until, number))
        elif self.locked.pop(number, None) is not None:
            self._push(self._free, number)
            if number in self.waiting:
                self._push(self._able, number)

    def put(self, number: int, one: Slice) -> None:
        """Another state of a partition; whether it is locked is known after `refresh`."""
        for lease in self.slices[number].leases:
            named = self._by_lease[lease]
            named.remove(number)
            if not named:
                del self._by_lease[lease]
        self.slices[number] = one
        self._name(number, one)
        # Unless a lease of it is found to be held, it is free, with another turn than before.
        self.locked[number] = 0
        self._touched.add(number)

    def _name(self, number: int, one: Slice) -> None:
        for lease in one.leases:
            self._by_lease.setdefault(lease, []).append(number)

    # --- How many ---------------------------------------------------------------------------

    def split(self) -> int:
        """Have one more partition, which nobody locks: the upper half of another; returns it."""
        number = len(self.slices)
        parent = parent_of(self.base, number)
        self.slices.append(Slice())
        self._push(self._free, number)
        self._place_anew(parent)
        return number

    def merge(self, joined: Slice) -> int:
        """Have one partition less: the last one joins the one that it was split from, as `joined`;
        returns that."""
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

    # --- What waits -------------------------------------------------------------------------

    def learn(self, upto: int, fresh: BitMap64) -> None:
        """From `scanned` on up to here these were never handed out, and wait."""
        self.scanned = upto
        self.fresh |= fresh
        self._place(fresh)

    def give_back(self, returned: BitMap64) -> None:
        """These were given back, and are ready."""
        known = self._returned
        if returned != known:
            self._drop(known - returned)
            self._place(returned - known)
            self._returned = returned.copy()

    def end(self, seqs: Iterable[int]) -> None:
        """These wait no longer."""
        gone = BitMap64(seqs)
        gone &= self.fresh | self._returned
        self.fresh -= gone
        self._returned -= gone
        self._drop(gone)

    def forget(self, scanned: int) -> None:
        """Nothing waits up to here."""
        self.scanned = scanned
        self.fresh.clear()
        self._returned.clear()
        self.waiting.clear()

    def first(self) -> int:
        """No message before this seq waits that was never handed out."""
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
        known = self.waiting.get(number)
        if known is not None:
            known.update(seqs)
            return
        self.waiting[number] = BitMap64(seqs)
        if number not in self.locked:
            self._push(self._able, number)

    def _drop(self, seqs: BitMap64) -> None:
        for seq in seqs:
            number = self.part_of(seq)
            known = self.waiting[number]
            known.discard(seq)
            if not known:
                del self.waiting[number]
