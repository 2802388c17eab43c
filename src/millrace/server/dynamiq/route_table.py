"""The table of Dynamiq's routes, with shared checks of requests.

Rule 1: no route takes query parameters; a request with any is refused.
Rule 2: the queues are those with the delivery `partitions`, because only their messages have ids to
delete them by. A queue of another kind is refused before anything is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace.client.queue import Queue
from millrace.errors import Invalid
from millrace.server.web.route import (
    Nothing,
    RequestContext,
    Routes,
    read_query,
)

T = TypeVar("T")

SPACE = "default"
"""The one space of this API: Dynamiq has no spaces."""

ROUTES = Routes("dynamiq", space=SPACE)

QUEUE = "/v1/queues/{queue}"
TOPIC = "/v1/topics/{topic}"


def refuse_query(ask: RequestContext) -> None:
    """Check that the request has no query parameters.

    Raises:
        Invalid: it has one.
    """
    read_query(ask, Nothing)


def check_kind(queue: Queue) -> None:
    """Check that the queue has partitions, as this API requires.

    Raises:
        Invalid: it has none.
    """
    if not queue.shards.key:
        raise Invalid(
            f"queue {queue.name!r} has no partitions, so that its messages have no ids; use it "
            f"under /v1/spaces/{queue.space}/queues, or make another one",
            field="queue",
        )


async def with_queue(ask: RequestContext, use: Callable[[Queue], Awaitable[T]]) -> T:
    """Run `use` on the queue in the path, and return its result.

    Raises:
        NotFound: the queue does not exist.
        Invalid: the queue has no partitions.
    """

    async def checked(queue: Queue) -> T:
        if not queue.shards.key:
            # The cache may still have a deleted queue of another kind under this name.
            queue = await ask.desk.millrace.find(queue.name, space=queue.space)
            check_kind(queue)
        return await use(queue)

    return await ask.queue(checked)
