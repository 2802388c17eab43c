"""Bounds of the command line: output sizes, read sizes, timeouts of child processes.

Limits of the engine are in `millrace.limits`.
"""

from __future__ import annotations

# --- Output ---------------------------------------------------------------------------

SHOWN_BYTES = 60
"""Bytes of a body, key or header that are shown, and the maximum number of characters as text."""

SHOWN_RANGES = 8
"""Ranges of a set of seqs that are shown as text."""

TABLE_ROWS = 1_000
"""Rows of a page: column widths are computed for each page."""

ROWS_DEFAULT = 100
"""Records or rows that are shown unless more are asked for."""

LISTED_MAX = 10
"""Numbers of files or shards that are listed in one line."""

HEX_BYTES = 16
"""Bytes on one line of a hexadecimal dump."""

IDENTITY_BYTES = 64
"""Bytes read of the file `identity`, which has half as many."""

CONTEXTS_BYTES_MAX = 1024 * 1024
"""Maximum size of the file of contexts."""

PROGRESS_SECONDS = 0.1
"""Interval between progress messages."""

COLUMN_CHARACTERS_MIN = 12
"""Minimum width of a long column on a narrow terminal."""

# --- Reads and writes --------------------------------------------------------

READ_BYTES = 1024 * 1024
"""Bytes of one read from a file or a pipe."""

WRITE_CHARACTERS = 64 * 1024
"""Characters that `follow` writes at once; shutdown is checked after each write."""

BATCH_LINES = 1_000
"""Maximum lines of one batch of `publish`. With producer numbers, batches are always cut here."""

BATCH_BYTES = 4 * 1024 * 1024
"""Maximum bytes of one batch of `publish`; a longer line is a batch of its own."""

# --- Settings of an opened folder ----------------------------------------------------------

SEGMENT_BYTES = 20 * 1024 * 1024
"""Size of WAL segments. Each open starts a new segment, and many short calls would leave many that
are nearly empty. Small segments take less room; the largest body still fits into one."""

FOLLOW_SECONDS = 60
"""Timeout of one wait for rows."""

# --- The commands of `work` ------------------------------------------------------------------

FAILED_MAX = 10_000
"""Maximum failed messages that `work --once` holds until its end; with more, the command is likely
broken."""

VARIABLE_BYTES_MAX = 128 * 1024 - 256
"""Maximum size of an environment variable on Linux, less room for its name and the zero byte."""

LOST_SECONDS = 1.0
"""Interval at which a running command's lease is checked for loss."""

KILL_SECONDS = 10.0
"""Time between SIGTERM and SIGKILL for a command."""
