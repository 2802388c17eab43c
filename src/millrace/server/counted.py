"""What a process that speaks HTTP has counted: one of several, or the only one.

Whichever of several front ends is asked, all of them are told of: each by a label of its own, so
that one that was started anew is seen as what it is, a counter that begins again.
"""

from __future__ import annotations

import msgspec

from millrace import limits
from millrace.meter import SECONDS, Histogram, Spread


class Handed:
    """What lease calls asked for, and what they were given, by queue."""

    def __init__(self) -> None:
        self.asked: dict[tuple[str, str], int] = {}
        self.given: dict[tuple[str, str], int] = {}

    def note(self, space: str, queue: str, asked: int, given: int) -> None:
        """A lease call was answered."""
        at = (space, queue)
        self.asked[at] = self.asked.get(at, 0) + asked
        self.given[at] = self.given.get(at, 0) + given


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
        """As it is now; of many queues as many as are told one by one."""
        given = sorted(handed.given.items())[: limits.METRICS_QUEUES_MAX]
        return Counts(
            frontend,
            connections=connections,
            requests=tuple((*at, count) for at, count in sorted(self._counts.items())),
            seconds=tuple((at, found.spread()) for at, found in sorted(self._seconds.items())),
            handed=tuple((*at, handed.asked.get(at, 0), count) for at, count in given),
        )


def together(parts: list[Counts]) -> Handed:
    """What all of them have handed out."""
    found = Handed()
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
        return msgspec.json.decode(text, type=Counts)
    except msgspec.MsgspecError:
        return Counts(frontend, is_there=False)
