"""What waits, and for how long."""

from __future__ import annotations

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

WAITERS_GONE_SHARE = 4
"""Of those who wait at a shard, one in so many may be gone before the row is looked through."""

WAIT_ENDS_STEP_MS = 100
"""Waits that end within this time of others end together with the next ones: where thousands wait,
each that ends by itself wakes the process for itself alone, which costs as much again as the rest.
One that waits alone ends when its time is over."""

WAIT_ENDS_MIN = 1024
"""Ends of waits that are remembered although those who waited may have gone; where more wait, as
many again as wait."""

WAKE_STEP_MS = 5
"""Leases and delays that end so soon after others wake those who wait for them together: where
thousands end every second, a batch for each millisecond would be most of the work."""

LEASE_WAIT_MS_MAX = 600_000
"""The longest time that a lease call waits for messages."""

WAIT_STEP_MS = 60_000
"""For how long those ask at a time who wait for ever: what lies between may forget a connection on
which nothing was said for longer."""

FOLDER_TAKEN_SECONDS = 10.0
"""How long a folder is waited for that another process took no longer ago than that: a verb of the
command line has ended by then, and a server that starts lets others in."""

FOLDER_KNOCK_SECONDS = 0.05
"""How often a folder in use is tried again: sooner than people notice."""

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
