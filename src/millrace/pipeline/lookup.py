"""Lookup tables: further sources of a pipeline with the latest row of each key.

Rule 1: the tables stay unchanged while a span is processed; then their pins are removed. Spark does
not report when it has finished reading, so that the pin is held here and not in the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from millrace import limits, sync
from millrace.client.snapshot_token import write_snapshot_token
from millrace.errors import MillraceError
from millrace.spark.address import Address
from millrace.spark.raw_options import HOME


class Lookups:
    """The lookup tables of a run, each pinned for the newest span."""

    def __init__(self) -> None:
        self._pinned: dict[str, sync.Snapshot] = {}

    def now(self, name: str, options: Mapping[str, str]) -> dict[str, str]:
        """Return the Spark options that read the table as of now, and remove the pin of the
        previous span.
        """
        home = {option: options[option] for option in HOME if option in options}
        before = self._pinned.pop(name, None)
        if before is not None:
            # If the server does not respond, the pin expires.
            with suppress(MillraceError):
                before.unpin()
        queue = Address.told(home).reach()
        found = queue.snapshot(seconds=limits.PIPELINE_PIN_SECONDS).__enter__()
        self._pinned[name] = found
        return {**options, "endingSnapshot": write_snapshot_token(found._twin)}


def pin_seconds(every: float) -> float:
    """Return the seconds for which Spark's own queries pin a lookup table, of which each batch
    reads the latest state.

    The value is limited so that the pins in force at a time leave room for those of others.
    """
    return min(max(every * limits.LOOKUP_PINS, limits.LOOKUP_PIN_SECONDS_MIN), 3600.0)
