"""Spark, batch jobs, pipelines, sinks and lake tables."""

from __future__ import annotations

JAVA_VERSION_MIN = 17
"""Version of Java that Spark 4 requires."""

JAVA_TRIED_MAX = 32
"""Java installations whose version is queried; each takes a quarter of a second."""

JAVA_ANSWER_SECONDS_MAX = 30
"""Timeout of such a query, even on a busy machine."""

SPARK_COMPILE_SECONDS_MAX = 120
"""Timeout of compiling the Java classes for Spark, which takes a second."""

SPARK_PIN_SECONDS = 24 * 3600
"""Time for which the rows of a stream stay pinned after its last request: a job that was stopped
for a day finds its open batch unchanged."""

SPARK_BATCH_PIN_SECONDS = 3600
"""Pin of the rows of a batch job, whose end is not reported."""

SPARK_WAIT_SECONDS = 0.1
"""Wait of a stream without new rows before it reports so; otherwise Spark would poll a hundred
times a second."""

SPARK_PARTITION_BYTES = 128 * 1024 * 1024
"""Default size of one task's rows: a second or less."""

SPARK_PARTITIONS_MAX = 10_000
"""Tasks of one read; Spark plans each of them on the driver."""

SPARK_BATCH_ROWS = 16_384
"""Rows per batch given to Spark: more gained nothing, and each batch is copied as a whole."""

SPARK_BATCH_BYTES = 1024 * 1024
"""Bytes per batch given to Spark; smaller batches are joined up to it."""

SPARK_WEIGHED_ROWS = 1_000
"""First pending rows of each shard that are weighed to convert a limit in bytes to rows."""

SPARK_KEYS_MAX = 10_000
"""Keys of one read; for more, use a join."""

OWNER_STARTS_MAX = 3
"""Attempts to start a process that shares a folder."""

OWNER_IDLE_SECONDS = 10.0
"""Idle time without connections after which this process ends."""


# --- Batch jobs ----------------------------------------------------------------------------------

JOB_PIN_SECONDS = 24 * 3600.0
"""Longest pin of the rows that a job reads: the longest possible."""

JOB_PATIENCE_SECONDS = 60.0
"""Time for which a job retries an unresponsive sink."""

JOB_WATCH_SECONDS = 0.5
"""Interval of updates of a job's progress."""

LOAD_FILES_LOOKED = 16
"""Files whose columns are checked before Spark starts; Spark itself checks the others."""

LOAD_HEAD_BYTES = 64 * 1024
"""Bytes of a CSV file within which its first line must end to be checked before Spark starts."""

AUDIT_TRIES = 5
"""Attempts of an audit to read counters and snapshot at the same moment, while the queue is
unchanged; after them it uses the counters before and after."""

AUDIT_GAPS_SHOWN = 10
"""Gaps of a shard that are listed; all of them are counted."""

REPORT_KEYS = 20
"""Hottest keys and groups in a report."""

REPORT_BARS = 120
"""Time steps in a plot: each takes some pixels."""

REDRIVE_JOB_MESSAGES_MAX = 5_000
"""Dead letters that Spark changes at a time, and that are moved in one transaction: fewer would
cost more tasks, and the driver holds all their bodies."""

REDRIVE_JOB_LEASE_SECONDS = 600.0
"""Lease of these: Spark may be slow, and after a crash they return."""

REDRIVE_JOB_SHOWN = 10
"""Rows that a dry run shows, before and after the change."""


# --- Pipelines -----------------------------------------------------------------------------------

PIPELINE_SMALL_ROWS = 10_000
"""Rows of a span that the driver reads, changes and stages itself; larger ones are distributed to
executors."""

PIPELINE_SMALL_BYTES = 64 * 1024 * 1024
"""Bytes of such a span: its rows are in memory twice, as Arrow and in the JVM."""

PIPELINE_PATIENCE_SECONDS = 60.0
"""Default time for which an unresponsive sink is retried."""

PIPELINE_BACKOFF_SECONDS = 0.1
"""First backoff before a sink is retried; it doubles each time."""

PIPELINE_BACKOFF_SECONDS_MAX = 5.0
"""Longest such backoff, so that a sink that has recovered is noticed soon."""

PIPELINE_SILENT_SECONDS = 2.0
"""Time after which an unresponsive sink is reported to the user; most recover earlier."""

PIPELINE_WAIT_SECONDS = 0.5
"""Long-poll wait for rows of the queue; a stop is noticed in between."""

PIPELINE_PIN_SECONDS = 3600.0
"""Time for which the rows of a span stay pinned without a renewal."""

LOOKUP_PINS = 500
"""Pins of a table that a stateful pipeline keeps at a time, one per batch. A queue has room for
900."""

LOOKUP_PIN_SECONDS_MIN = 60.0
"""Shortest duration of each: a batch reads its tables first, and Spark runs fewer than ten batches
per second."""

PIPELINE_TELL_SECONDS = 2.0
"""Interval at which a run saves its progress for observers."""

PIPELINE_DIFFERENCES_MAX = 100
"""Differing rows that `verify` lists; the others are counted."""

PIPELINE_VERIFY_KIB = 64 * 1024
"""Memory for the digests that `verify` compares; the rest is on disk."""

PIPELINE_VERIFY_PIN_SECONDS = 24 * 3600.0
"""Pin of the queue while `verify` compares: the longest possible."""

PIPELINE_CLEAN_SECONDS = 3600.0
"""Interval at which a run has its sinks drop remnants and compact small files."""

PIPELINE_LOST_MAX = 100
"""Changes of its cursor by others after which a run ends: two runs would compete for ever."""

PIPELINE_WATCH_SECONDS = 1
"""Step of waiting for a Spark query, in whole seconds."""

PIPELINE_VERIFY_TRIES = 10
"""Checks of `verify` that no row has arrived since the sinks were brought up to date."""


# --- Sinks, and lake tables ----------------------------------------------------------------------

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


# --- Lake tables ---------------------------------------------------------------------------------

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
