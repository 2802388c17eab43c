"""What the repair of a quarantined queue comes to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair has found and done."""

    readable: int
    """Rows that can be read, settled ones that a cursor retains included."""
    unreadable: int
    """Rows that cannot be read."""
    dropped: int
    """Of these, so many were ended."""
    is_open: bool
    """Whether the queue can be used again."""
