"""Messages that a job has leased and leaves as they are until it ends: else they would come again.

Rule 1: only which ones they are is held, not the messages.
Rule 2: they are extended before their time is over, however long the job goes on: a lease that runs
out counts as a failure, and its message would come again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from time import monotonic

import msgspec
from pyroaring import BitMap64

from millrace import sync
from millrace.client.grant import Grant
from millrace.client.lease import grant_of, seq_of
from millrace.core.answers import Outcome
from millrace.core.commands import Extend


class _Part(msgspec.Struct):
    """What is held of one lease call."""

    seqs: BitMap64
    since: float
    """When it was leased, or extended."""


class Held:
    """Leased messages of one queue."""

    def __init__(self, queue: sync.Queue) -> None:
        self._queue = queue
        self._parts: dict[Grant, _Part] = {}

    def __len__(self) -> int:
        return sum(len(part.seqs) for part in self._parts.values())

    def add(self, leases: Iterable[sync.Lease]) -> None:
        """These are held from now on."""
        now = monotonic()
        for lease in leases:
            part = self._parts.setdefault(grant_of(lease._twin), _Part(BitMap64(), now))
            part.seqs.add(seq_of(lease._twin))

    def drop(self, leases: Iterable[sync.Lease]) -> None:
        """These have ended."""
        for lease in leases:
            grant = grant_of(lease._twin)
            part = self._parts[grant]
            part.seqs.discard(seq_of(lease._twin))
            if not part.seqs:
                del self._parts[grant]

    def renew(self, now: float | None = None) -> None:
        """Extend those whose time is half over."""
        now = monotonic() if now is None else now
        for grant, part in self._parts.items():
            if now - part.since > grant.lease_ms / 2000:
                self._queue._portal.run(partial(_extend, grant, part.seqs))
                part.since = now

    def give_back(self) -> None:
        """Give all of them back, as if nobody had seen them."""
        while self._parts:
            grant, part = self._parts.popitem()
            self._queue._portal.run(partial(_release, grant, part.seqs))


async def _extend(grant: Grant, seqs: BitMap64) -> None:
    command = Extend(grant.lease, seqs, grant.history, grant.lease_ms)
    grant.extended(await grant.engine.ask(grant.shard, command, Outcome))


async def _release(grant: Grant, seqs: BitMap64) -> None:
    command = grant.take_back(seqs, unseen=True)
    if command.seqs:
        await grant.engine.ask(grant.shard, command, Outcome)
