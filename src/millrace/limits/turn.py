"""Messages that wait apart, and groups that take turns."""

from __future__ import annotations

ASIDE_CELL_SEQS_MAX = 1_024
"""Messages of one cell of those that wait apart: two bytes each, where they lie apart."""

WINDOW_CELLS = 1_024
"""Cells of messages that wait apart which are asked for at once, some 4 ms; up to twice as many
are held of each kind, some 500 KiB."""

RING_TURNS = 8_192
"""Turns of groups that are asked for at once; up to twice as many are held, some 3 MiB."""

TURN_SEQS_MAX = 64
"""Messages that the cell of a group names itself: it is written anew with each of them."""

GROUP_CELL_SEQS_MAX = 256
"""Messages of one cell of those that come after them: about 1 KiB."""

GROUPS_PASSED_MAX = 4_096
"""Turns that one lease call finds to be of no use: blocked, limited, or without messages."""

PROMOTE_CELLS_MAX = 4_096
"""Cells of delayed messages whose time has come that one batch makes ready; the next goes on."""

SWEEP_CELLS_MAX = 4_096
"""Cells of purged messages that one batch drops; the next one goes on."""

LOOK_AT_CELLS_MAX = 64
"""Cells of a keyed queue from which one lease call takes: their rows are asked for one by one."""

LOOK_AT_ROWS_MAX = 1_024
"""And rows of them: some 40 ms."""

FOUND_DEAD_MAX = 4_096
"""Of those rows, how many one batch finds dead; the next one goes on."""
