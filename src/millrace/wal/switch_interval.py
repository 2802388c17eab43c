"""Shortens the interpreter's thread switch interval while an engine is open.

While another Python thread is busy, every sync waits for the GIL twice (Y1). So an engine shortens
the switch interval for as long as it is open; all engines of a process share that one setting.

Rule 1: the interval is only ever shortened: the shortest requested value counts.
Rule 2: when the last engine closes, the previous value is restored, unless other code has changed
the setting in between.
"""

from __future__ import annotations

import sys
import threading

_lock = threading.Lock()
_asked: list[SwitchIntervalLimit] = []
_before = 0.0
"""The interval before the first request."""
_set = 0.0
"""The interval that this module set last."""


class SwitchIntervalLimit:
    """A request for a switch interval of at most `seconds`, until it is ended."""

    def __init__(self, seconds: float) -> None:
        global _before
        self.seconds = seconds
        with _lock:
            if not _asked:
                _before = sys.getswitchinterval()
            _asked.append(self)
            _shorten(sys.getswitchinterval())

    def end(self) -> None:
        """Withdraw the request; ending twice changes nothing."""
        with _lock:
            if self in _asked:
                _asked.remove(self)
                if sys.getswitchinterval() == _set:
                    sys.setswitchinterval(_before)
                    _shorten(_before)


def _shorten(seconds: float) -> None:
    """Set the shortest requested interval, if it is below `seconds`."""
    global _set
    shortest = min((turns.seconds for turns in _asked), default=seconds)
    if shortest < seconds:
        sys.setswitchinterval(shortest)
        _set = sys.getswitchinterval()
