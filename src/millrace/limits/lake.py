"""Lakes: the files of tables, and how they are rewritten."""

from __future__ import annotations

LAKE_PART_BYTES = 128 * 1024 * 1024
"""A file of a table that is only appended to is closed when it has so many bytes: large files are
scanned fastest."""

LAKE_LANE_BYTES = 32 * 1024 * 1024
"""The same where rows are replaced: one row that changes has its whole file written anew."""

LAKE_GROUP_BYTES = 32 * 1024 * 1024
"""Rows that are gathered in memory before they are written as one row group."""

LAKE_GROUP_ROWS = 1024 * 1024
"""The same in rows: readers work in row groups side by side."""

LAKE_SPOOL_BYTES = 64 * 1024 * 1024
"""Rows that one `stage` keeps in memory while it parts them by lanes; beyond, they wait on disk."""

LAKE_SMALL_FILES = 8
"""Files of a lane below a quarter of the usual size; when there are more, the next rewrite takes
them all in, so that a lane has few files however small the spans are."""

LAKE_SYNCS = 8
"""Files that are synced at once: disks do several in the time of one."""

LAKE_LANES = 16
"""Lanes of a table unless it says otherwise: so many tasks may write it at once."""

LAKE_LANES_MAX = 4096
"""Each lane has a file at least."""

LAKE_COMMIT_TRIES = 32
"""How often a commit is tried while others write to the same table."""

LAKE_TOKEN_BYTES = 8 * 1024
"""What `stage` hands on itself; what is longer is written beside the table."""

LAKE_STAGED_SECONDS = 7 * 24 * 3600
"""Age from which what was staged and never committed is deleted; no span takes a week."""

LAKE_COMPACT_FILES = 64
"""Small files of a table that is only appended to from which `clean` joins them."""

LAKE_SNAPSHOTS = 100
"""Snapshots of our commits that an Iceberg table keeps, up to twice as many; a commit takes the
longer the more there are."""

LAKE_CHECKPOINT_COMMITS = 32
"""Entries of a log of files after which it is summed up: an opening reads no more than these."""
