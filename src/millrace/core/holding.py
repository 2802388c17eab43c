"""What a session holds, as a view counts it."""

from __future__ import annotations


class Holding:
    """How many messages a session holds, by lease."""

    __slots__ = ("leases", "total")

    def __init__(self) -> None:
        self.leases: dict[int, int] = {}
        self.total = 0

    def note(self, lease: int, count: int) -> None:
        """So many it holds of the lease."""
        self.total += count - self.leases.pop(lease, 0)
        if count:
            self.leases[lease] = count
