"""Dead letters keep the ids of the messages that they were, as in SQS.

An id follows from where a message was sent to, which the headers of a dead letter tell. Where that
queue is gone, or another one has its name, the letter has an id of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.core.bury import PREFIX as DEAD_PREFIX
from millrace.core.model import Headers
from millrace.errors import NotFound
from millrace.server.aws.known import Directory, Known

_QUEUE, _SEQ = f"{DEAD_PREFIX}queue", f"{DEAD_PREFIX}seq"


def origin_of(headers: Headers) -> tuple[str, str, int] | None:
    """Space and name of the queue that a dead letter was in, and its seq there."""
    told = dict(headers)
    queue = told.get(_QUEUE)
    if queue is None:
        return None
    space, _, name = queue.decode("utf-8", "replace").partition("/")
    seq = told.get(_SEQ, b"")
    if not (space and name and seq.isdigit() and len(seq) < 20):
        return None
    return space, name, int(seq)


def unknown_origins(directory: Directory, letters: Iterable[Headers]) -> set[tuple[str, str]]:
    """The queues that messages were in and that were not looked at lately."""
    origins = [origin_of(headers) for headers in letters if headers]
    places = {origin[:2] for origin in origins if origin is not None}
    return {place for place in places if directory.known(*place) is None}


async def learn(directory: Directory, places: Iterable[tuple[str, str]]) -> None:
    """Look at queues, as far as they are there."""
    for place in places:
        try:
            await directory.look(*place)
        except NotFound:
            continue


def message_id(directory: Directory, known: Known, seq: int, headers: Headers) -> str:
    """By which SQS knows a message."""
    origin = origin_of(headers) if headers else None
    source = directory.known(*origin[:2]) if origin is not None else None
    if origin is None or source is None:
        return known.message_id(seq)
    return source.message_id(origin[2])
