"""State of a shard in memory, and the caches and step sizes of the store."""

from __future__ import annotations

IN_FLIGHT_MAX = 1_000_000
"""Messages in flight of one shard: they are bitmaps in memory."""

LEASES_REMEMBERED_MAX = 10_000
"""Ended leases for which repeated settles are answered; the oldest are forgotten first."""

LEASE_REMEMBERED_MS = 10 * 60 * 1000
"""Time for which an ended lease answers a repeated settle."""

PRODUCERS_MAX = 100_000
"""Producers of one shard; beyond it a new one is refused, and none is forgotten."""

PRODUCER_REMEMBERED_MS = 7 * 24 * 3600 * 1000
"""Time after which an inactive producer is forgotten."""

PRODUCER_ANSWERS_MAX = 32
"""Latest numbers of a producer that are answered with their seqs; older ones only with OK."""

SESSIONS_MAX = 10_000
"""Sessions of one shard: each is a cell, and each batch examines all that wait."""

SESSION_CREDIT_MAX = 10_000
"""Credit of a session, and messages that it holds: one batch may return all of them."""

SUSPECT_MS_MAX = 24 * 3600 * 1000
"""Longest time for which a session without a heartbeat keeps its messages."""

DEADLINES_SPARE = 1_000
"""Outdated lease deadlines that are kept, besides as many as there are leases."""

QUEUES_MAX = 100_000
"""Queues of one catalog: their names are in memory, and each one in use has a view."""

SHARDS_MAX = 64
"""Shards of one queue: a lease call examines all of them, and a snapshot pins each."""

VIEWS_MAX = 10_000
"""Idle views of shards that stay loaded. Views in which something can expire (pins, stages,
retaining cursors, deletes, TTLs) stay in addition, because otherwise it would not expire."""

UNSEEN_STEP = 64
"""Shards unused since the start that one tick loads to look for expired items."""

TICK_ENDS_MAX = 1_000
"""Expired items of each kind that one batch removes; the next batch goes on."""

TICK_DELETES_MAX = 65_536
"""Expired deletes that one batch removes: two bytes each if they are scattered."""

CURSORS_MAX = 100_000
"""Cursors of one shard; an idle one is a cell."""

WHOLE_ROWS_STEP = 1_048_576
"""Rows whose deaths are read in one step when a retaining cursor begins at a position."""

PINS_MAX = 1_000
"""Pins of one shard; each opens an interval of the dead. Beyond it `Full`, until pins expire."""

PLAIN_PINS_MAX = 900
"""Pins without a cursor, as part of these: readers that never release their pins must not block
followers."""

PIN_MS_MAX = 24 * 3600 * 1000
"""Time after which a pin expires that is not renewed."""

STAGES_MAX = 1_000
"""Stages of one shard; beyond it `Full`."""

STAGE_MS_MAX = 24 * 3600 * 1000
"""Time after which staged rows expire that are not published."""

STAGE_ROWS_MAX = 1_000_000
"""Rows of one stage, and of all stages that are published at once to a keyed queue: every key is
looked up in one decision."""

STAGE_BYTES_MAX = 4 * 1024 * 1024 * 1024
"""Bytes of one stage: they take invisible room on the disk."""

HISTORIES_MAX = 1_000
"""Entries of a takeover table, besides those that a cursor names; Couchbase's 25 are used up after
25 unclean starts."""

CURSOR_RETAIN_MS_MAX = 7 * 24 * 3600 * 1000
"""Time after which an unmoved retaining cursor is dropped; its follower gets an error."""

CURSOR_RETAIN_ROWS_MAX = 100_000_000
"""Settled rows that are kept for the slowest retaining cursor of a shard."""

KEEP_DELETES_MS = 24 * 3600 * 1000
"""Default of a queue's `keep_deletes`: the time for which a deleted key stays in the log as a
delete."""

KEEP_DELETES_MS_MAX = 366 * 24 * 3600 * 1000
"""The longest `keep_deletes`: each second with deletes is a cell."""


# --- The store: caches and step sizes ---

PLACES_STEP = 256
"""Places of rows that are read from the index at once: enough for a scan not to notice the steps.
"""

OUTLIVED_CHUNKS_MAX = 64
"""Chunks of rows that are searched at once for expired messages: a few ms if most rows are dead."""

SCAN_STEP_BYTES = 64 * 1024 * 1024
"""Rows that another thread reads before it asks the event loop for the next places."""

READ_STEP_BYTES = 1024 * 1024
"""Cold rows that are read for a coroutine at once: others wait for the same thread."""

LOOK_AGAIN_MAX = 100
"""Repeated lookups of rows that were moved in between; more is damage, not chance."""

KNOWN_CHUNKS_MAX = 32_768
"""Cached chunks of death marks, over all shards: at most 1 KiB each, and per mark."""

DECODED_BLOCKS_MAX = 4_096
"""Cached decoded blocks for reading single rows in any order; they are views of mapped files, and
take 1 KiB each."""

FRESH_BLOCK_BYTES_MAX = 16 * 1024
"""Size up to which a block is cached as it was written, without reading it from the log."""

FRESH_BLOCKS_MAX = 256
"""Number of these blocks: 4 MiB."""

WARM_BYTES_MAX = 256 * 1024 * 1024
"""Bytes that are assumed to be in the page cache after they were read for a lease."""

WARM_PLACES_MAX = 65_536
"""Places that are tracked as such, about 300 bytes each: blocks may be small."""

READ_AHEAD_BYTES = 8 * 1024 * 1024
"""Read-ahead for workers: about 20 ms of the fastest ones."""

READ_AHEAD_PLACES_MAX = 64
"""Places that are looked up for read-ahead; blocks may be small."""

PLACES_KNOWN_MAX = 1_024
"""Shards whose last place is cached for the next lease call."""

PLACES_NEAR_MAX = 4_096
"""Cached places of one shard, for rows that are leased in any order."""

PLACES_NEAR_STEP = 32
"""Places that are looked up at once for a request of at least as many rows."""

OPEN_FILES_MAX = 256
"""Sealed files that are kept mapped; opening one again costs a checksum per batch."""

SHARD_COLUMNS_MAX = 64
"""Cached constant columns, one per shard, 128 KiB each."""

RECLAIM_STEP = 16_384
"""Index entries that one checkpoint removes or moves in addition to its own writes: about 20 ms."""

FILE_SPANS_MAX = 32
"""Shards of a sealed file whose seqs are known without reading the index; files with more are
shared by small shards."""

FRONTS_STEP = 64
"""Shards for which one checkpoint finds the end of their dead prefix: 0.1 ms each, or more if much
has just died."""

FRONT_PAGES_MAX = 8
"""Pages of places that are read for this; the next checkpoint goes on there."""

SMALL_FILE_BYTES = 16 * 1024 * 1024
"""Sealed files below this size are merged when there are too many of them."""

SMALL_FILES_MAX = 16
"""Small sealed files that are not merged: otherwise each stuck message would get a file of its own.
"""
