"""Words of numbers."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """So many of something, whose plural ends with s: 1 row, 2,000 rows."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
