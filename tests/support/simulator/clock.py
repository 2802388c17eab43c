"""Virtual time: it passes only when nobody has anything to do.

Two clocks, as on a real machine: the loop's, which never falls, and the wall's, which may be set.
"""

from __future__ import annotations

BEGIN_MS = 1_700_000_000_000
"""The wall clock at the beginning of every run."""


class SimClock:
    """The time of one simulated machine, through all lives of its processes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """What the event loop calls the time."""
        self.offset_ms = 0
        """How far the wall clock was set forwards or backwards."""
        self.jumps = 0
        """How often it was set."""
        self._highest_ms = BEGIN_MS

    def now_ms(self) -> int:
        """Return the time of the wall clock in ms."""
        return BEGIN_MS + round(self.seconds * 1000) + self.offset_ms

    def jump(self, delta_ms: int) -> None:
        """Set the wall clock; timers of the loop do not notice."""
        self._highest_ms = max(self._highest_ms, self.now_ms())
        self.offset_ms += delta_ms
        self.jumps += 1

    def catch_up(self) -> None:
        """Set the wall clock to the latest time that it ever showed."""
        self.jump(max(0, self._highest_ms - self.now_ms()))

    def pass_to(self, seconds: float) -> None:
        """Let time pass up to a moment; to one in the past it does not."""
        self.seconds = max(self.seconds, seconds)
