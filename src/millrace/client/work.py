"""Work as it comes: leases that are extended by themselves while they are worked on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from millrace import limits
from millrace.client.lease import Grant, Lease
from millrace.core.commands import Extend, Outcome, Release
from millrace.errors import MillraceError

if TYPE_CHECKING:
    from millrace.client.queue import Queue


class Keepalive:
    """Extends the leases of this process at half their time, as long as they are open."""

    def __init__(self) -> None:
        self._grants: dict[int, tuple[Grant, asyncio.Task[None]]] = {}

    def keep(self, grant: Grant) -> None:
        """Extend until nothing of the grant is open, or `drop` is called."""
        task = asyncio.get_running_loop().create_task(self._extend(grant))
        self._grants[id(grant)] = (grant, task)

    async def drop(self, grant: Grant) -> None:
        """Stop extending."""
        found = self._grants.pop(id(grant), None)
        if found is not None:
            found[1].cancel()

    async def close(self) -> None:
        for _, task in self._grants.values():
            task.cancel()
        self._grants.clear()

    async def _extend(self, grant: Grant) -> None:
        try:
            while grant.open:
                await asyncio.sleep(grant.lease_ms / 2000)
                if not grant.open:
                    break
                command = Extend(grant.lease, grant.open.copy(), grant.history, grant.lease_ms)
                outcome = await grant.queue.engine.ask(grant.queue.shard, command, Outcome)
                grant.deadline_ms = outcome.deadline_ms
                for seq in outcome.refused:
                    # Superseded, or leased by another: its settle will say so.
                    grant.open.discard(seq)
        except MillraceError:
            # The engine has ended or is full: the lease runs out, and settling tells the worker.
            return
        finally:
            self._grants.pop(id(grant), None)


class Work:
    """An endless iterator over leased messages."""

    def __init__(self, queue: Queue, keepalive: Keepalive, *, batch: int, seconds: float) -> None:
        self._queue = queue
        self._keepalive = keepalive
        self._batch = batch
        self._seconds = seconds
        self._waiting: deque[Lease] = deque()
        self._grants: list[Grant] = []

    def __aiter__(self) -> AsyncIterator[Lease]:
        return self._leases()

    async def _leases(self) -> AsyncIterator[Lease]:
        try:
            while True:
                if not self._waiting:
                    await self._more()
                if self._waiting:
                    yield self._waiting.popleft()
        finally:
            await self._give_back()

    async def _more(self) -> None:
        self._grants = [grant for grant in self._grants if grant.open]
        leases = await self._queue.lease(
            self._batch, seconds=self._seconds, wait=limits.LEASE_WAIT_MS_MAX / 1000
        )
        if leases:
            self._waiting.extend(leases)
            self._grants.append(leases[0].grant)
            self._keepalive.keep(leases[0].grant)

    async def _give_back(self) -> None:
        for grant in self._grants:
            await self._keepalive.drop(grant)
            if grant.open:
                command = Release(grant.lease, grant.open.copy(), grant.history)
                await self._queue.engine.ask(self._queue.shard, command, Outcome)
        self._grants.clear()
        self._waiting.clear()
