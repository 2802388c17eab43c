"""Backup, WAL archive, scrubbing and watermarks."""

from __future__ import annotations

CARE_STEP_BYTES = 1024 * 1024
"""Step of reading and writing in backup, restore and scrubbing."""

BACKUP_REST_SHARE = 1.0
"""Pause of a backup after each step, in proportion to the step's duration, while the log is busy.
"""

BACKUP_REST_SECONDS_MAX = 0.05
"""Longest such pause, however slow the disk is."""

FOLLOW_SECONDS = 0.5
"""Longest lag of an archive behind the log in time, if its disk can keep up."""

FOLLOW_RETRY_SECONDS = 5.0
"""Retry interval of an archive that cannot be written."""

FOLLOW_HELD_SHARE = 4
"""One part in this number of the maximal log is retained for a lagging archive, unless it is set
otherwise; the rest is the engine's own."""

DISK_LOW_BYTES = 128 * 1024 * 1024
"""Default free space below which requests that grow are refused: more than the reserve of the
index."""

WATERMARK_SHARE = 8
"""Hysteresis of a watermark: it is left at one part in this number beyond its value."""

WATERMARK_AFTER_MS = 1_000
"""Retry delay of requests that are refused because of a watermark."""

RESERVE_BYTES_MAX = 4 * 1024 * 1024
"""Part of the room below a watermark that is reserved for audit records: an act is recorded before
it is done, and deleting and purging free space. Several hundred records fit."""

RESERVE_SHARE = 32
"""This reserve is at most one part in this number of `disk_low`."""

RESERVE_NOTE_BYTES = 8 * 1024
"""Overhead of an audit record in the log: two sectors."""

SCRUB_BYTES_PER_SECOND = 20 * 1024 * 1024
"""Default rate at which all data on the disk is read again."""

SCRUB_EVERY_SECONDS = 7 * 24 * 3600
"""Default interval of scrubbing passes."""
