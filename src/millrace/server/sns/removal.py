"""What is left of a subscription that has ended, and goes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from millrace.client.queue import Queue
from millrace.core.topic_cells import SubscriptionCell
from millrace.errors import NotFound
from millrace.server.aws.calls import Call
from millrace.server.sns.headers import GUEST, RAW, SUBSCRIPTION, is_endpoint


async def let_go(call: Call[Any], topic: str, cell: SubscriptionCell) -> None:
    """Take away what a queue knows of the topic, or the queue itself, if it was for an endpoint."""
    space, _, name = cell.target.partition("/")
    desk = call.aws.exchange.desk
    if is_endpoint(cell):
        await desk.millrace.delete_queue(name, space=space)
        return

    async def forget(queue: Queue) -> None:
        names = [f"{guest}{kind}{topic}" for guest in ("", GUEST) for kind in (RAW, SUBSCRIPTION)]
        await queue.configure(notes=dict.fromkeys(names, ""))

    with suppress(NotFound):
        await desk.queue(space, name, forget)
    call.aws.directory.forget(space, name)
