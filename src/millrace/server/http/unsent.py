"""What was answered and has not been taken in, over all connections.

Rule 1: whoever takes in too little of what they are answered is answered nothing more until they
do; what has begun is still answered.
Rule 2: others are not kept waiting for them: whoever has taken everything in has room.
Rule 3: nobody waits for what cannot end: what is held is taken in, or its connection is cut off.
"""

from __future__ import annotations

import asyncio

from millrace import limits
from millrace.server.http.shares import Shares


class Unsent(Shares):
    """Bytes of answers that wait to be taken in."""

    def __init__(self) -> None:
        super().__init__(limits.HTTP_UNSENT_BYTES_MAX)
        self._rooms: dict[str, asyncio.Event] = {}
        """Of those for whom somebody waits."""

    def add(self, owner: str, size: int) -> None:
        super().add(owner, size)
        if size < 0 and self._rooms:
            for name in [name for name in self._rooms if self.has_room(name)]:
                self._rooms.pop(name).set()

    def has_room(self, owner: str) -> bool:
        """Whether something more may be begun to be answered to someone."""
        held = self.held(owner)
        return not held or held < self.share(owner)

    async def room(self, owner: str) -> None:
        """Come back when there is room."""
        while not self.has_room(owner):
            await self._rooms.setdefault(owner, asyncio.Event()).wait()


class Sent:
    """What one connection has of them."""

    def __init__(self, unsent: Unsent) -> None:
        self._unsent = unsent
        self.owner = ""
        """Who asked last."""
        self.rest = 0
        """Of the answer to that, bytes that were not handed over yet."""
        self._counted = ("", 0)

    def end(self) -> None:
        """The connection has gone."""
        self.rest = 0
        self.count(0)

    def count(self, size: int) -> bool:
        """So many bytes that were handed over are unsent now; whether anything is."""
        size += self.rest
        before, self._counted = self._counted, (self.owner, size)
        if size != before[1] or (size and before[0] != self.owner):
            self._unsent.add(self.owner, size)
            self._unsent.add(before[0], -before[1])
        return size > 0
