"""The cells of stages; see `model.py`."""

from __future__ import annotations

import msgspec


class StageCell(msgspec.Struct, frozen=True, array_like=True):
    """Rows that were written and are not visible yet."""

    rows: int
    bytes: int
    time_ms: int
    runs: int = 0
    """So many cells of `Kind.RUNS` are of this stage."""
    calls: int = 0
    """The newest number of a call."""


class RunsCell(msgspec.Struct, frozen=True, array_like=True):
    """Of the rows of a stage, some that wait otherwise, or live shorter, than the queue says."""

    aside: tuple[tuple[int, int, int, int | None], ...] = ()
    """Place within the stage, number of rows, priority, and delay (None: as the queue says)."""
    lives: tuple[tuple[int, int, int], ...] = ()
    """Place within the stage, number of rows, and time to live."""
