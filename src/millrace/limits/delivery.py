"""Commands in flight, long polls, workers, order, dead letters; topics and their filters."""

from __future__ import annotations

INBOX_COMMANDS_MAX = 10_000
"""Commands in the inbox of a commit loop; beyond it `Full`."""

CALLS_AT_ONCE_MAX = 1_000
"""Commands that one call of a program keeps in an inbox, which leaves room for others."""

INBOX_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of the commands in an inbox, over all shards."""

ENTRIES_AHEAD_MAX = 2
"""Uncommitted entries of a group: one is being synced, one waits; more would only add delay."""

ANSWERS_IN_FLIGHT_MAX = INBOX_COMMANDS_MAX * ENTRIES_AHEAD_MAX
"""Answers that wait for commits: queries need no entry, so that nothing else bounds them."""

WAITERS_MAX = 10_000
"""Long polls per shard; beyond it `Full`."""

WAITERS_GONE_SHARE = 4
"""Abandoned long polls of a shard are removed when they exceed one part in this number."""

WAIT_ENDS_STEP_MS = 100
"""Long polls that time out within this interval are answered together: with thousands of them,
waking the process for each would double the cost. A single one is answered on time."""

WAIT_ENDS_MIN = 1024
"""Deadlines of ended long polls that are kept before they are removed; with more waiting polls, as
many as those."""

WAKE_STEP_MS = 5
"""Expired leases and delays within this interval wake long polls together: with thousands per
second, a batch for each millisecond would be most of the work."""

LEASE_WAIT_MS_MAX = 600_000
"""Longest wait of a lease call."""

WAIT_STEP_MS = 60_000
"""Interval of the repeated calls of an unbounded wait: proxies drop connections that are idle for
longer."""

FOLDER_TAKEN_SECONDS = 10.0
"""Time to wait for a folder that another process opened less than this time ago: a command has
ended by then, and a server shares the folder."""

FOLDER_KNOCK_SECONDS = 0.05
"""Interval of attempts to open a folder in use: shorter than people notice."""

WORK_IDLE_MS_MAX = 366 * 24 * 3600 * 1000
"""Longest idle time after which a worker loop ends; None is for ever."""

WORKER_CONCURRENCY_MAX = 10_000
"""Concurrent messages of one worker, and the most it may lease ahead: each is a task, and a thread
if the function blocks."""

WORKER_GRACE_MS_MAX = 24 * 3600 * 1000
"""Longest grace period of a stopped worker for running functions."""

WORKER_FAILURES_MAX = 1_000_000
"""Highest number of failures before a message is called poison; without a number it never is."""

WORKER_PAUSE_MS_MAX = 5_000
"""Longest backoff of a worker after `Retry`; it begins with the delay of the error and doubles."""

WORKER_LOOK_MS = 50
"""Interval at which a worker that ends when idle checks for the end of its last functions."""

SIGNALS_SECONDS = 1.0
"""Step of a blocking wait: a signal that arrives just before is handled after it."""

READ_SECONDS_MAX = 60
"""Timeout of reads from another thread: the caller itself may block the event loop."""

RECORD_BYTES_TARGET = 8 * 1024 * 1024
"""Target size of a WAL record; larger ones only add delay."""

RECORD_SLACK_BYTES = 128 * 1024
"""Bytes that headers, cells and padding may add to the commands of a record."""

UNCOMMITTED_BYTES_MAX = 32 * 1024 * 1024
"""Uncommitted suffix of one commit group: it is appended again in one record before recycling."""


# --- Deferred messages and message groups --------------------------------------------------------

ASIDE_CELL_SEQS_MAX = 1_024
"""Messages per cell of deferred messages: two bytes each if they are scattered."""

WINDOW_CELLS = 1_024
"""Cells of deferred messages that are read at once, about 4 ms; up to twice as many of each kind
are in memory, about 500 KiB."""

REORDERED_MESSAGES_MAX = 4_096
"""Messages of a queue whose order is changed: each is recorded in the same batch, about 80 KB in
all, or 400 KB if each has a lease of its own."""

RING_TURNS = 10_240
"""Turns of groups that are read at once, and the most that one lease call takes; up to twice as
many are in memory, about 1 MiB."""

RING_PAGE_TURNS = 128
"""Turns per cell: about 1 KiB, rewritten when others join."""

GROUPS_KNOWN = 65_536
"""Cached group cells, by their last use; up to twice as many are in memory, about 30 MiB."""

GROUPS_AHEAD = 1_024
"""Turns whose groups are looked up together: a lookup takes about 3 µs, and a call 50."""

TURN_SEQS_MAX = 64
"""Messages in the cell of a group itself, which is rewritten with each of them."""

GROUP_CELL_SEQS_MAX = 192
"""Messages per overflow cell of a group, which fits into `CELL_BYTES_MAX`."""

GROUPS_PASSED_MAX = 1_024
"""Useless turns that one batch skips (blocked, limited, or without messages), and dead messages of
groups: about 20 µs each; the next batch goes on."""

THIN_GROUPS_AHEAD = 256
"""Groups that are examined together for dead messages."""

THIN_DEPTH = 8
"""Messages of each such group that are examined, at least."""

THIN_SEQS_MAX = 8_192
"""Messages that are examined together, beyond which no further group is added."""

THIN_RANGES_MAX = 128
"""Ranges of `CHUNK_ROWS` rows in one request to the store: about 50 µs each."""

PROMOTE_CELLS_MAX = 4_096
"""Cells of due delayed messages that one batch makes ready, or messages that enter their groups;
the next batch goes on."""

SWEEP_CELLS_MAX = 4_096
"""Cells of purged messages that one batch drops; the next batch goes on."""

LOOK_AT_CELLS_MAX = 64
"""Cells of a keyed queue that one lease call examines: their rows are looked up one by one."""

LOOK_AT_ROWS_MAX = 1_024
"""Rows of these cells: about 40 ms."""

FOUND_DEAD_MAX = 4_096
"""Dead rows among them that one batch handles; the next batch goes on."""


# --- Dead letters and redrive --------------------------------------------------------------------

BURY_MESSAGES_MAX = 500
"""Dead letters that are moved at once: about 20 ms."""

BURY_BYTES_MAX = 1024 * 1024
"""Bytes of dead letters that are moved at once; a larger one is moved alone."""

REDRIVE_MESSAGES_MAX = 500
"""Dead letters that a redrive leases at a time, and moves in one or a few transactions."""

REDRIVE_LEASE_MS = 60_000
"""Lease of these: it is extended during the redrive, and expires after a crash."""

REDRIVE_RATE_MAX = 1_000_000
"""Highest rate of a redrive in messages per second; a higher one has no effect."""


# --- Topics, subscriptions, filters and forwarding -----------------------------------------------

TOPIC_NAME_CHARS_MAX = 256
"""Characters of a topic's name, as in SNS. With its space, and with the server's note of its owner,
it is a key."""

SUBSCRIPTIONS_MAX = 1_000
"""Subscriptions of one topic: each has a cell that is rewritten with each forwarding."""

FILTER_BYTES_MAX = 8 * 1024
"""Bytes of a stored filter, which is part of that cell."""

FILTER_TESTS_MAX = 256
"""Tests of one filter, including those within `anything-but`: an SNS policy has 150 combinations of
values, which may be a few more tests."""

FILTER_DEPTH_MAX = 32
"""Nesting depth of the fields of a body, and of the alternatives of a filter: they are read
recursively."""

FILTER_PATH_NAMES_MAX = 32
"""Names of a path into a body, separated by dots or mappings: each two of them may be the name of
one field, and all such names are looked up. Beyond it, a dot is part of a name."""

FILTER_PATH_CHARS_MAX = 1024
"""Characters of such a path: its names are joined for each object searched, which takes about 30 µs
at this length. Beyond it, too, a dot is part of a name."""

FILTER_STARS_MAX = 10
"""Wildcard characters of one pattern: each is a search through the value."""

FILTER_BODY_BYTES_MAX = 1024 * 1024
"""Bytes of a body in a topic with filters on bodies: parsing so much JSON takes about 10 ms per
filter."""

FILTER_BODY_VALUES_MAX = 100_000
"""Commas and brackets of such a body, an upper bound of its values, which are searched for each
field of a filter. SNS has bodies of 256 KiB, with far fewer."""

FILTER_WORK_MAX = 50_000
"""Tests of short values per message and filter, about 10 ms: 250 tests for each of 200 values of an
array. A message that needs more passes."""

FILTER_STEP_WORK = 20_000
"""Tests after which other tasks of the event loop run."""

SUBSCRIPTION_NOTES_BYTES_MAX = 16 * 1024
"""Bytes of a subscription's notes, which are part of its cell."""

TOPIC_LAG = 1_000_000
"""Default number of rows that wait for a topic's slowest subscription. Beyond it the topic refuses
publishes, because accepted rows must not be dropped."""

TOPIC_LAG_MAX = 1_000_000_000
"""Highest value of this setting."""

FORWARD_BYTES_MAX = 1024 * 1024
"""Bytes that are forwarded to one queue at once; a larger block goes alone."""

FORWARD_ROUND_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that a topic forwards to all its queues in one round; the others are in the next one."""

FORWARD_PARCELS_MAX = 32
"""Subscriptions that a topic serves in one round: the queue of each may have to be loaded; about 30
ms in all."""

FORWARD_MEMORY_BYTES_MAX = 16 * 1024 * 1024
"""Cached new rows of a topic for its subscriptions; older ones are read from the store."""

FORWARD_RESULTS_MAX = 256
"""Latest parcels of a topic whose seqs in the queues are remembered."""

ARRIVAL_SECONDS_MAX = 20
"""Timeout of a publish through Dynamiq's routes that waits for its ids in all queues. That takes
some milliseconds unless a queue is full, and clients wait for half a minute or a minute."""
