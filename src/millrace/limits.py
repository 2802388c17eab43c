"""Every bound, with its unit in the name and its reason beside it.

A queue, loop, retry or cache without a name in this file is a defect.
"""

from __future__ import annotations

# --- What a request may hold -----------------------------------------------------------------

KEY_BYTES_MAX = 400
"""LMDB takes keys of 511 bytes; the rest is the shard's and the table's prefix."""

NAME_CHARS_MAX = 80
"""Queue, space, cursor, producer and stage names; SQS has the same limit."""

HEADERS_MAX = 64
"""Headers of one message."""

HEADER_BYTES_MAX = 64 * 1024
"""Names and values of all headers of one message."""

BODY_BYTES_MAX = 16 * 1024 * 1024
"""A body lies in one record, and a record in one segment, beside others."""

PUBLISH_MESSAGES_MAX = 65_536
"""Messages of one publish; a larger one is cut by the client, or staged."""

LEASE_MESSAGES_MAX = 10_000
"""Messages of one lease call."""

DELAY_MS_MAX = 366 * 24 * 3600 * 1000
"""How long a message may be left alone before it is handed out again."""

PRIORITY_MAX = 9
"""The highest priority; higher ones go first, and 0 is the last."""

PRIORITY_DEFAULT = 4
"""What has this priority, and no delay, waits in the order of seqs alone."""

ASIDE_CELL_SEQS_MAX = 1_024
"""Messages of one cell of those that wait apart: two bytes each, where they lie apart."""

WINDOW_CELLS = 4_096
"""Cells of messages that wait apart which are asked for at once, some 15 ms; up to twice as many
are held of each kind, some 3 MiB."""

RING_TURNS = 8_192
"""Turns of groups that are asked for at once; up to twice as many are held, some 3 MiB."""

TURN_SEQS_MAX = 64
"""Messages that the cell of a group names itself: it is written anew with each of them."""

GROUP_CELL_SEQS_MAX = 256
"""Messages of one cell of those that come after them: about 1 KiB."""

GROUPS_PASSED_MAX = 4_096
"""Turns that one lease call finds to be of no use: blocked, limited, or without messages."""

PROMOTE_CELLS_MAX = 4_096
"""Cells of delayed messages whose time has come that one batch makes ready; the next goes on."""

SWEEP_CELLS_MAX = 4_096
"""Cells of purged messages that one batch drops; the next one goes on."""

LOOK_AT_CELLS_MAX = 64
"""Cells of a keyed queue from which one lease call takes: their rows are asked for one by one."""

LOOK_AT_ROWS_MAX = 1_024
"""And rows of them: some 40 ms."""

FOUND_DEAD_MAX = 4_096
"""Of those rows, how many one batch finds dead; the next one goes on."""

ATTEMPTS_MAX = 1_000_000
"""Failures or deliveries after which a queue may take a message for a dead letter."""

BURY_MESSAGES_MAX = 1_000
"""Dead letters that are moved at once."""

BURY_BYTES_MAX = 1024 * 1024
"""Bytes of dead letters that are moved at once; a larger one goes alone."""

REDRIVE_MESSAGES_MAX = 500
"""Dead letters that a redrive leases at a time, and moves in one transaction or a few."""

REDRIVE_LEASE_MS = 60_000
"""For how long: they are extended while it goes on, and come back so long after a crash."""

REDRIVE_RATE_MAX = 1_000_000
"""Messages per second; beyond it a rate says nothing."""

SUBSCRIPTIONS_MAX = 1_000
"""Subscriptions of one topic: each has a cell that is written whenever it forwards."""

FILTER_BYTES_MAX = 8 * 1024
"""The filter of a subscription, as it is stored: it is in that cell."""

FILTER_TESTS_MAX = 150
"""Tests of one filter; SNS allows as many values."""

TOPIC_LAG = 1_000_000
"""Rows of a topic that wait for its slowest subscription, unless it is made otherwise; then it
refuses publishes, for nothing that was accepted may be dropped."""

TOPIC_LAG_MAX = 1_000_000_000
"""What a topic may be told to let wait."""

FORWARD_BYTES_MAX = 1024 * 1024
"""Bytes that are forwarded to one queue at once; a larger block goes alone."""

FORWARD_ROUND_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that a topic forwards at once to all of its queues; the others come next."""

FORWARD_MEMORY_BYTES_MAX = 16 * 1024 * 1024
"""New rows of a topic that are at hand for its subscriptions; older ones are read again."""

FORWARD_RESULTS_MAX = 256
"""The newest parcels of a topic of which is known where their rows are in the queues."""

LEASE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of one lease call, unless its first message has more: bodies are copied into memory."""

LEASE_MS_MAX = 12 * 3600 * 1000
"""The longest lease; SQS has the same limit."""

TRANSACTION_PARTS_MAX = 1_000
"""Commands of one transaction."""

PEEK_MESSAGES_MAX = 10_000
"""Messages that one peek reads."""

PEEK_BYTES_MAX = 64 * 1024 * 1024
"""Bytes that one peek reads, unless its first message has more: bodies are copied into memory."""

# --- What a shard remembers ------------------------------------------------------------------

IN_FLIGHT_MAX = 1_000_000
"""Leased and not yet settled messages of one shard: they are bitmaps in memory."""

LEASES_REMEMBERED_MAX = 10_000
"""Ended leases whose settles are answered again; the oldest go first."""

LEASE_REMEMBERED_MS = 10 * 60 * 1000
"""How long an ended lease answers a retried settle."""

PRODUCERS_MAX = 100_000
"""Producers of one shard; beyond it a new one is refused, none is forgotten."""

PRODUCER_REMEMBERED_MS = 7 * 24 * 3600 * 1000
"""Producers are forgotten by age only."""

PRODUCER_ANSWERS_MAX = 32
"""The newest numbers of a producer that are answered with their seqs; older ones with OK alone."""

SESSIONS_MAX = 10_000
"""Sessions of one shard; each is a cell, and all that wait are looked at with each batch."""

SESSION_CREDIT_MAX = 10_000
"""Credit of a session, and messages that it holds: one batch gives so many back."""

SUSPECT_MS_MAX = 24 * 3600 * 1000
"""How long a session may keep its messages while nobody speaks for it."""

DEADLINES_SPARE = 1_000
"""Deadlines of leases that may be out of date, besides as many as there are leases."""

QUEUES_MAX = 100_000
"""Queues of one catalog: their names are in memory, and each has a view while it is used."""

SHARDS_MAX = 64
"""Shards of one queue: a lease call looks at all of them, and a snapshot pins each."""

VIEWS_MAX = 10_000
"""Views of shards that stay loaded while nobody uses them. Those in which something goes by age
(pins, stages, retaining cursors, deletes) stay beside them, or it would not go."""

UNSEEN_STEP = 64
"""Shards that nobody has used since the start which one tick looks into."""

TICK_ENDS_MAX = 1_000
"""Things of each kind that one batch ends because of their age; the next one goes on."""

TICK_DELETES_MAX = 65_536
"""Deletes that one batch ends because of their age: two bytes each, where they lie apart."""

CURSORS_MAX = 100_000
"""Cursors of one shard; an idle one is a cell."""

PINS_MAX = 1_000
"""Pins of one shard; each opens an interval of the dead. Beyond it
`Full`: they pass."""

PIN_MS_MAX = 24 * 3600 * 1000
"""A pin that nobody renews is dropped after this time."""

STAGES_MAX = 1_000
"""Stages of one shard; beyond it `Full`."""

STAGE_MS_MAX = 24 * 3600 * 1000
"""Staged rows that nobody publishes go after this time."""

STAGE_ROWS_MAX = 1_000_000
"""Rows of one stage, and of all that are published at once to a keyed queue: every key is looked up
in one decision."""

STAGE_BYTES_MAX = 4 * 1024 * 1024 * 1024
"""Bytes of one stage: they take room on the disk, and nobody sees them."""

HISTORIES_MAX = 1_000
"""Entries of a takeover table, besides those that a cursor names; Couchbase's 25 are gone after 25
unclean starts."""

CURSOR_RETAIN_MS_MAX = 7 * 24 * 3600 * 1000
"""A retaining cursor that does not move is dropped after this time, and told so."""

CURSOR_RETAIN_ROWS_MAX = 100_000_000
"""Settled rows that are kept for the slowest retaining cursor of a shard."""

KEEP_DELETES_MS = 24 * 3600 * 1000
"""Default of a queue's `keep_deletes`: how long a deleted key stays in the log as a delete."""

KEEP_DELETES_MS_MAX = 366 * 24 * 3600 * 1000
"""The longest `keep_deletes`: each second with deletes is a cell."""

# --- What waits ------------------------------------------------------------------------------

INBOX_COMMANDS_MAX = 10_000
"""Commands that wait for a shard's decider; beyond it `Full`."""

CALLS_AT_ONCE_MAX = 1_000
"""Commands that one call of a program has in an inbox at a time: it leaves room for others."""

INBOX_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of the commands that wait, over all shards."""

ENTRIES_AHEAD_MAX = 2
"""Entries that a group decides ahead: one is being synced, one waits; more adds delay alone."""

ANSWERS_IN_FLIGHT_MAX = INBOX_COMMANDS_MAX * ENTRIES_AHEAD_MAX
"""Answers that wait for commits: questions take no entry, so that nothing else bounds them."""

WAITERS_MAX = 10_000
"""Lease calls and followers that wait for messages, per shard; beyond it `Full`."""

WAIT_ENDS_STEP_MS = 10
"""Waits that end within this time end together: each end looks at all that wait."""

LEASE_WAIT_MS_MAX = 60_000
"""The longest time that a lease call waits for messages."""

WORK_IDLE_MS_MAX = 366 * 24 * 3600 * 1000
"""The longest time without a message after which a loop over work ends; None is for ever."""

WORKER_CONCURRENCY_MAX = 10_000
"""Messages that one worker works on at a time, and as many that it may lease ahead: each is a task,
and of a plain function a thread."""

WORKER_GRACE_MS_MAX = 24 * 3600 * 1000
"""The longest time that a stopped worker leaves to the functions that run."""

WORKER_FAILURES_MAX = 1_000_000
"""The most failures after which a message may be called poison; without a number it never is."""

WORKER_PAUSE_MS_MAX = 5_000
"""The longest pause of a worker before it asks again for what was answered with `Retry`: it begins
with what the error says and doubles."""

WORKER_LOOK_MS = 50
"""How often a worker that ends when idle looks whether its last functions have ended."""

SIGNALS_SECONDS = 1.0
"""How long a blocking call waits at a time: a signal may come just before, and is seen after it."""

READ_SECONDS_MAX = 60
"""How long another thread waits for rows: the event loop may be blocked by whoever reads them."""

RECORD_BYTES_TARGET = 8 * 1024 * 1024
"""A record takes no further entry beyond this size: larger ones only add delay."""

RECORD_SLACK_BYTES = 128 * 1024
"""What headers, cells and padding may add to the commands of a record."""

UNCOMMITTED_BYTES_MAX = 32 * 1024 * 1024
"""Uncommitted suffix of one commit group: it is appended again in one record before recycling."""

# --- Log, store, files -----------------------------------------------------------------------

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
"""A lone record up to this size is written on the loop while syncs are short."""

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

# --- What the store keeps in memory, and does in one step ------------------------------------

PLACES_STEP = 256
"""Places of rows that are read from the index at once: enough for a scan not to notice."""

SCAN_STEP_BYTES = 64 * 1024 * 1024
"""Rows that another thread reads before it asks the event loop where the next ones lie."""

READ_STEP_BYTES = 1024 * 1024
"""Cold rows that are read for a coroutine at once: others wait for the same thread."""

LOOK_AGAIN_MAX = 100
"""How often rows are looked up again that were moved meanwhile; more is damage, not chance."""

KNOWN_CHUNKS_MAX = 32_768
"""Chunks whose marks are kept in memory, over all shards: at most 1 KiB each, and per mark."""

DECODED_BLOCKS_MAX = 4_096
"""Blocks that are kept ready for single rows, who come by turns and jump among them; they lie over
maps and take 1 KiB each."""

FRESH_BLOCK_BYTES_MAX = 16 * 1024
"""A block up to this size is kept ready as it was written, without reading it from the log."""

FRESH_BLOCKS_MAX = 256
"""And so many of them: 4 MiB."""

WARM_BYTES_MAX = 256 * 1024 * 1024
"""Bytes that are taken to be in the page cache after they were read for a lease."""

WARM_PLACES_MAX = 65_536
"""Places of which that is known, some 300 bytes each: blocks may be small."""

READ_AHEAD_BYTES = 8 * 1024 * 1024
"""What is read ahead of workers: some 20 ms of the fastest ones."""

READ_AHEAD_PLACES_MAX = 64
"""Places that are looked up to read ahead; blocks may be small."""

PLACES_KNOWN_MAX = 1_024
"""Shards whose last place is remembered for the next lease call."""

PLACES_NEAR_MAX = 4_096
"""Places of one shard that are remembered: who gets rows by turns jumps among them."""

OPEN_FILES_MAX = 256
"""Sealed files that are kept mapped; opening one again costs a checksum per batch."""

SHARD_COLUMNS_MAX = 64
"""Constant columns that are kept, one per shard, 128 KiB each."""

RECLAIM_STEP = 16_384
"""Entries of the index that one checkpoint removes or moves beside its own writes: some 20 ms."""

FILE_SPANS_MAX = 32
"""Shards of a sealed file whose seqs are known without asking the index; files with more are
shared by small shards."""

FRONTS_STEP = 64
"""Shards of which one checkpoint learns how far their oldest rows are gone: 0.1 ms each, or more
where much has just gone."""

FRONT_PAGES_MAX = 8
"""Pages of places that are looked at for it; the next checkpoint goes on there."""

SMALL_FILE_BYTES = 16 * 1024 * 1024
"""Sealed files below this size are made into one, when there are too many of them."""

SMALL_FILES_MAX = 16
"""Small sealed files that are let be: each stuck message would otherwise get a file of its own."""
