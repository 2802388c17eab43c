"""Sinks, and lake tables."""

from __future__ import annotations

SINK_CONNECT_SECONDS = 10
"""Timeout of connecting to a sink; it is retried later."""

SINK_ANSWER_SECONDS = 60
"""Timeout of a statement or request; the sink is then opened again."""

SINK_COMMIT_SECONDS = 3600
"""Timeout of a commit: a merge of millions of rows takes its time, and a longer one hangs."""

SINK_LOCK_SECONDS = 2
"""Time that cleaning waits for a table in use; it is cleaned next time."""

SINK_IDLE_SECONDS = 10
"""Idle timeout of the owner of a flow's lock, who sends one statement after another. A paused run
is cut off after it, before its successor gives up."""

SINK_LANES = 16
"""Lanes by which rows of one key go to one writer; more than most runs have writers."""

SINK_STAGED_SECONDS = 24 * 3600
"""Age after which staged rows are dropped if they were not committed: no run takes as long for a
span."""

SINK_READ_ROWS = 10_000
"""Rows that are read back at a time, so that no table is held in memory."""

REDIS_SCRIPT_ROWS = 5_000
"""Rows that one script applies while Redis serves no other client: some hundredths of a second. A
smaller span becomes visible atomically."""

REDIS_PIPELINE_ROWS = 1_000
"""Rows that are sent for staging at a time."""

SEARCH_BULK_BYTES = 4 * 1024 * 1024
"""Size of a bulk request; servers refuse more than 100 MB, and recommend a few."""

SEARCH_TOMBSTONE_SECONDS = 24 * 3600
"""Time for which a deleted document keeps its version; a run that resumes later may bring it back.
"""

SEARCH_PAGE_ROWS = 1_000
"""Documents that one request reads back; servers refuse more than 10,000."""

CARRY_ROWS_MAX = 10_000
"""Seqs in one span of `follow --into`; a larger snapshot is split."""

CONSOLE_ROWS = 20
"""Default number of printed rows of a span."""

CONSOLE_ROWS_MAX = 1_000
"""Most printed rows of a span: they are transferred with the commit, and read by people."""

CONSOLE_WIDTH = 60
"""Default number of printed characters of a value."""

CONSOLE_WIDTH_MAX = 10_000
"""Most printed characters of a value; longer ones are not readable."""

SINK_STAGE_BYTES = 4 * 1024 * 1024
"""Bytes of rows that are staged in a queue at a time: a record holds more."""


# --- Lake tables ---

LAKE_PART_BYTES = 128 * 1024 * 1024
"""Size at which a file of an append-only table is closed: large files are scanned fastest."""

LAKE_LANE_BYTES = 32 * 1024 * 1024
"""File size of tables with replaced rows: one changed row causes its whole file to be rewritten."""

LAKE_GROUP_BYTES = 32 * 1024 * 1024
"""Bytes of rows that are buffered in memory and written as one row group."""

LAKE_GROUP_ROWS = 1024 * 1024
"""Rows of one row group: readers process row groups in parallel."""

LAKE_SPOOL_BYTES = 64 * 1024 * 1024
"""Bytes that one `stage` keeps in memory while it partitions rows by lanes; beyond it they are
spooled to disk."""

LAKE_SMALL_FILES = 8
"""Small files of a lane, below a quarter of the usual size. With more, the next rewrite includes
them all, so that a lane has few files even if spans are small."""

LAKE_SYNCS = 8
"""Files that are synced concurrently: disks do several in the time of one."""

LAKE_LANES = 16
"""Default number of lanes of a table, which as many tasks can write concurrently."""

LAKE_LANES_MAX = 4096
"""Most lanes of a table: each has at least one file."""

LAKE_COMMIT_TRIES = 32
"""Attempts of a commit while others write to the same table."""

LAKE_TOKEN_BYTES = 8 * 1024
"""Bytes that `stage` returns itself; a longer result is written beside the table."""

LAKE_STAGED_SECONDS = 7 * 24 * 3600
"""Age after which staged and uncommitted files are deleted; no span takes a week."""

LAKE_COMPACT_FILES = 64
"""Small files of an append-only table from which `clean` compacts them."""

LAKE_SNAPSHOTS = 100
"""Snapshots of our commits that an Iceberg table keeps, up to twice as many; commits become slower
with their number."""

LAKE_CHECKPOINT_COMMITS = 32
"""Entries of a file log after which it is checkpointed: opening reads no more than these."""
