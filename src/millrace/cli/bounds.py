"""How much `dump` and `check` show at once: bounds of what people read, not of the engine.

Those of the engine are in `millrace.limits`.
"""

from __future__ import annotations

SHOWN_BYTES = 60
"""Bytes of a body, key or header that are shown; as text, at most so many characters."""

SHOWN_RANGES = 8
"""Ranges of a set of seqs that are shown as text."""

TABLE_ROWS = 1_000
"""Lines of a table whose widths are found together."""

ROWS_DEFAULT = 100
"""Records or rows that are shown unless more are asked for."""

LISTED_MAX = 10
"""Numbers of files or shards that are listed in one line."""

HEX_BYTES = 16
"""Bytes on one line of a hexadecimal dump."""

IDENTITY_BYTES = 64
"""Of the file `identity`, which has half as many."""

PROGRESS_SECONDS = 0.1
"""How often progress is told."""
