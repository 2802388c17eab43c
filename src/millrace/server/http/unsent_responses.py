"""Memory of responses that clients have not received yet, over all connections.

Rule 1: a user whose clients receive too slowly gets no further answers until they catch up; answers
that have begun continue.
Rule 2: slow users do not delay others: a user without unsent bytes always has room.
Rule 3: no request waits for ever: held bytes are received, or their connection is closed by
timeout.
"""

from __future__ import annotations

import asyncio

from millrace import limits
from millrace.server.http.memory_shares import MemoryShares


class UnsentResponses(MemoryShares):
    """Counts the response bytes that wait to be sent, by user."""

    def __init__(self) -> None:
        super().__init__(limits.HTTP_UNSENT_BYTES_MAX)
        self._rooms: dict[str, asyncio.Event] = {}
        """Events of users with waiting requests."""

    def add(self, owner: str, size: int) -> None:
        super().add(owner, size)
        if size < 0 and self._rooms:
            for name in [name for name in self._rooms if self.has_room(name)]:
                self._rooms.pop(name).set()

    def has_room(self, owner: str) -> bool:
        """Return whether another answer to a user may begin."""
        held = self.held(owner)
        return not held or held < self.share(owner)

    async def room(self, owner: str) -> None:
        """Wait until a user has room."""
        while not self.has_room(owner):
            await self._rooms.setdefault(owner, asyncio.Event()).wait()


class SendProgress:
    """Counts the unsent bytes of one connection."""

    def __init__(self, unsent: UnsentResponses) -> None:
        self._unsent = unsent
        self.owner = ""
        """User of the latest request."""
        self.rest = 0
        """Bytes of the response that were not written to the transport yet."""
        self._counted = ("", 0)

    def end(self) -> None:
        """Stop counting: the connection is closed."""
        self.rest = 0
        self.count(0)

    def count(self, size: int) -> bool:
        """Count `size` unsent bytes in the transport; return whether any bytes are unsent."""
        size += self.rest
        before, self._counted = self._counted, (self.owner, size)
        if size != before[1] or (size and before[0] != self.owner):
            self._unsent.add(self.owner, size)
            self._unsent.add(before[0], -before[1])
        return size > 0
