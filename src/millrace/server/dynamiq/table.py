"""The table that the modules of this folder write their routes into, and what they share.

Rule 1: nothing behind a question mark is taken, and what is sent there is refused.
Rule 2: the queues are those whose delivery is "partitions": elsewhere a message has no id that it
could be deleted by. Such a queue of another kind is told apart before anything is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace.client.queue import Queue
from millrace.errors import Invalid
from millrace.server.rest.route import Ask, Nothing, Routes, read_query

T = TypeVar("T")

SPACE = "default"
"""Dynamiq knew no spaces."""

ROUTES = Routes("dynamiq", space=SPACE)

QUEUE = "/v1/queues/{queue}"
TOPIC = "/v1/topics/{topic}"


def refuse_query(ask: Ask) -> None:
    """See that nothing is asked for that is not looked at.

    Raises:
        Invalid: something is.
    """
    read_query(ask, Nothing)


def check_kind(queue: Queue) -> None:
    """See that the queue is one of this API.

    Raises:
        Invalid: it is not.
    """
    if not queue.shards.key:
        raise Invalid(
            f"queue {queue.name!r} has no partitions, so that its messages have no ids; use it "
            f"under /v1/spaces/{queue.space}/queues, or make another one",
            field="queue",
        )


async def with_queue(ask: Ask, use: Callable[[Queue], Awaitable[T]]) -> T:
    """What `use` comes to with the queue that the address names.

    Raises:
        NotFound: there is none.
        Invalid: it is of another kind.
    """

    async def checked(queue: Queue) -> T:
        if not queue.shards.key:
            # One of another kind that was deleted since may still be known by the name.
            queue = await ask.desk.millrace.find(queue.name, space=queue.space)
            check_kind(queue)
        return await use(queue)

    return await ask.queue(checked)
