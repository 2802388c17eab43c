"""How unreadable rows get known to their decider: once, however many readers find them.

Whoever reads rows may find them unreadable: a client, the keeper that seals them, the forwarder of
a topic. All of them report it here. The decider is asked to quarantine the queue; readers are
refused once that is committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millrace.core.commands import Command
from millrace.core.model import ShardId
from millrace.core.quarantine import REPAIR
from millrace.core.quarantine_commands import Quarantine
from millrace.engine.request import Request, ignore
from millrace.errors import Quarantined
from millrace.store.unreadable import Unreadable

_logger = logging.getLogger("millrace")


def refused(error: Unreadable) -> Quarantined:
    """What a reader is told who has found unreadable rows."""
    return Quarantined(f"{error.message}; {REPAIR}", field="queue")


class Reports:
    """Reports of unreadable rows that are not committed yet."""

    def __init__(self, ask: Callable[[ShardId, Command], Request]) -> None:
        self._ask = ask
        self._open: dict[tuple[int, int], Request] = {}

    def take(self, error: Unreadable) -> tuple[Request, bool]:
        """The request that quarantines the rows, and whether it is a new one."""
        key = (error.shard, error.first)
        known = self._open.get(key)
        if known is not None:
            return known, False
        _logger.error("quarantine: %s", error.message)
        command = Quarantine(error.first, error.last, error.message)
        request = self._ask(ShardId(error.shard), command)
        self._open[key] = request
        request.future.add_done_callback(lambda _: self._open.pop(key, None))
        request.future.add_done_callback(ignore)
        return request, True


async def committed(future: asyncio.Future[object]) -> None:
    """Wait until the report is committed, or nobody will know any more."""
    await asyncio.wait([future])
