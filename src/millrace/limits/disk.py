"""The WAL, the index and the sealed files; backup, scrubbing and watermarks."""

from __future__ import annotations

SECTOR_BYTES = 4096
"""Alignment of records, so that no acknowledged sector is written again."""

SEGMENT_BYTES = 64 * 1024 * 1024
"""Default size of a log segment."""

SEGMENT_BYTES_MIN = 192 * 1024
"""Smallest segment: it holds one record with its overhead (`RECORD_SLACK_BYTES`)."""

SEGMENT_BYTES_MAX = 1024 * 1024 * 1024
"""Largest segment: it is created, mapped and recycled as a whole."""

LOG_SEGMENTS_MAX = 24
"""Default maximum of segments: 1.5 GiB of log."""

LOG_SEGMENTS_FREE = 3
"""Segments that are prepared ahead of need."""

LOG_SEGMENTS_HOLLOW = 3
"""Nearly empty segments that are left unsealed: each open begins a new one."""

HOLLOW_PLACES_MAX = 64
"""Places, and ranges of them, in a nearly empty segment, at most."""

HOLLOW_SHARE = 16
"""One part in this number of a nearly empty segment has rows, at most."""

LOG_SEGMENTS_RESERVE = 2
"""Segments reserved for settles, deaths, sealing and checkpoints (a full disk)."""

PREPARE_STEP_BYTES = 4 * 1024 * 1024
"""A new segment is zeroed and synced in steps of this size, so that a concurrent append waits for
no more than one."""

REPLAY_READ_BYTES = 4 * 1024 * 1024
"""Read size of replay; a payload that is kept keeps a buffer of this size."""

WRITE_BUFFERS_MAX = 1024
"""Buffers of one vectored write in Linux (IOV_MAX); more are written in slices."""

HELD_BYTES_MAX = 512 * 1024 * 1024
"""Unlinked segments that readers still use; beyond it readers get copies."""

INLINE_RECORD_BYTES_MAX = 64 * 1024
"""A record up to this size is written on the event loop while syncs are short: a round trip to a
thread takes longer, and disturbs other threads."""

INLINE_SYNC_SECONDS_MAX = 0.001
"""Upper bound of a short sync, as a running mean."""

END_MARK_SECONDS = 0.05
"""Idle time after which the end of the log is marked."""

CHECKPOINT_SECONDS = 1.0
"""Longest lag of the index behind the log in time."""

CHECKPOINT_LOG_BYTES = 64 * 1024 * 1024
"""Longest lag of the index behind the log in bytes."""

KEEPER_SECONDS = 0.25
"""Interval of the checkpointer's rounds when nothing wakes it."""

TICK_SECONDS = 1.0
"""Interval of ticks, in which shards drop expired items."""

CELLS_MAP_BYTES = 1 << 40
"""Size of LMDB's map: address space, not memory; never grown while in use."""

CELL_BYTES_MAX = 2_000
"""Size of a cell: LMDB keeps larger values in runs of pages, which it has to search for."""

CELL_KEY_BYTES_MAX = 511
"""LMDB's own limit for a key."""

CELLS_STEP = 256
"""Cells that are processed in one step of about half a millisecond."""

TURN_SECONDS = 0.001
"""Time slice of work on the cells on the event loop, and the pause after it."""

TURN_SECONDS_MAX = 0.01
"""Longest time that the event loop and this work wait for each other on a busy machine."""

CELLS_READERS_MAX = 32
"""Concurrent read transactions: a few threads, each with one."""

CELLS_LOCK_BYTES = 64 * CELLS_READERS_MAX
"""Size of LMDB's lock file that is allocated before it is mapped: a reader slot has 64 bytes."""

CELLS_BALLAST_BYTES = 32 * 1024 * 1024
"""Space reserved for a full disk: a checkpoint writes each changed page of the index once, and
those of several hundred thousand cells fit."""

CELLS_SPARE_BYTES = 64 * 1024 * 1024
"""Free space besides the ballast below which the disk counts as full, so that publishing is refused
before the ballast is needed. The state ends at twice as much, so that it does not toggle."""

CELLS_WRITE_BYTES_MAX = 64 * 4096
"""Free space below which the disk counts as full: LMDB writes up to 64 pages at once, and reports
an I/O error if only part of them fits."""

CELLS_FINDINGS_MAX = 1_000
"""Findings that a check of the cells lists; more say nothing new."""

CHUNK_ROWS = 8_192
"""Rows whose deaths share one bitmap (1 KiB when it is dense)."""

SEALED_FILE_BYTES = 256 * 1024 * 1024
"""A sealed file is closed at this size."""

SEALED_BATCH_ROWS = 16_384
"""Rows of one sealed record batch; small blocks are merged up to it."""

SEALED_BATCH_BYTES = 1024 * 1024
"""Bytes after which a sealed record batch is closed, whatever its number of rows."""

SEAL_WRITE_BYTES = 256 * 1024
"""Write size of sealing. For larger writes to a growing file the kernel allocates contiguous
memory; where that is scarce, 4 MB take 10 ms instead of one."""

SEAL_SYNC_BYTES = 4 * 1024 * 1024
"""Sync interval of sealing in bytes, so that the log's sync never waits long."""

SEAL_REST_SYNCS = 0.25
"""Pause of sealing after each such step, as a part of the log's sync time, while the log is busy.
It grows with the load, as the syncs do."""

SEAL_REST_SECONDS_MAX = 0.05
"""Longest such pause: on a slow disk sealing still writes about 40 MB/s."""

SEAL_WAIT_SECONDS_MAX = 4.0
"""Longest backoff of sealing on a full disk."""

SEAL_SHORT_SHARE = 16
"""A segment that is sealed while the index is short of space has live rows in at most one part in
this number: each such pass uses up some of the ballast."""

SPARSE_PER_CENT = 50
"""A sealed file with a lower share of live rows is rewritten."""


# --- Backup, WAL archive, scrubbing and watermarks -----------------------------------------------

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
