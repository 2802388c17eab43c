"""Standard queues that become fair: from the first message with a group on (ADR 0058).

Where so much waits that this cannot be done at once, or messages are delayed, it is tried again
later, and groups have no effect until then; nobody who sends is refused for it.
"""

from __future__ import annotations

from millrace.errors import Refused, Retry
from millrace.server.aws.known import Directory, Known


def is_due(directory: Directory, known: Known) -> bool:
    """Whether a queue is to become fair before a message with a group is published."""
    spec = known.spec
    if known.is_fifo or spec.order != "none" or spec.keyed or spec.retention != "work":
        return False
    queue = known.queue
    return not spec.is_partitioned and directory.is_fair_due(queue.space, queue.name)


async def become_fair(directory: Directory, known: Known) -> None:
    """Have a queue hand out its messages by groups, if that can be done now."""
    queue = known.queue
    directory.tried_fair(queue.space, queue.name)
    try:
        await queue.configure(order="fair")
    except (Refused, Retry):
        return
    directory.forget(queue.space, queue.name)
