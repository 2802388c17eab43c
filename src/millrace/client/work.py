"""Work as it comes: leases that are extended by themselves while they are worked on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from types import TracebackType

from pyroaring import BitMap64

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.grant import Grant
from millrace.client.insisting import may_return
from millrace.client.lease import Lease, follow, grant_of, seq_of
from millrace.core.answers import Outcome
from millrace.core.commands import Release
from millrace.errors import Closed, Full, Unknown

Fetch = Callable[[int], Awaitable[list[Lease]]]
"""Lease some more, waiting so many milliseconds for the first."""


class Work:
    """Messages as they come, one after another; see `Queue.work`.

    As a context manager it gives back at its end what was leased ahead and not handed out; without
    one this happens when the object is dropped, as it is when its loop ends.
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
        """The next message; cancelling the wait for it loses nothing, and ends nothing.

        Raises:
            StopAsyncIteration: none came within the idle time.
            Closed: this, or the engine, was closed.
        """
        if self._closed:
            raise Closed("this work was ended; begin anew with queue.work()")
        self._loop = asyncio.get_running_loop()
        if not self._ahead and not await self._more(self._loop):
            raise StopAsyncIteration
        return self._ahead.popleft()

    async def _more(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Lease ahead; False if nothing came within the idle time."""
        until = None if self._idle_ms is None else loop.time() + self._idle_ms / 1000
        while True:
            wait_ms = limits.WAIT_STEP_MS
            if until is not None:
                wait_ms = min(wait_ms, max(round((until - loop.time()) * 1000), 0))
            try:
                leases = await self._fetch(wait_ms)
            except Full as error:
                # Too much is in flight, here or elsewhere: work goes on when some of it has ended.
                await asyncio.sleep(error.after_ms / 1000)
                leases = []
            except (Closed, Unknown) as error:
                # What was handed out, if it was, is nobody's until its time is over.
                if not may_return(self._engine, error) or until is not None:
                    raise
                await asyncio.sleep(limits.WIRE_PAUSE_SECONDS_MAX)
                leases = []
            for lease in leases:
                grant = grant_of(lease)
                grant.keepalive.keep(grant, seq_of(lease), lease)
                follow(lease)
            self._ahead.extend(leases)
            if leases:
                return True
            if until is not None and loop.time() >= until:
                return False

    async def close(self) -> None:
        """Give back what was leased ahead; what was handed out stays with its worker."""
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
            # The loop may have ended, and its engine with it: then the leases run out.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(give_back, list(self._ahead))


def give_back(leases: Iterable[Lease]) -> None:
    """Release messages that no worker came to, by lease call."""
    for grant in dict.fromkeys(grant_of(lease) for lease in leases):
        seqs = BitMap64([seq_of(lease) for lease in leases if grant_of(lease) is grant])
        for seq in seqs:
            grant.keepalive.drop(grant, seq)
        grant.give_back(seqs)


async def return_unseen(leases: Iterable[Lease]) -> None:
    """Release messages that nobody has worked on, so that their delivery does not count.

    What is no longer held is left alone. It may be called again with the same ones where nothing
    was accepted.
    """
    held: dict[Grant, BitMap64] = {}
    for lease in leases:
        held.setdefault(grant_of(lease), BitMap64()).add(seq_of(lease))
    for grant, seqs in held.items():
        if seqs := seqs & grant.open:
            command = Release(grant.lease, seqs, grant.history, unseen=True)
            grant.ended((await grant.engine.ask(grant.shard, command, Outcome)).done)
