"""Bounds of ids, and of what goes by itself at a stated time; the others are in `limits`."""

from __future__ import annotations

ID_BYTES_MAX = 400
"""A de-duplication or attempt id as UTF-8: as long as a key may be."""

ATTEMPT_REMEMBERED_MS = 5 * 60 * 1000
"""How long a lease call with an attempt id is answered as before; SQS has the same time."""

ATTEMPTS_REMEMBERED_MAX = 10_000
"""And so many of them, per queue; beyond it the oldest are forgotten."""

DEDUP_MS = 5 * 60 * 1000
"""How long an id is remembered where the queue does not say; SQS has the same time."""

DEDUP_MS_MAX = 7 * 24 * 3600 * 1000
"""Each id costs some 100 bytes of the index until it is forgotten."""

SPANS_MAX = 128
"""Places of a producer's range: two queues of as many shards as a queue may have. Its cell stays
below the 2,000 bytes that LMDB likes."""

STAGE_CELL_RUNS_MAX = 100
"""Runs of staged rows with priorities, delays or times to live of their own in one cell: below the
2,000 bytes that LMDB likes."""

EXPIRY_CELL_MAX = 256
"""What one cell lets go at its time; with a step of cells it fits the smallest record."""

EXPIRY_STEPS_MAX = 2
"""Such steps that one batch makes before a lease call is given anything: some 50 ms."""

EXPIRY_SEQS_MAX = 1_024
"""Messages whose time to live one cell names."""

TIDY_MS = 10_000
"""How often cells are looked for whose messages have all ended before their time."""

TIDY_CELLS = 64
"""So many of them at once: the store is asked of each, some 2 ms together."""

OUTLIVED_STEP = 4_096
"""Messages that are older than their queue lets them live which one step ends: some 10 ms."""

LOOK_MS = 10_000
"""After so long without use it is looked whether a queue with a time to live is empty: once, so
that its view need not stay in memory."""

TTL_MS_MAX = 366 * 24 * 3600 * 1000
"""How long a message may live that says so."""

PARTITIONS = 10
"""Partitions of a queue that does not say how many it may have; Dynamiq has the same number."""

PARTITIONS_MAX = 4_096
"""What a call costs does not grow with them, but each has some 500 bytes of memory while its queue
is in use, and joining all of them takes some 20 ms: four times Dynamiq's own example, and more than
a queue has workers at once."""

PARTITIONS_PAGE = 32
"""Partitions whose turns and locks one cell holds: below 1,000 bytes, and more only as long as a
partition that several were joined to has the locks of all of them. A lease call writes one."""

PARTITION_SPLITS_MAX = 64
"""Partitions that one lease call adds until one of them has something: some 5 ms."""

PARTITION_AHEAD = 1 << 18
"""While so many messages are known to wait in some partition, a batch is given what is known of its
own: to look at them takes some 200 ms. Of 4,096 partitions each has 64 of them."""

PARTITION_WINDOW = 1 << 20
"""Messages never handed out of which it is known which partition they wait in: some 10 MB. With so
many behind locks, what came after them waits as well, until a lock is over."""

PARTITION_AGE_MS = 432_000_000
"""How long a partition is kept that is not needed: five days, as in Dynamiq."""

PARTITION_AGE_MS_MAX = 366 * 24 * 3600 * 1000

DELETE_IDS_MAX = 10_000
"""Messages that one call ends by their ids: each is asked for."""

CURSOR_CLAIM_BYTES = 24
"""A follower's claim of a cursor: the history, and a number within it."""

DROP_STEP = 1_024
"""Messages beyond a queue's maximum that one publish drops, unless it has more itself."""

EXPIRY_CELLS_STEP = 8
"""Cells that one batch of a tick lets go; the next one goes on."""

DOOMED_MAX = 100_000
"""While so many dead letters wait to be moved, no more messages expire into them: each is held in
memory until the queue that takes it has it."""

QUARANTINE_RANGES_MAX = 256
"""Ranges of unreadable rows that the cells of one shard name. `repair` looks at all rows, so that
it finds the others."""

QUARANTINE_REASON_CHARS_MAX = 500
"""Of the reason that a cell and every refusal hold."""
