"""Waits for the forwarding of published messages to all queues of a topic, with their outcomes."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from millrace import limits
from millrace.core.cells import SubscriptionCell
from millrace.errors import MillraceError

ForwardOutcome = int | Literal["filtered", "forwarded", "later", "gone"]
"""Outcome of a message for one subscription: its seq in the queue; "filtered" by the subscription;
"forwarded" with a seq that is no longer known; "later" if the engine was closed first, so that the
next one forwards it; "gone" if the subscription ended before, or its queue did not exist or does
not accept the size."""

ForwardOutcomes = dict[str, list[ForwardOutcome]]
"""Outcomes of the messages, by subscription."""

RowPlaces = np.ndarray[tuple[int], np.dtype[np.int64]]


class ParcelResult(NamedTuple):
    """Result of forwarding one parcel."""

    subscription: int
    after: int
    upto: int
    first: int | None
    at: RowPlaces | None
    """Indexes of the rows that passed the filter; None: all rows."""
    places: tuple[int, ...] = ()
    """Seqs of these rows in the queue; empty: consecutive from `first` on."""
    is_gone: bool = False
    """True if the queue did not exist: the rows became dead letters or were dropped."""
    gone: tuple[int, ...] = ()
    """Indexes, among the rows that passed the filter, of rows that were too large for the queue."""

    def fate(self, seq: int) -> ForwardOutcome:
        """Return the outcome of one row of the parcel."""
        place = seq - self.after - 1
        if self.at is not None:
            rank = int(np.searchsorted(self.at, place))
            if rank == len(self.at) or self.at[rank] != place:
                return "filtered"
            place = rank
        before = bisect_left(self.gone, place)
        if self.is_gone or place in self.gone[before : before + 1]:
            return "gone"
        place -= before
        if self.places:
            return self.places[place] or "forwarded"
        return "forwarded" if self.first is None else self.first + place


class _ForwardWait:
    def __init__(self, first: int, count: int, names: Mapping[int, str]) -> None:
        self.first = first
        self.last = first + count - 1
        self.left = dict(names)
        self.found: dict[int, list[ForwardOutcome | None]] = {
            number: [None] * count for number in names
        }
        self.names = names
        self.future: asyncio.Future[ForwardOutcomes] = asyncio.get_running_loop().create_future()

    def note(self, result: ParcelResult) -> None:
        if result.subscription not in self.left:
            return
        fates = self.found[result.subscription]
        for seq in range(max(result.after + 1, self.first), min(result.upto, self.last) + 1):
            fates[seq - self.first] = result.fate(seq)

    def end(self, number: int, default: Literal["forwarded", "later", "gone"]) -> None:
        """Record the end of a subscription or of the wait for it."""
        del self.left[number]
        fates = self.found[number]
        fates[:] = [default if fate is None else fate for fate in fates]

    def is_over(self) -> bool:
        """Return True if all subscriptions are done, and resolve the future then."""
        if self.left:
            return self.future.done()
        if not self.future.done():
            self.future.set_result(
                {
                    self.names[number]: [fate for fate in fates if fate is not None]
                    for number, fates in self.found.items()
                }
            )
        return True


class ForwardWaiters:
    """Publishers that wait for one topic, and its latest results."""

    def __init__(self) -> None:
        self._results: deque[ParcelResult] = deque(maxlen=limits.FORWARD_RESULTS_MAX)
        self._waiting: list[_ForwardWait] = []

    def expect(
        self, first: int, count: int, subscriptions: Mapping[int, SubscriptionCell]
    ) -> asyncio.Future[ForwardOutcomes]:
        """Return a future of the outcomes of rows in all subscriptions that existed before them."""
        names = {n: cell.name for n, cell in subscriptions.items() if cell.since < first}
        wait = _ForwardWait(first, count, names)
        for result in self._results:
            wait.note(result)
        self._waiting.append(wait)
        return wait.future

    def note(self, result: ParcelResult) -> None:
        """Record the result of a parcel."""
        self._results.append(result)
        for wait in self._waiting:
            wait.note(result)

    def look(self, subscriptions: Mapping[int, SubscriptionCell]) -> None:
        """Resolve waits for rows that all subscriptions have passed; no parcel is in flight now."""
        if not self._waiting:
            return
        for wait in self._waiting:
            for number in list(wait.left):
                cell = subscriptions.get(number)
                if cell is None:
                    wait.end(number, "gone")
                elif cell.passed >= wait.last:
                    wait.end(number, "forwarded")
        self._waiting = [wait for wait in self._waiting if not wait.is_over()]

    def close(self) -> None:
        """Resolve all waits: the engine is closed and forwards no more."""
        for wait in self._waiting:
            for number in list(wait.left):
                wait.end(number, "later")
            wait.is_over()
        self._waiting.clear()

    def fail(self, error: MillraceError) -> None:
        """Fail all waits: after a failure of the engine the outcomes are unknown."""
        for wait in self._waiting:
            if not wait.future.done():
                wait.future.set_exception(error.again())
        self._waiting.clear()
