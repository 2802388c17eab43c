"""What a shard remembers."""

from __future__ import annotations

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
(pins, stages, retaining cursors, deletes, messages that are over in some time) stay beside them,
or it would not go."""

UNSEEN_STEP = 64
"""Shards that nobody has used since the start which one tick looks into."""

TICK_ENDS_MAX = 1_000
"""Things of each kind that one batch ends because of their age; the next one goes on."""

TICK_DELETES_MAX = 65_536
"""Deletes that one batch ends because of their age: two bytes each, where they lie apart."""

CURSORS_MAX = 100_000
"""Cursors of one shard; an idle one is a cell."""

WHOLE_ROWS_STEP = 1_048_576
"""Rows whose deaths are read at once when a retaining cursor is to begin at a position."""

PINS_MAX = 1_000
"""Pins of one shard; each opens an interval of the dead. Beyond it
`Full`: they pass."""

PLAIN_PINS_MAX = 900
"""Of them, those that no cursor reads: who looks at a queue often, and lets nothing go, must not
stop those who follow it."""

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
