"""Messages that wait apart, and groups that take turns."""

from __future__ import annotations

ASIDE_CELL_SEQS_MAX = 1_024
"""Messages of one cell of those that wait apart: two bytes each, where they lie apart."""

WINDOW_CELLS = 1_024
"""Cells of messages that wait apart which are asked for at once, some 4 ms; up to twice as many
are held of each kind, some 500 KiB."""

REORDERED_MESSAGES_MAX = 4_096
"""Messages of a queue whose order is changed: each is written down in the batch that does it, some
80 KB in all, or 400 KB where each has a lease of its own."""

RING_TURNS = 10_240
"""Turns of groups that are asked for at once, and that one lease call takes at most; up to twice as
many are held, some 1 MiB."""

RING_PAGE_TURNS = 128
"""Turns of one cell: about 1 KiB, written anew when others join."""

GROUPS_KNOWN = 65_536
"""Groups whose cells are remembered, of those that were looked at last; up to twice as many are
held, some 30 MiB."""

GROUPS_AHEAD = 1_024
"""Turns whose groups are looked at together: a look takes some 3 µs, and a call 50."""

TURN_SEQS_MAX = 64
"""Messages that the cell of a group names itself: it is written anew with each of them."""

GROUP_CELL_SEQS_MAX = 192
"""Messages of one cell of those that come after them: it fits into `CELL_BYTES_MAX`."""

GROUPS_PASSED_MAX = 1_024
"""Turns that one batch finds to be of no use (blocked, limited, or without messages), and messages
of groups that have died: some 20 µs each; the next one goes on."""

THIN_GROUPS_AHEAD = 256
"""Groups that are looked at together where messages that wait may have died."""

THIN_DEPTH = 8
"""Messages of each of them, at least."""

THIN_SEQS_MAX = 8_192
"""Messages that are looked at together, beyond which no further group is looked at."""

THIN_RANGES_MAX = 128
"""Ranges of `CHUNK_ROWS` rows that the store is asked for together: some 50 µs each."""

PROMOTE_CELLS_MAX = 4_096
"""Cells of delayed messages whose time has come that one batch makes ready, or messages that enter
their groups; the next goes on."""

SWEEP_CELLS_MAX = 4_096
"""Cells of purged messages that one batch drops; the next one goes on."""

LOOK_AT_CELLS_MAX = 64
"""Cells of a keyed queue from which one lease call takes: their rows are asked for one by one."""

LOOK_AT_ROWS_MAX = 1_024
"""And rows of them: some 40 ms."""

FOUND_DEAD_MAX = 4_096
"""Of those rows, how many one batch finds dead; the next one goes on."""
