"""Brings FIFO queues that earlier versions made up to today's settings when the server starts.

Earlier versions made them with `group_blocking` `lease`, so that one message of a batch that was
released or extended kept its whole group back (ADR 0074).
"""

from __future__ import annotations

import asyncio
import logging

from millrace import limits
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.core.spec import QueueSpec
from millrace.errors import Refused, Retry
from millrace.server.aws.known import SALT

_logger = logging.getLogger("millrace.server")


async def block_by_message(millrace: Millrace) -> int:
    """Have every FIFO queue of SQS block its message groups by message.

    Returns the number of queues that had another rule: none after the first start.
    """
    outdated: list[Queue] = []
    for space in await millrace.spaces():
        for name in await millrace.queues(space=space):
            if name.endswith(".fifo"):
                queue = await millrace.find(name, space=space)
                if _is_outdated(await queue.spec()):
                    outdated.append(queue)
    # Changes that are asked for together commit together.
    for at in range(0, len(outdated), limits.SQS_UPGRADED_TOGETHER):
        some = outdated[at : at + limits.SQS_UPGRADED_TOGETHER]
        await asyncio.gather(*map(_change, some))
    return len(outdated)


async def _change(queue: Queue) -> None:
    try:
        await queue.configure(group_blocking="message")
    except (Refused, Retry) as error:
        # The disk may be full: the queue keeps the old rule until the next start.
        _logger.warning("%s/%s still blocks groups by lease: %s", queue.space, queue.name, error)


def _is_outdated(spec: QueueSpec) -> bool:
    """Return whether SQS made the queue, which its salt tells, with the rule of native queues."""
    return spec.blocking == "lease" and SALT in dict(spec.notes)
