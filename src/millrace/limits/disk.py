"""The log, the index and the sealed files."""

from __future__ import annotations

SECTOR_BYTES = 4096
"""Records begin at multiples of it, so that no acknowledged sector is written again."""

SEGMENT_BYTES = 64 * 1024 * 1024
"""Default size of a log segment."""

SEGMENT_BYTES_MIN = 192 * 1024
"""The smallest segment: a record lies in one, and so does what is around it
(`RECORD_SLACK_BYTES`)."""

SEGMENT_BYTES_MAX = 1024 * 1024 * 1024
"""The largest segment: it is made, mapped and recycled whole."""

LOG_SEGMENTS_MAX = 24
"""Default number of segments: 1.5 GiB of log."""

LOG_SEGMENTS_FREE = 3
"""Segments that are kept ready ahead of need."""

LOG_SEGMENTS_HOLLOW = 3
"""Segments that are left alone although next to nothing is in them: each open begins a new one."""

HOLLOW_PLACES_MAX = 64
"""Places in such a segment, and ranges of them, at most."""

HOLLOW_SHARE = 16
"""One in so many parts of such a segment has rows in it, at most."""

LOG_SEGMENTS_RESERVE = 2
"""Segments that only settles, deaths, sealing and checkpoints may use (a full disk)."""

PREPARE_STEP_BYTES = 4 * 1024 * 1024
"""A new segment is filled with zeros and synced in steps of this size, so that an append that runs
beside it never waits for more."""

REPLAY_READ_BYTES = 4 * 1024 * 1024
"""Replay reads this much at a time; a payload that is kept keeps as much memory."""

WRITE_BUFFERS_MAX = 1024
"""Linux takes so many buffers in one vectored write (IOV_MAX); more are written in slices."""

HELD_BYTES_MAX = 512 * 1024 * 1024
"""Unlinked segments that readers still hold; beyond it readers get copies."""

INLINE_RECORD_BYTES_MAX = 64 * 1024
"""A record up to this size is written on the loop while syncs are short: to hand it to a thread and
back takes longer, and the interpreter of whoever else runs."""

INLINE_SYNC_SECONDS_MAX = 0.001
"""A sync is short below this time, as a running mean."""

END_MARK_SECONDS = 0.05
"""Quiet after which the log's end is marked."""

CHECKPOINT_SECONDS = 1.0
"""How far the index may lie behind the log in time."""

CHECKPOINT_LOG_BYTES = 64 * 1024 * 1024
"""How far the index may lie behind the log in bytes."""

KEEPER_SECONDS = 0.25
"""How often the keeper of log and store looks around when nothing wakes it."""

TICK_SECONDS = 1.0
"""How often shards are asked to drop what is too old."""

CELLS_MAP_BYTES = 1 << 40
"""LMDB's map: address space, not memory; never grown while in use."""

CELL_BYTES_MAX = 2_000
"""LMDB keeps larger values in runs of pages, which it has to search for."""

CELL_KEY_BYTES_MAX = 511
"""LMDB's own limit for a key."""

CELLS_STEP = 256
"""Cells that are handled in one step, which takes about half a millisecond."""

TURN_SECONDS = 0.001
"""How long work on the cells holds up the event loop, and how long it then lets it run."""

TURN_SECONDS_MAX = 0.01
"""How long the event loop, or the work beside it, waits for the other when the machine is busy."""

CELLS_READERS_MAX = 32
"""Slots for read transactions at a time: a few threads, each with one."""

CELLS_LOCK_BYTES = 64 * CELLS_READERS_MAX
"""A slot has 64 bytes; so much of LMDB's lock file has blocks on the disk before it is mapped."""

CELLS_BALLAST_BYTES = 32 * 1024 * 1024
"""Given back on a full disk: a checkpoint writes each changed page of the index once, and those of
some hundred thousand cells fit."""

CELLS_SPARE_BYTES = 64 * 1024 * 1024
"""Free space beside the ballast below which the disk counts as full, so that publishing is refused
before the ballast is needed; twice as much ends it, so that the two do not alternate."""

CELLS_WRITE_BYTES_MAX = 64 * 4096
"""LMDB writes up to 64 pages at once, and calls it an input/output error if only part of them fits:
with less free space than this the disk is taken to be full."""

CELLS_FINDINGS_MAX = 1_000
"""Findings that a check of the cells lists; more say nothing new."""

CHUNK_ROWS = 8_192
"""Rows whose deaths share one bitmap (1 KiB when it is dense)."""

SEALED_FILE_BYTES = 256 * 1024 * 1024
"""A sealed file is closed at this size."""

SEALED_BATCH_ROWS = 16_384
"""Rows of one sealed record batch: small blocks are merged up to it."""

SEALED_BATCH_BYTES = 1024 * 1024
"""Bytes after which a sealed record batch is closed, whatever its rows."""

SEAL_WRITE_BYTES = 256 * 1024
"""Sealing writes so much at once: for larger writes to a growing file the kernel looks for as much
memory in one piece, and where that is rare, 4 MB take 10 ms instead of one."""

SEAL_SYNC_BYTES = 4 * 1024 * 1024
"""Sealing syncs in steps of this size, so that the log's sync never waits long."""

SEAL_REST_SYNCS = 0.25
"""After each such step, sealing leaves the disk to the log for this part of what its syncs take,
while the log is written. Their time grows with the load, and the rest with it."""

SEAL_REST_SECONDS_MAX = 0.05
"""The longest such rest: on a slow disk sealing still does some 40 MB/s."""

SEAL_WAIT_SECONDS_MAX = 4.0
"""How long sealing waits at most before it looks again whether its rows fit on a full disk."""

SEAL_SHORT_SHARE = 16
"""Of a segment that is emptied while the index needs what room there is, at most this part may be
wanted: each time so much of the ballast's room is used up."""

SPARSE_PER_CENT = 50
"""A sealed file with fewer live rows than this share is written anew."""
