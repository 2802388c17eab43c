"""Bounds of sinks, and of carrying rows into them."""

from __future__ import annotations

SINK_CONNECT_SECONDS = 10
"""A place that does not take a connection by then is asked again later, not waited for."""

SINK_ANSWER_SECONDS = 60
"""A statement or request that is not answered by then counts as lost; the sink is opened again."""

SINK_COMMIT_SECONDS = 3600
"""A merge of millions of rows takes its time; one that takes longer has hung."""

SINK_LOCK_SECONDS = 2
"""How long cleaning waits for a table that somebody else still uses; it is cleaned next time."""

SINK_IDLE_SECONDS = 10
"""Who holds the lock of a flow asks one statement after another; a run that was stopped in between
is cut off after so long, before its successor's patience is over."""

SINK_LANES = 16
"""Rows of one key come to one writer; more lanes than most runs have writers."""

SINK_STAGED_SECONDS = 24 * 3600
"""What was staged and not committed by then is dropped: no run takes as long for a span."""

SINK_READ_ROWS = 10_000
"""Rows that are read back at a time, so that no table is held in memory."""

REDIS_SCRIPT_ROWS = 5_000
"""Rows that one script applies, while nobody else is served: a few hundredths of a second. A span
with fewer is seen whole or not at all."""

REDIS_PIPELINE_ROWS = 1_000
"""Rows that are sent to be staged at a time."""

SEARCH_BULK_BYTES = 4 * 1024 * 1024
"""One bulk request; servers refuse more than 100 MB, and like a few."""

SEARCH_TOMBSTONE_SECONDS = 24 * 3600
"""How long a deleted document keeps its version; a run that wakes later may bring it back."""

SEARCH_PAGE_ROWS = 1_000
"""Documents that one request reads back; servers refuse more than 10,000."""

CARRY_ROWS_MAX = 10_000
"""Seqs in one span of `follow --into`: a larger snapshot is cut into several."""

CONSOLE_ROWS = 20
"""Rows of one span that are printed, unless the setting says otherwise."""

CONSOLE_ROWS_MAX = 1_000
"""They travel with the commit, and are meant for eyes."""

CONSOLE_WIDTH = 60
"""Characters of a value that are printed, unless the setting says otherwise."""

CONSOLE_WIDTH_MAX = 10_000
"""What is longer is not for eyes."""

SINK_STAGE_BYTES = 4 * 1024 * 1024
"""Bytes of rows that are staged in a queue at a time: a record holds more."""
