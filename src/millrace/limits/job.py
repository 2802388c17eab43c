"""Bounds of ready jobs on Spark."""

from __future__ import annotations

JOB_PIN_SECONDS = 24 * 3600.0
"""What a job reads is pinned for so long at most: the longest that a pin may stand."""

JOB_PATIENCE_SECONDS = 60.0
"""A sink that does not answer is asked again for so long."""

JOB_WATCH_SECONDS = 0.5
"""How often a job's progress is looked at."""

LOAD_FILES_LOOKED = 16
"""Files whose columns are looked at before Spark starts; of more, Spark says it."""

LOAD_HEAD_BYTES = 64 * 1024
"""In so much of a CSV its first line ends, or it is not looked at before Spark starts."""

AUDIT_TRIES = 5
"""So often an audit looks for a moment in which nobody changes a queue, so that its counters and
its snapshot are of the same moment; then it is content with what they were before and after."""

AUDIT_GAPS_SHOWN = 10
"""Gaps of a shard that are named; all of them are counted."""

REPORT_KEYS = 20
"""The hottest keys and groups that a report names."""

REPORT_BARS = 120
"""Steps of time in a plot: one takes some pixels."""

REDRIVE_JOB_MESSAGES_MAX = 5_000
"""Dead letters that are changed by Spark at a time, and moved in one transaction: fewer would cost
more tasks, and their bodies are all held by the driver."""

REDRIVE_JOB_LEASE_SECONDS = 600.0
"""For so long they are leased: Spark may be slow, and after a crash they come back."""

REDRIVE_JOB_SHOWN = 10
"""Rows that a dry run shows, before and after."""
