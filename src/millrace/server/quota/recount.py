"""Recount, at the start of a server, of the objects that users have created.

The creator of a queue, topic, cursor or subscription is recorded before the object is created, and
the record is removed after the object is deleted. A crash in between, or a full disk, leaves a
record that counts although its object does not exist. Objects without a record count for nobody:
they were created by an earlier version, by the settings, or by a process with access to the folder.
"""

from __future__ import annotations

import logging

from millrace.client.engine import Engine
from millrace.core.cells import Kind as Cells
from millrace.core.model import ShardId
from millrace.errors import MillraceError
from millrace.server.auth.records import TOPIC, Kind
from millrace.server.auth.store import UserStore

_logger = logging.getLogger("millrace.server")


async def recount(engine: Engine, book: UserStore) -> int:
    """Remove the records of objects that do not exist, and return their number.

    If the objects cannot be read, or the change cannot be written, the records count until the next
    start.
    """
    there = ObjectLookup(engine)
    gone: list[tuple[Kind, str]] = []
    try:
        for kind, name in book.made:
            if not await there.has(kind, name):
                gone.append((kind, name))
        await book.forget_made(gone)
    except MillraceError as error:
        _logger.warning("what users have made could not be counted: %s", error)
        return 0
    return len(gone)


class ObjectLookup:
    """Checks which recorded objects exist; reads each queue and topic once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inside: dict[tuple[Kind, str], frozenset[str]] = {}

    async def has(self, kind: Kind, name: str) -> bool:
        """Return whether a recorded object exists."""
        space, _, rest = name.partition("/")
        if kind == "queues" and rest.startswith(TOPIC):
            return await self._engine.find_topic(space, rest.removeprefix(TOPIC)) is not None
        if kind == "queues":
            return await self._engine.find_queue(space, rest) is not None
        within, _, last = rest.partition("/")
        at = (kind, f"{space}/{within}")
        if at not in self._inside:
            self._inside[at] = await self._names(kind, space, within)
        return last in self._inside[at]

    async def _names(self, kind: Kind, space: str, within: str) -> frozenset[str]:
        if kind == "subscriptions":
            topic = await self._engine.find_topic(space, within)
            if topic is None:
                return frozenset()
            return frozenset(
                cell.name for cell in (await self._engine.subscriptions(topic)).values()
            )
        queue = await self._engine.find_queue(space, within)
        if queue is None:
            return frozenset()
        return frozenset(await self._engine.cells(ShardId(queue.shards[0]), Cells.CURSOR))
