"""The bounds of what Spark does with queues."""

from __future__ import annotations

STAGE_CALL_BYTES = 12 * 1024 * 1024
"""What a task hands over at once: large, so that a call costs little for each row, and small
enough for the memory of a worker and for a record of the log."""

STAGE_CALL_ROWS_MAX = 65_536
"""And so many rows: as a publish."""
