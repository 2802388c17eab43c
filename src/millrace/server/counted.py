"""What a process that speaks HTTP has counted: one of several, or the only one.

Whichever of several front ends is asked, all of them are told of: each by a label of its own, so
that one that was started anew is seen as what it is, a counter that begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import msgspec

from millrace import limits
from millrace.decoding import decode_json
from millrace.meter import SECONDS, Histogram, Spread

Name = tuple[str, str]
"""A queue, by its space and its name."""

_NOTHING = (0, 0)


class Handed:
    """What lease calls asked for, and what they were given, by queue.

    Of so many queues at most: the one that was quiet for the longest is forgotten, and begins anew.
    """

    def __init__(self, queues_max: int = limits.HANDED_QUEUES_MAX) -> None:
        self._queues_max = queues_max
        self._counts: dict[Name, tuple[int, int]] = {}
        """In the order of their last calls."""

    def note(self, space: str, queue: str, asked: int, given: int) -> None:
        """A lease call was answered."""
        at = (space, queue)
        before = self._counts.pop(at, _NOTHING)
        if before is _NOTHING and len(self._counts) >= self._queues_max:
            del self._counts[next(iter(self._counts))]
        self._counts[at] = (before[0] + asked, before[1] + given)

    def of(self, space: str, queue: str) -> tuple[int, int]:
        """How many messages were asked for of a queue, and how many given."""
        return self._counts.get((space, queue), _NOTHING)

    def keep(self, there: Set[Name]) -> None:
        """Forget the queues that are not there any more."""
        for at in [at for at in self._counts if at not in there]:
            del self._counts[at]

    def counts(self) -> tuple[tuple[str, str, int, int], ...]:
        """Space, queue, how many messages were asked for, and how many given; in order."""
        return tuple((*at, *found) for at, found in sorted(self._counts.items()))


class Counts(msgspec.Struct, frozen=True, array_like=True):
    """What one process has counted, at a moment."""

    frontend: int | None = None
    """Which one of several it is."""
    is_there: bool = True
    """It has answered; else nothing is known of it now."""
    connections: int = 0
    requests: tuple[tuple[str, str, int, int], ...] = ()
    """Method, route, status, and how many."""
    seconds: tuple[tuple[str, Spread], ...] = ()
    """By route."""
    handed: tuple[tuple[str, str, int, int], ...] = ()
    """Space, queue, how many messages were asked for, and how many given."""

    @property
    def labels(self) -> dict[str, str]:
        """By which its samples are told from those of others."""
        return {} if self.frontend is None else {"frontend": str(self.frontend)}


class Traffic:
    """The requests of a server, counted by route."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[str, Histogram] = {}

    def note(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """A request was answered; `seconds` is None where waiting was what it asked for."""
        at = (method, route, status)
        self._counts[at] = self._counts.get(at, 0) + 1
        if seconds is not None:
            found = self._seconds.get(route)
            if found is None:
                found = self._seconds[route] = Histogram(SECONDS)
            found.add(seconds)

    def counted(self, handed: Handed, connections: int, frontend: int | None = None) -> Counts:
        """As it is now."""
        return Counts(
            frontend,
            connections=connections,
            requests=tuple((*at, count) for at, count in sorted(self._counts.items())),
            seconds=tuple((at, found.spread()) for at, found in sorted(self._seconds.items())),
            handed=handed.counts(),
        )


def among(counted: Counts, there: Set[Name]) -> Counts:
    """The same, of queues that are there; of many, as many as are told one by one."""
    found = [one for one in counted.handed if one[:2] in there][: limits.METRICS_QUEUES_MAX]
    return msgspec.structs.replace(counted, handed=tuple(found))


def watched(counted: Counts, may: Callable[[str, str], bool]) -> Counts:
    """The same, of queues that someone may watch, by space and name."""
    found = tuple(one for one in counted.handed if may(one[0], one[1]))
    return msgspec.structs.replace(counted, handed=found)


def together(parts: list[Counts]) -> Handed:
    """What all of them have handed out."""
    found = Handed(limits.HANDED_QUEUES_MAX * len(parts))
    for part in parts:
        for space, queue, asked, given in part.handed:
            found.note(space, queue, asked, given)
    return found


def encode(counted: Counts) -> str:
    """As text of one line."""
    return msgspec.json.encode(counted).decode()


def decode(text: str | bytes, frontend: int | None = None) -> Counts:
    """What another process has written; of one that says something else, nothing is known but
    which one it is, if that is."""
    try:
        return decode_json(text, Counts)
    except msgspec.MsgspecError:
        return Counts(frontend, is_there=False)
