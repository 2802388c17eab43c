"""Who waits until what was published to a topic is in every queue, and what they are told."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from millrace import limits
from millrace.core.topic_cells import SubscriptionCell
from millrace.errors import MillraceError

Fate = int | Literal["filtered", "forwarded", "later", "gone"]
"""Of a message and a subscription: its seq in the queue; or it did not pass the filter; or it is in
the queue, and where is not known any more; or the engine was closed first, and the next one
forwards it; or the subscription ended before it was forwarded, or its queue was not there, or
takes none so large."""

Fates = dict[str, list[Fate]]
"""Subscription → what became of each message."""

Places = np.ndarray[tuple[int], np.dtype[np.int64]]


class Result(NamedTuple):
    """Where a parcel went."""

    subscription: int
    after: int
    upto: int
    first: int | None
    at: Places | None
    """Which of the rows passed the filter, counted from 0; None: all."""
    places: tuple[int, ...] = ()
    """Where those are, one by one; empty: one after the other from `first` on."""
    is_gone: bool = False
    """There was no queue: they are dead letters, or dropped."""
    gone: tuple[int, ...] = ()
    """As `is_gone`, of single rows that passed the filter, from 0: they were too large for the
    queue, and have no place."""

    def fate(self, seq: int) -> Fate:
        """What became of a row within it."""
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


class _Wait:
    def __init__(self, first: int, count: int, names: Mapping[int, str]) -> None:
        self.first = first
        self.last = first + count - 1
        self.left = dict(names)
        self.found: dict[int, list[Fate | None]] = {number: [None] * count for number in names}
        self.names = names
        self.future: asyncio.Future[Fates] = asyncio.get_running_loop().create_future()

    def note(self, result: Result) -> None:
        if result.subscription not in self.left:
            return
        fates = self.found[result.subscription]
        for seq in range(max(result.after + 1, self.first), min(result.upto, self.last) + 1):
            fates[seq - self.first] = result.fate(seq)

    def end(self, number: int, otherwise: Literal["forwarded", "later", "gone"]) -> None:
        """Nothing more will be heard of this subscription."""
        del self.left[number]
        fates = self.found[number]
        fates[:] = [otherwise if fate is None else fate for fate in fates]

    def is_over(self) -> bool:
        """Whether everyone was heard of; then who waits is told."""
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
    """Those who wait for one topic, and its newest results."""

    def __init__(self) -> None:
        self._results: deque[Result] = deque(maxlen=limits.FORWARD_RESULTS_MAX)
        self._waiting: list[_Wait] = []

    def expect(
        self, first: int, count: int, subscriptions: Mapping[int, SubscriptionCell]
    ) -> asyncio.Future[Fates]:
        """Hear of these rows, by every subscription that was there before them."""
        names = {n: cell.name for n, cell in subscriptions.items() if cell.since < first}
        wait = _Wait(first, count, names)
        for result in self._results:
            wait.note(result)
        self._waiting.append(wait)
        return wait.future

    def note(self, result: Result) -> None:
        """A parcel has arrived."""
        self._results.append(result)
        for wait in self._waiting:
            wait.note(result)

    def look(self, subscriptions: Mapping[int, SubscriptionCell]) -> None:
        """Tell those who need not wait any longer; nothing is on its way now."""
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
        """The engine ends, and forwards no more."""
        for wait in self._waiting:
            for number in list(wait.left):
                wait.end(number, "later")
            wait.is_over()
        self._waiting.clear()

    def fail(self, error: MillraceError) -> None:
        """The engine has failed, and nobody knows what became of anything."""
        for wait in self._waiting:
            if not wait.future.done():
                wait.future.set_exception(error.again())
        self._waiting.clear()
