"""How long one thread may keep the interpreter while others wait: one number for a whole process.

Beside a busy Python thread, every sync waits for its turn twice (Y1). So an engine shortens the
turns, for as long as it is open; several engines in one process share what is one setting.

Rule 1: turns are only ever shortened: the shortest that was asked for counts.
Rule 2: when the last engine ends, what was set before is set again, unless somebody else has
changed it meanwhile.
"""

from __future__ import annotations

import sys
import threading

_lock = threading.Lock()
_asked: list[Turns] = []
_before = 0.0
"""What was set when the first of them began."""
_set = 0.0
"""What was last set here."""


class Turns:
    """A wish for turns of at most so many seconds, until it is ended."""

    def __init__(self, seconds: float) -> None:
        global _before
        self.seconds = seconds
        with _lock:
            if not _asked:
                _before = sys.getswitchinterval()
            _asked.append(self)
            _shorten(sys.getswitchinterval())

    def end(self) -> None:
        """Take the wish back; twice changes nothing."""
        with _lock:
            if self in _asked:
                _asked.remove(self)
                if sys.getswitchinterval() == _set:
                    sys.setswitchinterval(_before)
                    _shorten(_before)


def _shorten(seconds: float) -> None:
    """Set the shortest turns that anyone asks for, if they are shorter than these."""
    global _set
    shortest = min((turns.seconds for turns in _asked), default=seconds)
    if shortest < seconds:
        sys.setswitchinterval(shortest)
        _set = sys.getswitchinterval()
