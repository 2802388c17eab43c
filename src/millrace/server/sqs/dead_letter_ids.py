"""Message ids of dead letters, which keep the id of the original message, as in SQS.

An id is derived from the queue that the message was sent to, which the headers of a dead letter
name. If that queue was deleted or replaced by another of the same name, the dead letter gets an id
of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.core.model import Headers
from millrace.core.transfer.dead_letter import PREFIX as DEAD_PREFIX
from millrace.errors import NotFound
from millrace.server.aws.queue_info import QueueDirectory, QueueInfo

_QUEUE, _SEQ = f"{DEAD_PREFIX}queue", f"{DEAD_PREFIX}seq"


def origin_of(headers: Headers) -> tuple[str, str, int] | None:
    """Return space and name of a dead letter's source queue and its seq there, or None."""
    told = dict(headers)
    queue = told.get(_QUEUE)
    if queue is None:
        return None
    space, _, name = queue.decode("utf-8", "replace").partition("/")
    seq = told.get(_SEQ, b"")
    if not (space and name and seq.isdigit() and len(seq) < 20):
        return None
    return space, name, int(seq)


def unknown_origins(directory: QueueDirectory, letters: Iterable[Headers]) -> set[tuple[str, str]]:
    """Return the source queues of dead letters whose metadata is not cached."""
    origins = [origin_of(headers) for headers in letters if headers]
    places = {origin[:2] for origin in origins if origin is not None}
    return {place for place in places if directory.known(*place) is None}


async def learn(directory: QueueDirectory, places: Iterable[tuple[str, str]]) -> None:
    """Load the metadata of queues into the cache; missing queues are ignored."""
    for place in places:
        try:
            await directory.look(*place)
        except NotFound:
            continue


def message_id(directory: QueueDirectory, known: QueueInfo, seq: int, headers: Headers) -> str:
    """Return the SQS message id of a message."""
    origin = origin_of(headers) if headers else None
    source = directory.known(*origin[:2]) if origin is not None else None
    if origin is None or source is None:
        return known.message_id(seq)
    return source.message_id(origin[2])
