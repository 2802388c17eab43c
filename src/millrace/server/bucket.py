"""A rate that is kept on average, with a burst after a pause; the time is given."""

from __future__ import annotations

import math


class Bucket:
    """Holds up to `burst`, and gains `rate` a second.

    What is larger than all it can hold is let through when it is full, and paid for afterwards:
    nothing waits for ever.
    """

    __slots__ = ("_at_ms", "_level", "burst", "rate")

    def __init__(self, rate: float, burst: float, now_ms: int) -> None:
        assert rate > 0
        assert burst > 0
        self.rate = rate
        self.burst = burst
        self._level = float(burst)
        self._at_ms = now_ms

    def take(self, count: float, now_ms: int) -> int:
        """Take so much; returns 0, or after how many milliseconds to ask again if it was not."""
        if now_ms > self._at_ms:
            self._level = min(self.burst, self._level + self.rate * (now_ms - self._at_ms) / 1000)
        # A clock that was set back makes nobody wait for it to come round again.
        self._at_ms = now_ms
        needed = min(count, self.burst)
        if self._level >= needed:
            self._level -= count
            return 0
        return max(math.ceil((needed - self._level) * 1000 / self.rate), 1)

    def owe(self, count: float) -> None:
        """Take what was only known afterwards; the next one waits for it."""
        self._level -= count

    def is_full(self, now_ms: int) -> bool:
        """Whether it would be as new by now."""
        return self._level + self.rate * (now_ms - self._at_ms) / 1000 >= self.burst
