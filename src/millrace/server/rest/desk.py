"""Finding what an address names: queues and topics, remembered while they are there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace import limits
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.client.topic import Topic
from millrace.core.model import ShardId
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
        self._cursors: dict[tuple[ShardId, str], tuple[int, ...]] = {}
        self._listening: list[Callable[[str, str], None]] = []

    def listen(self, forget: Callable[[str, str], None]) -> None:
        """Have `forget` called with space and name of each queue or topic that is `changed`."""
        self._listening.append(forget)

    def changed(self, space: str, name: str) -> None:
        """Settings of a queue or topic were changed: what was seen of it is old."""
        for forget in self._listening:
            forget(space, name)

    def known(self, space: str, name: str) -> Queue | None:
        """The queue, if it was asked for lately; whether it is still there, its use tells."""
        return self._queues.get((space, name))

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

    def cursor_ids(self, at: tuple[ShardId, str]) -> tuple[int, ...] | None:
        """What a cursor of a queue, by its first shard and its name, was known by last."""
        return self._cursors.get(at)

    def note_cursor(self, at: tuple[ShardId, str], ids: tuple[int, ...]) -> None:
        """It is known by these now."""
        if at not in self._cursors and len(self._cursors) >= limits.DESK_CURSORS_MAX:
            self._cursors.pop(next(iter(self._cursors)))
        self._cursors[at] = ids
