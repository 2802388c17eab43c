"""Rates: so many messages per second on average, and no more at once than a burst.

What was handed out is paid for, one interval after the other; `paid_us` says up to when. A burst
may be handed out ahead of its time. Time comes with the command, and `paid_us` lies in a cell: a
crash gives nobody a fresh burst.
"""

from __future__ import annotations

PER_SECOND_MAX = 1_000_000
"""Messages per second that a queue or a group may be limited to: one per microsecond."""

INTERVAL_US_MAX = 24 * 3600 * 1_000_000
"""And at least one a day."""

BURST_MAX = 1_000_000
"""Messages that may be handed out at once after a pause."""

WAIT_MS_MAX = 10 * 60 * 1000
"""So long a group waits before its rate is looked at again: the queue's may have been raised."""


def allowed(paid_us: int, now_ms: int, rate_us: int, burst: int) -> int:
    """How many may be handed out now."""
    now_us = 1000 * now_ms
    return (now_us + burst * rate_us - max(paid_us, now_us)) // rate_us


def paid_after(paid_us: int, now_ms: int, rate_us: int, count: int) -> int:
    """Up to when is paid once so many more are handed out."""
    return max(paid_us, 1000 * now_ms) + count * rate_us


def owed(paid_us: int, now_ms: int, rate_us: int, burst: int) -> int:
    """Up to when is paid under this rate: no more than a burst is ever handed out ahead."""
    return min(paid_us, 1000 * now_ms + burst * rate_us) if rate_us else 0


def ready_ms(paid_us: int, rate_us: int, burst: int) -> int:
    """The first millisecond at which one may be handed out."""
    return -(((burst - 1) * rate_us - paid_us) // 1000)
