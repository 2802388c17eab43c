"""The inbox of a decider: bounded, in order, and aware of the room in the log.

What grows waits here while the log is being emptied; what frees space goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from millrace import limits
from millrace.core.commands import Tick
from millrace.core.model import ShardId
from millrace.engine.request import Request
from millrace.errors import Full, TooLarge


class Inbox:
    """Requests that wait for a decision."""

    def __init__(self, *, batch_bytes: int, record_bytes_max: int) -> None:
        self._waiting: deque[Request] = deque()
        self._stalled: deque[Request] = deque()
        self._bytes = 0
        self._batch_bytes = batch_bytes
        self._record_bytes_max = record_bytes_max
        self._ticking: set[ShardId] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, request: Request) -> None:
        """Last in the row, if there is room for it.

        Raises:
            TooLarge: it does not fit into a record.
            Full: too much waits already.
        """
        if request.size > self._record_bytes_max and not request.shrink(self._record_bytes_max):
            raise TooLarge(
                f"{request.size} bytes at once are more than a record of the log holds; "
                "publish in parts, or stage them",
                field="rows",
                limit=self._record_bytes_max,
            )
        if (
            len(self._waiting) + len(self._stalled) >= limits.INBOX_COMMANDS_MAX
            or self._bytes + request.size > limits.INBOX_BYTES_MAX
        ):
            raise Full(
                "the queue's inbox is full; send again later",
                field="inbox",
                limit=limits.INBOX_COMMANDS_MAX,
            )
        self._bytes += request.size
        self._waiting.append(request)

    def put(self, request: Request) -> None:
        """Last in the row, unchecked: our own requests, and those that waited outside."""
        self._bytes += request.size
        self._waiting.append(request)

    def put_first(self, requests: Sequence[Request]) -> None:
        """Before all others, in their order: they were taken, and not decided."""
        # Also before those that came later and wait for room: what grows keeps its order.
        self._waiting.extendleft(reversed(self._stalled))
        self._stalled.clear()
        self._bytes += sum(request.size for request in requests)
        self._waiting.extendleft(reversed(requests))

    def put_tick(self, request: Request) -> None:
        """A tick of a shard, unless one waits already: while nothing commits, time passes too."""
        if request.shard not in self._ticking:
            self._ticking.add(request.shard)
            self.put(request)

    def take(self, room: int) -> deque[Request]:
        """What is decided next: all that waits, up to the size of a record."""
        if not self._stalled and self._bytes <= min(room, self._batch_bytes):
            taken, self._waiting = self._waiting, deque()
            self._bytes = 0
            self._ticking.clear()
            return taken
        taken = deque()
        size = 0
        is_growing = False
        while self._waiting:
            request = self._waiting[0]
            if taken and size + request.size > self._batch_bytes:
                break
            if is_growing and not request.grows and size + request.size > room:
                # With what grows it would be refused; alone it may use the reserve.
                break
            self._waiting.popleft()
            if request.grows and (self._stalled or size + request.size > room):
                # It waits while the log is being emptied; what grows keeps its order.
                self._stalled.append(request)
                continue
            self._bytes -= request.size
            size += request.size
            is_growing = is_growing or request.grows
            if type(request.command) is Tick:
                self._ticking.discard(request.shard)
            taken.append(request)
        return taken

    def resume(self, room: int) -> None:
        """There is room again: those who were stalled go first."""
        if self._stalled and self._stalled[0].size <= room:
            self._waiting.extendleft(reversed(self._stalled))
            self._stalled.clear()

    def refuse_stalled(self, error: Full) -> None:
        """There will be no room: those who wait for it are told."""
        for request in self._stalled:
            self._bytes -= request.size
            request.fail(error)
        self._stalled.clear()

    def drop_all(self) -> list[Request]:
        """Empty it; returns who waited."""
        dropped = [*self._waiting, *self._stalled]
        self._waiting.clear()
        self._stalled.clear()
        self._ticking.clear()
        self._bytes = 0
        return dropped
