"""Migrates queues of earlier versions to today's settings when the server starts.

Earlier versions created FIFO queues with `group_blocking` `lease`, so that one message of a batch
that was released or extended kept its whole group back (ADR 0074), and stored MaximumMessageSize
only as a note, so that topics forwarded larger messages (ADR 0078).
"""

from __future__ import annotations

import asyncio
import logging

from millrace import limits
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.client.settings import QueueSettings
from millrace.core.spec import QueueSpec
from millrace.errors import Refused, Retry
from millrace.server.aws.queue_info import PREFIX, SALT, SIZE

_logger = logging.getLogger("millrace.server")


async def bring_up(millrace: Millrace) -> int:
    """Migrate the settings of all queues that SQS created.

    FIFO queues get `group_blocking` `message`; queues with a MaximumMessageSize get it as limit, so
    that topics forward no larger messages.

    Returns the number of queues with outdated settings: 0 after the first start.
    """
    outdated: list[tuple[Queue, QueueSettings]] = []
    for space in await millrace.spaces():
        for name in await millrace.queues(space=space):
            queue = await millrace.find(name, space=space)
            wanted = _wanted(name, await queue.spec())
            if wanted:
                outdated.append((queue, wanted))
    # Concurrent changes share a commit.
    for at in range(0, len(outdated), limits.SQS_UPGRADED_TOGETHER):
        some = outdated[at : at + limits.SQS_UPGRADED_TOGETHER]
        await asyncio.gather(*(_change(queue, wanted) for queue, wanted in some))
    return len(outdated)


async def _change(queue: Queue, wanted: QueueSettings) -> None:
    try:
        await queue.configure(**wanted)
    except (Refused, Retry) as error:
        # The disk may be full: the queue keeps the old settings until the next start.
        _logger.warning("%s/%s keeps its older settings: %s", queue.space, queue.name, error)


def _wanted(name: str, spec: QueueSpec) -> QueueSettings:
    """Return the settings that a queue lacks; none if SQS did not create it (it has no salt)."""
    notes, wanted = dict(spec.notes), QueueSettings()
    if SALT not in notes:
        return wanted
    if name.endswith(".fifo") and spec.blocking == "lease":
        wanted["group_blocking"] = "message"
    size = notes.get(PREFIX + SIZE, "")
    # Other APIs can write this note without validation.
    is_number = size.isascii() and size.isdigit() and len(size) < 10
    if is_number and not spec.message_bytes_max:
        most = int(size)
        if limits.SQS_MESSAGE_BYTES_MIN <= most <= limits.SQS_MESSAGE_BYTES_MAX:
            wanted["message_bytes_max"] = most
    return wanted
