"""A token bucket: an average rate of messages per second with a burst.

Deliveries are paid for one interval after the other; `paid_us` is the time up to which they are
paid. A burst may be delivered ahead of its time. The time comes with the command, and `paid_us`
lies in a cell, so that a crash gives nobody a fresh burst.
"""

from __future__ import annotations

PER_SECOND_MAX = 1_000_000
"""Highest rate limit of a queue or a group: one message per microsecond."""

INTERVAL_US_MAX = 24 * 3600 * 1_000_000
"""Longest interval between messages: at least one per day."""

BURST_MAX = 1_000_000
"""Largest burst: messages that may be delivered at once after a pause."""

WAIT_MS_MAX = 10 * 60 * 1000
"""Longest wait of a group before its rate is evaluated again: the queue's may have been raised."""


def allowed(paid_us: int, now_ms: int, rate_us: int, burst: int) -> int:
    """Return how many messages may be delivered now."""
    now_us = 1000 * now_ms
    return (now_us + burst * rate_us - max(paid_us, now_us)) // rate_us


def paid_after(paid_us: int, now_ms: int, rate_us: int, count: int) -> int:
    """Return the time up to which is paid after delivering `count` more."""
    return max(paid_us, 1000 * now_ms) + count * rate_us


def owed(paid_us: int, now_ms: int, rate_us: int, burst: int) -> int:
    """Return the time up to which is paid under this rate, limited to a burst ahead of now."""
    return min(paid_us, 1000 * now_ms + burst * rate_us) if rate_us else 0


def ready_ms(paid_us: int, rate_us: int, burst: int) -> int:
    """Return the first millisecond at which a message may be delivered."""
    return -(((burst - 1) * rate_us - paid_us) // 1000)
