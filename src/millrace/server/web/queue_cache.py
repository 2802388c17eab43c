"""A cache of queues and topics by name, validated by use."""

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


class QueueCache:
    """Caches queues and topics by space and name, with a limit of entries.

    A cached queue may be deleted, and made again under its name. The first refused call detects
    that: nothing was done, so that the call is repeated with the present queue.
    """

    def __init__(self, millrace: Millrace) -> None:
        self.millrace = millrace
        self._queues: dict[tuple[str, str], Queue] = {}
        self._topics: dict[tuple[str, str], Topic] = {}
        self._cursors: dict[tuple[ShardId, str], tuple[int, ...]] = {}
        self._listening: list[Callable[[str, str], None]] = []

    def listen(self, forget: Callable[[str, str], None]) -> None:
        """Register a callback for changes, with space and name of the queue or topic."""
        self._listening.append(forget)

    def changed(self, space: str, name: str) -> None:
        """Report changed settings of a queue or topic, so that listeners drop cached copies."""
        for forget in self._listening:
            forget(space, name)

    def known(self, space: str, name: str) -> Queue | None:
        """Return the cached queue, or None; using it shows if it still exists."""
        return self._queues.get((space, name))

    async def queue(self, space: str, name: str, use: Callable[[Queue], Awaitable[T]]) -> T:
        """Run `use` on the queue, and return its result.

        Raises:
            NotFound: the queue does not exist, or the object that `use` needs in it.
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
        """Run `use` on the topic, and return its result; see `queue`."""
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
        """Return the cached ids of a cursor, by the queue's first shard and the cursor's name."""
        return self._cursors.get(at)

    def note_cursor(self, at: tuple[ShardId, str], ids: tuple[int, ...]) -> None:
        """Cache the ids of a cursor."""
        if at not in self._cursors and len(self._cursors) >= limits.DESK_CURSORS_MAX:
            self._cursors.pop(next(iter(self._cursors)))
        self._cursors[at] = ids
