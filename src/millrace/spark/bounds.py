"""Limits of writes by Spark tasks."""

from __future__ import annotations

STAGE_CALL_BYTES = 12 * 1024 * 1024
"""Bytes of one stage call of a task: large, so that the cost per row is small, and small enough for
the memory of a worker and for a record of the log.
"""

STAGE_CALL_ROWS_MAX = 65_536
"""Maximum number of rows of one stage call; the same as of a publish."""
