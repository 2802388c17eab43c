"""What was asked for lately, taken for a moment as it was last seen.

Rule 1: AWS promises that a change is seen within a minute; here it is seen after
`AWS_KNOWN_SECONDS`, and at once by the process that made it (`forget`).
Rule 2: what is used again and again is looked at before its time is over, by one caller alone.
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


class Lately(ABC, Generic[K]):
    """Queues or topics, by space and name."""

    kind = ""
    """The field of a `NotFound` that says that it is gone."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[tuple[str, str], tuple[K, float]] = {}
        self._looks: dict[tuple[str, str], object] = {}
        """The newest look at each that is under way."""

    @abstractmethod
    async def read(self, space: str, name: str) -> K:
        """It, as it is now.

        Raises:
            NotFound: there is none of this name.
        """

    def known(self, space: str, name: str) -> K | None:
        """It, if it was seen a moment ago; None: look at it."""
        found = self._known.get((space, name))
        if found is None:
            return None
        seconds = self._now() - found[1]
        if seconds <= limits.AWS_KNOWN_AGAIN_SECONDS:
            return found[0]
        is_looked_at = (space, name) in self._looks
        return found[0] if is_looked_at and seconds <= limits.AWS_KNOWN_SECONDS else None

    async def use(self, space: str, name: str, use: Callable[[K], Awaitable[T]]) -> T:
        """What `use` comes to with it. One that was deleted, and perhaps made anew, is found out by
        the first call that is refused: nothing was done by then.

        Raises:
            NotFound: there is none of this name, or what `use` looked for in it.
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
        """It, as it is now, remembered; raises as `read`."""
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
            # It was changed meanwhile, or is being looked at anew.
            return found
        self._known.pop(at, None)
        if len(self._known) >= limits.AWS_KNOWN_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[at] = found, began
        return found

    def forget(self, space: str, name: str) -> None:
        """Something of it was changed."""
        self._known.pop((space, name), None)
        self._looks.pop((space, name), None)


def tags_of(notes: dict[str, str], prefix: str) -> dict[str, str]:
    """The tags among notes; before each value stands a sign, for a note cannot be empty."""
    return {
        name.removeprefix(prefix): text[1:]
        for name, text in notes.items()
        if name.startswith(prefix)
    }
