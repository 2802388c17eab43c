"""Further sources of a pipeline that are tables of the moment: the latest of each key.

Rule 1: what a span reads of them stays as it is while the span is made; then it is let go. Spark
does not say when it has read something, so that it is pinned here, and not where it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from millrace import limits, sync
from millrace.client.ticket import write_ticket
from millrace.errors import MillraceError
from millrace.spark.address import Address
from millrace.spark.given import HOME


class Lookups:
    """The tables of a run, each as of its newest span."""

    def __init__(self) -> None:
        self._pinned: dict[str, sync.Snapshot] = {}

    def now(self, name: str, options: Mapping[str, str]) -> dict[str, str]:
        """The options by which Spark reads the table as it is now; what the span before has read
        is let go."""
        home = {option: options[option] for option in HOME if option in options}
        before = self._pinned.pop(name, None)
        if before is not None:
            # If nobody answers, it goes when its time is over.
            with suppress(MillraceError):
                before.unpin()
        queue = Address.told(home).reach()
        found = queue.snapshot(seconds=limits.PIPELINE_PIN_SECONDS).__enter__()
        self._pinned[name] = found
        return {**options, "endingSnapshot": write_ticket(found._twin)}


def pin_seconds(every: float) -> float:
    """How long a table is pinned of which Spark's own queries read the latest with each batch, so
    that all that stand at a time leave room for others."""
    return min(max(every * limits.LOOKUP_PINS, limits.LOOKUP_PIN_SECONDS_MIN), 3600.0)
