"""What users have made is counted anew when a server starts.

Who has made a queue, a topic, a cursor or a subscription is written down before it is made, and
forgotten after it has gone: a crash in between, or a full disk, leaves one that counts and is not
there. What is there and was written down by nobody is nobody's: it was made by an earlier version,
by the settings, or by whoever may open the folder.
"""

from __future__ import annotations

import logging

from millrace.client.engine import Engine
from millrace.core.model import Kind as Cells
from millrace.core.model import ShardId
from millrace.errors import MillraceError
from millrace.server.book import Book
from millrace.server.record import TOPIC, Kind

_logger = logging.getLogger("millrace.server")


async def recount(engine: Engine, book: Book) -> int:
    """Forget what counts and is not there; returns how much that was.

    What cannot be looked at, or written down, counts on until the next start.
    """
    there = There(engine)
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


class There:
    """What there is; each queue and topic is asked once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inside: dict[tuple[Kind, str], frozenset[str]] = {}

    async def has(self, kind: Kind, name: str) -> bool:
        """Whether something is there that was noted as made."""
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
