"""Memory shared by all users, and the share that each may hold.

Rule: a user holds no more than a fraction of the memory that the others leave, so that the next one
has room even if several try to take all of it.
"""

from __future__ import annotations

from millrace import limits


class MemoryShares:
    """Counts held bytes by owner."""

    def __init__(self, bytes_max: int) -> None:
        self.size = 0
        self._bytes_max = bytes_max
        self._of: dict[str, int] = {}

    def add(self, owner: str, size: int) -> None:
        """Add `size` bytes to an owner's count; negative: subtract."""
        self.size += size
        held = self._of.get(owner, 0) + size
        if held:
            self._of[owner] = held
        else:
            self._of.pop(owner, None)

    def held(self, owner: str) -> int:
        """Return the number of bytes held for an owner."""
        return self._of.get(owner, 0)

    def left(self, owner: str) -> int:
        """Return the number of bytes that the other owners leave."""
        return max(0, self._bytes_max - self.size + self.held(owner))

    def share(self, owner: str) -> int:
        """Return the number of bytes that an owner may hold now."""
        return self.left(owner) // limits.HTTP_SHARE
