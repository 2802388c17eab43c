"""A token bucket: an average rate with bursts after a pause; the time is passed in."""

from __future__ import annotations

import math


class TokenBucket:
    """A bucket that holds up to `burst` and gains `rate` per second.

    A request larger than the bucket passes when it is full, and the excess is owed: no request
    waits for ever.
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
        """Take `count` and return 0, or return the milliseconds after which to retry."""
        if now_ms > self._at_ms:
            self._level = min(self.burst, self._level + self.rate * (now_ms - self._at_ms) / 1000)
        # A clock that was set back does not delay anyone until it catches up.
        self._at_ms = now_ms
        needed = min(count, self.burst)
        if self._level >= needed:
            self._level -= count
            return 0
        return max(math.ceil((needed - self._level) * 1000 / self.rate), 1)

    def owe(self, count: float) -> None:
        """Subtract an amount that was not known before; later requests wait for it."""
        self._level -= count

    def is_full(self, now_ms: int) -> bool:
        """Return whether the bucket would be full now."""
        return self._level + self.rate * (now_ms - self._at_ms) / 1000 >= self.burst
