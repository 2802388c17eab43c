"""How much the command line shows, reads and holds at once: not bounds of the engine.

Those of the engine are in `millrace.limits`.
"""

from __future__ import annotations

# --- What is shown ---------------------------------------------------------------------------

SHOWN_BYTES = 60
"""Bytes of a body, key or header that are shown; as text, at most so many characters."""

SHOWN_RANGES = 8
"""Ranges of a set of seqs that are shown as text."""

TABLE_ROWS = 1_000
"""Lines of a table whose widths are found together."""

ROWS_DEFAULT = 100
"""Records or rows that are shown unless more are asked for."""

LISTED_MAX = 10
"""Numbers of files or shards that are listed in one line."""

HEX_BYTES = 16
"""Bytes on one line of a hexadecimal dump."""

IDENTITY_BYTES = 64
"""Of the file `identity`, which has half as many."""

CONTEXTS_BYTES_MAX = 1024 * 1024
"""Of the file with the contexts."""

PROGRESS_SECONDS = 0.1
"""How often progress is told."""

COLUMN_CHARACTERS_MIN = 12
"""Characters that a long column is left with on a narrow terminal."""

# --- What is read and written at once --------------------------------------------------------

READ_BYTES = 1024 * 1024
"""What is read at once of a file or a pipe."""

WRITE_CHARACTERS = 64 * 1024
"""Lines that `follow` writes at once; a stop is noticed between them."""

BATCH_LINES = 1_000
"""Lines that `publish` sends at once. With a producer's numbers, lines are always cut here."""

BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of the lines that `publish` sends at once; a longer line goes alone."""

# --- What the folder is opened with ----------------------------------------------------------

SEGMENT_BYTES = 20 * 1024 * 1024
"""Each opening begins a new segment of the log, and many short calls would leave many that are all
but empty. Smaller ones take less room; the largest body still fits into one."""

FOLLOW_SECONDS = 60
"""How long the engine is asked to wait for rows at once."""

# --- The commands of `work` ------------------------------------------------------------------

FAILED_MAX = 10_000
"""Failed messages that `work --once` holds until its end; with more, something else is wrong."""

VARIABLE_BYTES_MAX = 128 * 1024 - 256
"""Linux takes no longer variable, its name and a zero byte included."""

LOST_SECONDS = 1.0
"""How often it is looked whether a running command's message is still its own."""

KILL_SECONDS = 10.0
"""How long a command that was asked to end may take."""
