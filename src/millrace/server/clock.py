"""The time, as servers have it."""

from __future__ import annotations

from time import time_ns


def now_ms() -> int:
    """Milliseconds since 1970, by the clock of the machine."""
    return time_ns() // 1_000_000
