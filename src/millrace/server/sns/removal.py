"""Cleanup after a subscription has ended."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from millrace.client.queue import Queue
from millrace.core.cells import SubscriptionCell
from millrace.errors import NotFound
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.topic_headers import (
    GUEST,
    RAW,
    SUBSCRIPTION,
    is_endpoint,
)
from millrace.server.sns.state import state_of


async def remove_links(call: AwsCall[Any], topic: str, cell: SubscriptionCell) -> None:
    """Remove a subscription's notes from its queue, or delete the hidden queue of an endpoint."""
    space, _, name = cell.target.partition("/")
    desk = state_of(call.aws).topics.desk
    if is_endpoint(cell):
        await desk.millrace.delete_queue(name, space=space)
        return

    async def forget(queue: Queue) -> None:
        names = [f"{guest}{kind}{topic}" for guest in ("", GUEST) for kind in (RAW, SUBSCRIPTION)]
        await queue.configure(notes=dict.fromkeys(names, ""))

    with suppress(NotFound):
        await desk.queue(space, name, forget)
    call.aws.directory.forget(space, name)
