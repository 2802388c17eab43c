"""The server's clock."""

from __future__ import annotations

from time import time_ns


def now_ms() -> int:
    """Return milliseconds since 1970 by the clock of the machine."""
    return time_ns() // 1_000_000
