"""The headers of dead letters: where a letter came from, and what goes with it when it goes back.

A queue's own letters have headers that begin with `millrace-dead-`, which only the engine writes. A
pipeline is a client, and writes headers that any client may write: they are a proposal.

Rule 1: where a pipeline's letter says that it came from counts within the space of the queue that
it lies in. Whoever may publish there could otherwise have the redriver publish anywhere.
Rule 2: what tells of a letter's death does not go back with it.
"""

from __future__ import annotations

from millrace.core.bury import PREFIX
from millrace.core.model import Headers

PIPELINE = "millrace-pipeline"
STEP = "millrace-step"
SINK = "millrace-sink"
BROKEN = "millrace-broken"
QUEUE = "millrace-queue"
SHARD = "millrace-shard"
SEQ = "millrace-seq"
OP = "millrace-op"
"""What a letter of a pipeline says of itself: which conditions its row breaks, or that its key is
null, and the message that the row was made of. `millrace-op` is `delete` for a message without a
body, which a letter cannot be."""

OF_PIPELINES = (PIPELINE, STEP, SINK, BROKEN, QUEUE, SHARD, SEQ, OP)

DELETE = b"delete"


def source_of(headers: Headers, space: str | None = None) -> tuple[str, str] | None:
    """Return space and name of the queue that a dead letter comes from; the last word counts.

    Where the engine says nothing, a pipeline's word counts, if it names a queue of `space`.
    """
    told = _last(headers, f"{PREFIX}queue")
    if told is not None:
        return _place(told)
    told = _last(headers, QUEUE)
    if told is None:
        return None
    place = _place(told)
    return place if place[0] == space else None


def claimed_source(headers: Headers) -> tuple[str, str] | None:
    """Return what a pipeline's letter says, whatever space it names."""
    told = _last(headers, QUEUE)
    return None if told is None else _place(told)


def is_of_pipeline(headers: Headers) -> bool:
    """Whether a pipeline made the letter, and no queue has made a dead letter of it since."""
    return _last(headers, QUEUE) is not None and _last(headers, f"{PREFIX}queue") is None


def is_delete(headers: Headers) -> bool:
    """Whether the letter stands for a message without a body."""
    return is_of_pipeline(headers) and _last(headers, OP) == DELETE


def returning(headers: Headers) -> Headers:
    """Return the headers that go back with a letter."""
    told = OF_PIPELINES if is_of_pipeline(headers) else ()
    return tuple(pair for pair in headers if not pair[0].startswith(PREFIX) and pair[0] not in told)


def _last(headers: Headers, wanted: str) -> bytes | None:
    return next((value for name, value in reversed(headers) if name == wanted), None)


def _place(told: bytes) -> tuple[str, str]:
    space, _, queue = told.decode(errors="replace").partition("/")
    return space, queue
