"""Reports of unreadable rows to the commit loop, de-duplicated.

Any reader of rows may find them unreadable: a client, the checkpointer that seals them, the topic
forwarder. Each reports it here, and the first report submits a command that quarantines the queue.
Readers are refused once that is committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millrace.core.commands import Command, Quarantine
from millrace.core.delivery.quarantine import REPAIR
from millrace.core.model import ShardId
from millrace.engine.command_request import CommandRequest, ignore_result
from millrace.errors import Quarantined
from millrace.store.unreadable import Unreadable

_logger = logging.getLogger("millrace")


def quarantined_error(error: Unreadable) -> Quarantined:
    """Return the error for a reader that found unreadable rows."""
    return Quarantined(f"{error.message}; {REPAIR}", field="queue")


class QuarantineReports:
    """Reports of unreadable rows that are not committed yet."""

    def __init__(self, ask: Callable[[ShardId, Command], CommandRequest]) -> None:
        self._ask = ask
        self._open: dict[tuple[int, int], CommandRequest] = {}

    def take(self, error: Unreadable) -> tuple[CommandRequest, bool]:
        """Return the request that quarantines the rows, and True if it is new."""
        key = (error.shard, error.first)
        open_request = self._open.get(key)
        if open_request is not None:
            return open_request, False
        _logger.error("quarantine: %s", error.message)
        command = Quarantine(error.first, error.last, error.message)
        request = self._ask(ShardId(error.shard), command)
        self._open[key] = request
        request.future.add_done_callback(lambda _: self._open.pop(key, None))
        request.future.add_done_callback(ignore_result)
        return request, True


async def wait_until_committed(future: asyncio.Future[object]) -> None:
    """Wait until the report is committed or has failed."""
    await asyncio.wait([future])
