"""Counters of one process that serves HTTP: of one front end of several, or of the only one.

A request for metrics at any front end returns those of all of them. Each has a label of its own, so
that a restart of one is seen as a counter reset.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import msgspec

from millrace import limits
from millrace.decoding import decode_json
from millrace.instruments import SECONDS, Histogram, HistogramSnapshot

Name = tuple[str, str]
"""A queue: its space and its name."""

_NOTHING = (0, 0)


class LeaseCounters:
    """Counts by queue how many messages lease calls asked for and how many they received.

    The number of queues is bounded: the least recently used one is evicted and begins again at 0.
    """

    def __init__(self, queues_max: int = limits.HANDED_QUEUES_MAX) -> None:
        self._queues_max = queues_max
        self._counts: dict[Name, tuple[int, int]] = {}
        """Least recently used first."""

    def note(self, space: str, queue: str, asked: int, given: int) -> None:
        """Count an answered lease call."""
        at = (space, queue)
        before = self._counts.pop(at, _NOTHING)
        if before is _NOTHING and len(self._counts) >= self._queues_max:
            del self._counts[next(iter(self._counts))]
        self._counts[at] = (before[0] + asked, before[1] + given)

    def of(self, space: str, queue: str) -> tuple[int, int]:
        """Return how many messages were asked for of a queue, and how many were delivered."""
        return self._counts.get((space, queue), _NOTHING)

    def keep(self, there: Set[Name]) -> None:
        """Drop the counts of queues that no longer exist."""
        for at in [at for at in self._counts if at not in there]:
            del self._counts[at]

    def counts(self) -> tuple[tuple[str, str, int, int], ...]:
        """Return space, queue, messages asked for and messages delivered, sorted by queue."""
        return tuple((*at, *found) for at, found in sorted(self._counts.items()))


class ProcessCounters(msgspec.Struct, frozen=True, array_like=True):
    """Counters of one process at one moment."""

    frontend: int | None = None
    """Number of the front end, if there are several."""
    is_there: bool = True
    """False if the process did not answer; all other counts are then unknown."""
    connections: int = 0
    requests: tuple[tuple[str, str, int, int], ...] = ()
    """Method, route, status, count."""
    seconds: tuple[tuple[str, HistogramSnapshot], ...] = ()
    """Histogram of seconds by route."""
    handed: tuple[tuple[str, str, int, int], ...] = ()
    """Space, queue, messages asked for, messages delivered."""

    @property
    def labels(self) -> dict[str, str]:
        """Labels that separate its samples from those of other processes."""
        return {} if self.frontend is None else {"frontend": str(self.frontend)}


class RequestCounters:
    """Counts requests and measures their time, by route."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[str, Histogram] = {}

    def note(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count an answered request; `seconds` is None for requests that wait on purpose (long
        polls)."""
        at = (method, route, status)
        self._counts[at] = self._counts.get(at, 0) + 1
        if seconds is not None:
            found = self._seconds.get(route)
            if found is None:
                found = self._seconds[route] = Histogram(SECONDS)
            found.add(seconds)

    def counted(
        self, handed: LeaseCounters, connections: int, frontend: int | None = None
    ) -> ProcessCounters:
        """Return the counts at this moment."""
        return ProcessCounters(
            frontend,
            connections=connections,
            requests=tuple((*at, count) for at, count in sorted(self._counts.items())),
            seconds=tuple((at, found.spread()) for at, found in sorted(self._seconds.items())),
            handed=handed.counts(),
        )


def among(counted: ProcessCounters, there: Set[Name]) -> ProcessCounters:
    """Return a copy with the existing queues alone, at most `METRICS_QUEUES_MAX` of them."""
    found = [one for one in counted.handed if one[:2] in there][: limits.METRICS_QUEUES_MAX]
    return msgspec.structs.replace(counted, handed=tuple(found))


def watched(counted: ProcessCounters, may: Callable[[str, str], bool]) -> ProcessCounters:
    """Return a copy without the queues that `may(space, name)` refuses."""
    found = tuple(one for one in counted.handed if may(one[0], one[1]))
    return msgspec.structs.replace(counted, handed=found)


def together(parts: list[ProcessCounters]) -> LeaseCounters:
    """Return the sum of the lease counts of all processes."""
    found = LeaseCounters(limits.HANDED_QUEUES_MAX * len(parts))
    for part in parts:
        for space, queue, asked, given in part.handed:
            found.note(space, queue, asked, given)
    return found


def encode(counted: ProcessCounters) -> str:
    """Encode counters as one line of text."""
    return msgspec.json.encode(counted).decode()


def decode(text: str | bytes, frontend: int | None = None) -> ProcessCounters:
    """Decode the counters that another process has written. If the text is invalid, the result has
    `is_there=False` and the number of the front end, if given."""
    try:
        return decode_json(text, ProcessCounters)
    except msgspec.MsgspecError:
        return ProcessCounters(frontend, is_there=False)
