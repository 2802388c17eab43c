"""Rows that break a condition, on their way to a queue of dead letters."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.pipeline.declaration import DeclaredSink, Pipeline

_BAD = ":bad"

HEADER_PIPELINE = "millrace-pipeline"
HEADER_STEP = "millrace-step"
HEADER_BROKEN = "millrace-broken"
HEADER_QUEUE = "millrace-queue"
HEADER_SHARD = "millrace-shard"
HEADER_SEQ = "millrace-seq"
"""What a dead letter says of itself: which conditions it breaks, and where it came from."""


def bad_rows(step: str) -> str:
    """The name of the rows of a step that break a condition."""
    return f"{step}{_BAD}"


def step_of(view: str) -> str:
    """The step that makes a view."""
    return view.removesuffix(_BAD)


def is_bad(view: str) -> bool:
    """Whether it has the rows of a step that break a condition."""
    return view.endswith(_BAD)


def dead_letter_sinks(pipeline: Pipeline, home: dict[str, object]) -> Iterator[DeclaredSink]:
    """The sinks of dead letters, one for each step that has them; `home` is where the source is."""
    for step in pipeline.steps:
        if step.dead_letter:
            space, _, queue = step.dead_letter.rpartition("/")
            settings = {**home, "queue": f"{space or pipeline.source.space}/{queue}"}
            yield DeclaredSink(
                name=f"{step.name}.dead",
                rows=bad_rows(step.name),
                kind="queue",
                settings=settings,
            )
