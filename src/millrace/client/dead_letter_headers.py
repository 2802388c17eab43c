"""Headers of dead letters: the queue they came from, and the headers that survive a redrive.

Dead letters made by a queue have headers with the prefix `millrace-dead-`, which only the engine
writes. A pipeline is a client and writes headers that any client may write: they are a proposal.

Rule 1: the source that a pipeline's dead letter names is accepted only within the space of the
queue that holds the letter. Otherwise any publisher of that queue could make the redrive publish to
any queue.
Rule 2: headers about the failure are removed on the way back.
"""

from __future__ import annotations

from millrace.core.model import Headers
from millrace.core.transfer.dead_letter import PREFIX

PIPELINE = "millrace-pipeline"
STEP = "millrace-step"
SINK = "millrace-sink"
BROKEN = "millrace-broken"
QUEUE = "millrace-queue"
SHARD = "millrace-shard"
SEQ = "millrace-seq"
OP = "millrace-op"
"""Headers of a pipeline's dead letter: the conditions that its row violates, or that its key is
null, and the message that the row was made of. `millrace-op` is `delete` for a message without a
body, since a dead letter has one."""

OF_PIPELINES = (PIPELINE, STEP, SINK, BROKEN, QUEUE, SHARD, SEQ, OP)

DELETE = b"delete"


def source_of(headers: Headers, space: str | None = None) -> tuple[str, str] | None:
    """Return space and name of the queue that a dead letter came from, by its last failure.

    Without headers of the engine, the queue named by a pipeline counts if it is in `space`.
    """
    source = _last(headers, f"{PREFIX}queue")
    if source is not None:
        return _place(source)
    source = _last(headers, QUEUE)
    if source is None:
        return None
    place = _place(source)
    return place if place[0] == space else None


def claimed_source(headers: Headers) -> tuple[str, str] | None:
    """Return the queue that a pipeline's dead letter names, in any space."""
    source = _last(headers, QUEUE)
    return None if source is None else _place(source)


def is_of_pipeline(headers: Headers) -> bool:
    """Return True if a pipeline made the dead letter, and no queue made it one again since."""
    return _last(headers, QUEUE) is not None and _last(headers, f"{PREFIX}queue") is None


def is_delete(headers: Headers) -> bool:
    """Return True if the dead letter stands for a message without a body."""
    return is_of_pipeline(headers) and _last(headers, OP) == DELETE


def returning(headers: Headers) -> Headers:
    """Return the headers that a message keeps on its way back."""
    removed = OF_PIPELINES if is_of_pipeline(headers) else ()
    return tuple(
        pair for pair in headers if not pair[0].startswith(PREFIX) and pair[0] not in removed
    )


def _last(headers: Headers, wanted: str) -> bytes | None:
    return next((value for name, value in reversed(headers) if name == wanted), None)


def _place(source: bytes) -> tuple[str, str]:
    space, _, queue = source.decode(errors="replace").partition("/")
    return space, queue
