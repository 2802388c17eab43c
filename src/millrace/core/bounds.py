"""Limits of ids, expiry and partitions; all others are in `millrace.limits`."""

from __future__ import annotations

ID_BYTES_MAX = 400
"""Maximum length of a deduplication or attempt id as UTF-8, the same as of a key."""

ATTEMPT_REMEMBERED_MS = 5 * 60 * 1000
"""Time for which a lease call with an attempt id gets the same answer, as in SQS."""

ATTEMPTS_REMEMBERED_MAX = 10_000
"""Remembered attempt ids per queue; beyond it the oldest are forgotten."""

DEDUP_MS = 5 * 60 * 1000
"""Default deduplication window, as in SQS."""

DEDUP_MS_MAX = 7 * 24 * 3600 * 1000
"""Longest deduplication window: each id costs about 100 bytes of the index until it is
forgotten."""

SPANS_MAX = 128
"""Maximum number of places of a producer's range: two queues with the maximum number of shards.
Its cell stays below 2,000 bytes, the size that LMDB stores inline."""

STAGE_CELL_RUNS_MAX = 100
"""Runs of staged rows with priorities, delays or TTLs in one cell: below 2,000 bytes, the size
that LMDB stores inline."""

EXPIRY_CELL_MAX = 256
"""Ids that one expiry cell names; a step of such cells fits the smallest record."""

EXPIRY_STEPS_MAX = 2
"""Expiry steps of one batch before a lease call gets messages: about 50 ms."""

EXPIRY_SEQS_MAX = 1_024
"""Messages named by one expiry cell."""

EXPIRY_GC_MS = 10_000
"""Interval of garbage collection of expiry cells whose messages all ended early."""

EXPIRY_GC_CELLS = 64
"""Expiry cells per garbage collection step: each is read from the store, about 2 ms in total."""

QUEUE_TTL_STEP = 4_096
"""Messages older than the queue's TTL that one step ends: about 10 ms."""

EMPTY_CHECK_MS = 10_000
"""Idle time after which a queue with a TTL is checked once for being empty, so that its view can
be evicted from memory."""

TTL_MS_MAX = 366 * 24 * 3600 * 1000
"""Longest TTL of a single message."""

PARTITIONS = 10
"""Default maximum number of partitions of a queue, as in Dynamiq."""

PARTITIONS_MAX = 4_096
"""Limit of partitions. The cost of a call does not grow with them, but each takes about 500
bytes of memory while its queue is in use, and merging all of them takes about 20 ms. It is four
times Dynamiq's own example, and more than a queue has workers at once."""

PARTITIONS_PAGE = 32
"""Partitions per cell, with their turns and locks: below 1,000 bytes, and more only while a
merged partition has the locks of several. A lease call writes one such cell."""

PARTITION_SPLITS_MAX = 64
"""Partitions that one lease call may add until one of them has messages: about 5 ms."""

PARTITION_AHEAD = 1 << 18
"""Known undelivered messages from which on a lease call takes what it knows of its partition,
even if less than requested, instead of scanning further: a scan takes about 200 ms. With 4,096
partitions that is 64 messages each."""

PARTITION_WINDOW = 1 << 20
"""Undelivered messages whose partition is held in memory: about 10 MB. With this many behind
locks, later messages wait as well, until a lock expires."""

PARTITION_AGE_MS = 432_000_000
"""Default time after which an unneeded partition is removed: five days, as in Dynamiq."""

PARTITION_AGE_MS_MAX = 366 * 24 * 3600 * 1000

DELETE_IDS_MAX = 10_000
"""Messages that one call may end by id: each is looked up."""

CURSOR_CLAIM_BYTES = 24
"""Size of a follower's claim of a cursor: the history, and a number within it."""

DROP_STEP = 1_024
"""Messages beyond a queue's maximum that one publish drops, unless it has more itself."""

EXPIRY_CELLS_STEP = 8
"""Expiry cells that one batch of a tick processes; the next batch goes on."""

DEAD_LETTERS_WAITING_MAX = 100_000
"""Limit of unmoved dead letters; at the limit, no more messages expire into dead letters. Each
is held in memory until the dead-letter queue has taken it."""

QUARANTINE_RANGES_MAX = 256
"""Ranges of unreadable rows recorded per shard. `repair` scans all rows and finds the others."""

QUARANTINE_REASON_CHARS_MAX = 500
"""Length of the reason that is stored in a cell and repeated in every refusal."""
