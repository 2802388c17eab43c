"""The bounds of care, with their reasons, as `millrace.limits` has all others."""

from __future__ import annotations

CARE_STEP_BYTES = 1024 * 1024
"""Backups, restores and scrubbing read and write this much at a time."""

BACKUP_REST_SHARE = 1.0
"""A backup rests as long as it has worked, while the log is being written."""

BACKUP_REST_SECONDS_MAX = 0.05
"""And no longer than this after each step, however slow the disk is."""

FOLLOW_SECONDS = 0.5
"""How far an archive may lie behind the log in time, where its disk can keep up."""

FOLLOW_RETRY_SECONDS = 5.0
"""After which an archive that could not be written to is tried again."""

FOLLOW_HELD_SHARE = 4
"""One in so many segments that the log may have is kept for an archive that lacks it, unless it is
set otherwise; the rest is the engine's own."""

DISK_LOW_BYTES = 128 * 1024 * 1024
"""Free space below which nothing that grows is taken, unless it is set otherwise: more than what
the index keeps back for itself."""

WATERMARK_SHARE = 8
"""A watermark is left when there is one part in so many more than it asks for."""

WATERMARK_AFTER_MS = 1_000
"""When to come again, who was refused because of one."""

RESERVE_BYTES_MAX = 4 * 1024 * 1024
"""Of the room below a watermark, so much is for notes of acts: an act is noted before it is done,
and deleting and purging are what makes room. It holds some hundred of them."""

RESERVE_SHARE = 32
"""And no more than one part in so many of what `disk_low` keeps free."""

RESERVE_NOTE_BYTES = 8 * 1024
"""What a note takes of it beside its own bytes: two sectors of the log."""

SCRUB_BYTES_PER_SECOND = 20 * 1024 * 1024
"""How fast everything on the disk is read again, unless it is set otherwise."""

SCRUB_EVERY_SECONDS = 7 * 24 * 3600
"""How often."""
