"""Memory that is shared by all who ask: how much of it each may hold.

Rule: one holds no more than a part of what the others leave, so that whoever comes next has room,
though several mean to leave none.
"""

from __future__ import annotations

from millrace import limits


class Shares:
    """Bytes that are held, and whose they are."""

    def __init__(self, bytes_max: int) -> None:
        self.size = 0
        self._bytes_max = bytes_max
        self._of: dict[str, int] = {}

    def add(self, owner: str, size: int) -> None:
        """So many more are held for someone; negative: fewer."""
        self.size += size
        held = self._of.get(owner, 0) + size
        if held:
            self._of[owner] = held
        else:
            self._of.pop(owner, None)

    def held(self, owner: str) -> int:
        """How many are held for someone."""
        return self._of.get(owner, 0)

    def left(self, owner: str) -> int:
        """How many the others leave."""
        return max(0, self._bytes_max - self.size + self.held(owner))

    def share(self, owner: str) -> int:
        """How many may be held for someone now."""
        return self.left(owner) // limits.HTTP_SHARE
