"""`Work`: iterates over leased messages, with prefetch and automatic lease extension."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from types import TracebackType

from pyroaring import BitMap64

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.lease import Lease, follow, grant_of, seq_of
from millrace.client.lease_group import LeaseGroup
from millrace.client.retrying import may_recover
from millrace.core.answers import Outcome
from millrace.core.commands import Release
from millrace.errors import Closed, Full, Unknown

Fetch = Callable[[int], Awaitable[list[Lease]]]
"""Leases messages, waiting up to this many milliseconds for the first."""


class Work:
    """Messages of a queue as they arrive, one after another; see `Queue.work`.

    As a context manager it releases prefetched messages at its end; otherwise this happens when the
    object is freed, as after the end of a loop over it.
    """

    def __init__(self, engine: Engine, fetch: Fetch, *, idle_ms: int | None) -> None:
        self._engine = engine
        self._fetch = fetch
        self._idle_ms = idle_ms
        self._ahead: deque[Lease] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def __aiter__(self) -> Work:
        return self

    async def __anext__(self) -> Lease:
        """Return the next message; cancelling the wait neither loses a message nor ends the
        iteration.

        Raises:
            StopAsyncIteration: none arrived within the idle time.
            Closed: this object, or the engine, was closed.
        """
        if self._closed:
            raise Closed("this work was ended; begin anew with queue.work()")
        self._loop = asyncio.get_running_loop()
        if not self._ahead and not await self._more(self._loop):
            raise StopAsyncIteration
        return self._ahead.popleft()

    async def _more(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Prefetch messages; return False if none arrived within the idle time."""
        deadline = None if self._idle_ms is None else loop.time() + self._idle_ms / 1000
        while True:
            wait_ms = limits.WAIT_STEP_MS
            if deadline is not None:
                wait_ms = min(wait_ms, max(round((deadline - loop.time()) * 1000), 0))
            try:
                leases = await self._fetch(wait_ms)
            except Full as error:
                # Too many messages are in flight, here or elsewhere: wait until some have ended.
                await asyncio.sleep(error.after_ms / 1000)
                leases = []
            except (Closed, Unknown) as error:
                # Messages that the lost answer leased, if any, come again when their lease expires.
                if not may_recover(self._engine, error) or deadline is not None:
                    raise
                await asyncio.sleep(limits.WIRE_PAUSE_SECONDS_MAX)
                leases = []
            for lease in leases:
                group = grant_of(lease)
                group.keepalive.keep(group, seq_of(lease), lease)
                follow(lease)
            self._ahead.extend(leases)
            if leases:
                return True
            if deadline is not None and loop.time() >= deadline:
                return False

    async def close(self) -> None:
        """Release prefetched messages; messages that the program received stay leased."""
        self._closed = True
        give_back(self._ahead)
        self._ahead.clear()

    async def __aenter__(self) -> Work:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if self._ahead and self._loop is not None:
            # The loop may be closed, and its engine too: then the leases expire.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(give_back, list(self._ahead))


def give_back(leases: Iterable[Lease]) -> None:
    """Release messages that the program did not receive, without waiting for the answer."""
    for group in dict.fromkeys(grant_of(lease) for lease in leases):
        seqs = BitMap64([seq_of(lease) for lease in leases if grant_of(lease) is group])
        for seq in seqs:
            group.keepalive.drop(group, seq)
        group.give_back(seqs)


async def release_unseen(leases: Iterable[Lease]) -> None:
    """Release messages that were not processed, so that their delivery does not count.

    Leases that were lost are skipped. The call may be repeated with the same leases if nothing was
    accepted.
    """
    by_group: dict[LeaseGroup, BitMap64] = {}
    for lease in leases:
        by_group.setdefault(grant_of(lease), BitMap64()).add(seq_of(lease))
    for group, seqs in by_group.items():
        if seqs := seqs & group.open:
            command = Release(group.lease, seqs, group.history, unseen=True)
            group.ended((await group.engine.ask(group.shard, command, Outcome)).done)
