"""Connection cache of sinks: opened on first use, one per thread and process.

A sink is a value that is pickled and compared; its connection belongs to one thread of one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import local
from typing import Generic, TypeVar

Link = TypeVar("Link")
Whose = TypeVar("Whose")


class _Kept(Generic[Link]):
    """A connection that is closed with its last reference, when its thread has ended."""

    def __init__(self, link: Link, close: Callable[[Link], None]) -> None:
        self.link = link
        self._close = close
        self._pid = os.getpid()

    def __del__(self) -> None:
        if self._pid == os.getpid():
            self._close(self.link)


class Links(Generic[Whose, Link]):
    """The connections of all sinks of one kind."""

    def __init__(self, connect: Callable[[Whose], Link], close: Callable[[Link], None]) -> None:
        self._connect = connect
        self._close = close
        self._here = local()

    def get(self, whose: Whose) -> Link:
        """Return this thread's connection of a sink, opening it if necessary."""
        links = self._links()
        if whose not in links:
            links[whose] = _Kept(self._connect(whose), self._close)
        return links[whose].link

    def drop(self, whose: Whose) -> None:
        """Close this thread's connection of a sink, if it is open."""
        self._links().pop(whose, None)

    def _links(self) -> dict[Whose, _Kept[Link]]:
        if getattr(self._here, "pid", None) != os.getpid():
            # A forked process inherits its parent's connections, and must not use them.
            self._here.pid, self._here.links = os.getpid(), {}
        links: dict[Whose, _Kept[Link]] = self._here.links
        return links
