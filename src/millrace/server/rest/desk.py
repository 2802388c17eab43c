"""Finding what an address names: queues and topics, remembered while they are there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace import limits
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.client.topic import Topic
from millrace.errors import NotFound

T = TypeVar("T")


class Desk:
    """Queues and topics by space and name.

    A queue that was deleted, and perhaps made anew, is found out by the first call that is refused:
    nothing was done by then, so that the call is made again with the one that is there now.
    """

    def __init__(self, millrace: Millrace) -> None:
        self.millrace = millrace
        self._queues: dict[tuple[str, str], Queue] = {}
        self._topics: dict[tuple[str, str], Topic] = {}

    async def queue(self, space: str, name: str, use: Callable[[Queue], Awaitable[T]]) -> T:
        """What `use` comes to with the queue.

        Raises:
            NotFound: there is none of this name, or what `use` looked for in it.
        """
        at = (space, name)
        known = self._queues.get(at)
        if known is not None:
            try:
                return await use(known)
            except NotFound as error:
                if error.field != "queue":
                    raise
                self._queues.pop(at, None)
        found = await self.millrace.find(name, space=space)
        if len(self._queues) >= limits.DESK_QUEUES_MAX:
            self._queues.pop(next(iter(self._queues)))
        self._queues[at] = found
        return await use(found)

    async def topic(self, space: str, name: str, use: Callable[[Topic], Awaitable[T]]) -> T:
        """What `use` comes to with the topic; see `queue`."""
        at = (space, name)
        known = self._topics.get(at)
        if known is not None:
            try:
                return await use(known)
            except NotFound as error:
                if error.field != "topic":
                    raise
                self._topics.pop(at, None)
        found = await self.millrace.find_topic(name, space=space)
        if len(self._topics) >= limits.DESK_QUEUES_MAX:
            self._topics.pop(next(iter(self._topics)))
        self._topics[at] = found
        return await use(found)
