"""The bounded FIFO inbox of a commit loop, with backpressure from the log.

Commands that grow are held back while the log is full; commands that free space go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from millrace import limits
from millrace.core.commands import Tick
from millrace.core.model import ShardId
from millrace.engine.command_request import CommandRequest
from millrace.errors import Full, TooLarge


class Inbox:
    """Requests that wait to be decided."""

    def __init__(self, *, batch_bytes: int, record_bytes_max: int) -> None:
        self._waiting: deque[CommandRequest] = deque()
        self._stalled: deque[CommandRequest] = deque()
        self._bytes = 0
        self._batch_bytes = batch_bytes
        self._record_bytes_max = record_bytes_max
        self._ticking: set[ShardId] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, request: CommandRequest) -> None:
        """Append a request if there is room.

        Raises:
            TooLarge: the request does not fit into a record.
            Full: the inbox is full.
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

    def put(self, request: CommandRequest) -> None:
        """Append an internal request, or one that waited elsewhere, without checking the bounds."""
        self._bytes += request.size
        self._waiting.append(request)

    def put_first(self, requests: Sequence[CommandRequest]) -> None:
        """Put requests back at the front, in their order, that were taken and not decided."""
        # Stalled requests also precede later arrivals, so that commands that grow keep their order.
        self._waiting.extendleft(reversed(self._stalled))
        self._stalled.clear()
        self._bytes += sum(request.size for request in requests)
        self._waiting.extendleft(reversed(requests))

    def put_tick(self, request: CommandRequest) -> None:
        """Append a tick of a shard unless one is queued: ticks must not pile up while nothing
        commits."""
        if request.shard not in self._ticking:
            self._ticking.add(request.shard)
            self.put(request)

    def take(self, room: int) -> deque[CommandRequest]:
        """Return the requests to decide next: all of them, up to the size of a record."""
        if not self._stalled and self._bytes <= min(room, self._batch_bytes):
            batch, self._waiting = self._waiting, deque()
            self._bytes = 0
            self._ticking.clear()
            return batch
        batch = deque()
        size = 0
        is_growing = False
        while self._waiting:
            request = self._waiting[0]
            if batch and size + request.size > self._batch_bytes:
                break
            if is_growing and not request.grows and size + request.size > room:
                # Together with commands that grow it would be refused; alone it may use the log's
                # reserve.
                break
            self._waiting.popleft()
            if request.grows and (self._stalled or size + request.size > room):
                # Stall it until the log has room; later commands that grow stay behind it.
                self._stalled.append(request)
                continue
            self._bytes -= request.size
            size += request.size
            is_growing = is_growing or request.grows
            if type(request.command) is Tick:
                self._ticking.discard(request.shard)
            batch.append(request)
        return batch

    def resume(self, room: int) -> None:
        """Put stalled requests back at the front if the log has room for them again."""
        if self._stalled and self._stalled[0].size <= room:
            self._waiting.extendleft(reversed(self._stalled))
            self._stalled.clear()

    def refuse_stalled(self, error: Full) -> None:
        """Fail the stalled requests: there will be no room for them."""
        for request in self._stalled:
            self._bytes -= request.size
            request.fail(error)
        self._stalled.clear()

    def drop_all(self) -> list[CommandRequest]:
        """Empty the inbox and return its requests."""
        dropped = [*self._waiting, *self._stalled]
        self._waiting.clear()
        self._stalled.clear()
        self._ticking.clear()
        self._bytes = 0
        return dropped
