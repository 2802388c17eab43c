"""A message that a worker works on, and the function that is called with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from millrace.client.function import Function
from millrace.client.lease import Lease, follow, succession_of
from millrace.client.transaction import Transaction


class Run:
    """A message that is being worked on, or its successor once the function has replaced it."""

    def __init__(self, lease: Lease, on_replaced: Callable[[Lease], None]) -> None:
        self._succession = succession_of(lease)
        self._succession.on_replaced = on_replaced
        follow(lease)
        self.transaction: Transaction | None = None
        """What the function that was called last may put more into."""
        self.result: object = None
        self.error: BaseException | None = None
        self._calling: asyncio.Future[object] | None = None
        self._in_thread = False
        self.is_lost = False
        self.is_given_up = False

    @property
    def lease(self) -> Lease:
        """What the worker holds now."""
        return self._succession.newest

    async def call(
        self, function: Function, threads: ThreadPoolExecutor, arguments: tuple[object, ...]
    ) -> bool:
        """Call a function; True if it returned, and what it did still counts."""
        if self.is_lost or self.is_given_up:
            return False
        self._in_thread = not function.is_async
        self._calling = calling = function.begin(threads, arguments)
        # Not awaited itself: its being cancelled is not this being cancelled.
        await asyncio.wait([calling])
        self.error = asyncio.CancelledError() if calling.cancelled() else calling.exception()
        self.result = None if self.error is not None else calling.result()
        return self.error is None and not self.is_lost and not self.is_given_up

    def lose(self) -> None:
        """The message is someone else's. A thread cannot be cancelled: it ends by itself."""
        if self._calling is None or not self._calling.done():
            self.is_lost = True
            if self._calling is not None and not self._in_thread:
                self._calling.cancel()

    def give_up(self) -> None:
        """There is no more time. A thread goes on, but nobody waits for it."""
        if self._calling is None or self._calling.cancel():
            self.is_given_up = True
