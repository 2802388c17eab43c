"""A TTL cache of queue and topic metadata with refresh before expiry.

Rule 1: AWS promises that a change is visible within a minute; here it is after `AWS_KNOWN_SECONDS`,
and at once in the process that made it (`forget`).
Rule 2: an entry in use is refreshed before it expires, by a single caller.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from millrace import limits
from millrace.errors import NotFound

K = TypeVar("K")
T = TypeVar("T")


class RefreshingCache(ABC, Generic[K]):
    """Caches metadata by space and name."""

    kind = ""
    """The `field` of a `NotFound` that means that the cached object no longer exists."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[tuple[str, str], tuple[K, float]] = {}
        self._looks: dict[tuple[str, str], object] = {}
        """The newest running refresh of each entry."""

    @abstractmethod
    async def read(self, space: str, name: str) -> K:
        """Read the current metadata.

        Raises:
            NotFound: nothing has this name.
        """

    def known(self, space: str, name: str) -> K | None:
        """Return the cached entry, or None if it is missing or due for a refresh."""
        found = self._known.get((space, name))
        if found is None:
            return None
        seconds = self._now() - found[1]
        if seconds <= limits.AWS_KNOWN_AGAIN_SECONDS:
            return found[0]
        is_looked_at = (space, name) in self._looks
        return found[0] if is_looked_at and seconds <= limits.AWS_KNOWN_SECONDS else None

    async def use(self, space: str, name: str, use: Callable[[K], Awaitable[T]]) -> T:
        """Run `use` with cached metadata, and once more with current metadata if it was stale.

        A stale entry is detected by the refusal of a call, which has changed nothing: repeating it
        is safe.

        Raises:
            NotFound: nothing has this name, or `use` has not found something else.
        """
        known = self.known(space, name)
        if known is not None:
            try:
                return await use(known)
            except NotFound as error:
                if error.field != self.kind:
                    raise
                self.forget(space, name)
        return await use(await self.look(space, name))

    async def look(self, space: str, name: str) -> K:
        """Read the current metadata and cache it, unless a newer refresh or change overtook it.

        Raises:
            NotFound: nothing has this name.
        """
        at = (space, name)
        mark = self._looks[at] = object()
        began = self._now()
        try:
            found = await self.read(space, name)
        except NotFound:
            if self._looks.get(at) is mark:
                self._known.pop(at, None)
            raise
        finally:
            is_newest = self._looks.get(at) is mark
            if is_newest:
                del self._looks[at]
        if not is_newest:
            # A change or a newer refresh overtook this one.
            return found
        self._known.pop(at, None)
        if len(self._known) >= limits.AWS_KNOWN_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[at] = found, began
        return found

    def forget(self, space: str, name: str) -> None:
        """Drop the entry after a change."""
        self._known.pop((space, name), None)
        self._looks.pop((space, name), None)


def tags_of(notes: dict[str, str], prefix: str) -> dict[str, str]:
    """Return the tags in notes; a sign precedes each value, because a note cannot be empty."""
    return {
        name.removeprefix(prefix): text[1:]
        for name, text in notes.items()
        if name.startswith(prefix)
    }
