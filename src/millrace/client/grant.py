"""What one lease call handed out, and how it is held while it is worked on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from weakref import WeakValueDictionary

from pyroaring import BitMap64

from millrace.client.engine import Engine
from millrace.core.commands import Extend, Leased, Outcome, Release
from millrace.core.model import History, ShardId
from millrace.errors import Full, MillraceError, Refused


class Grant:
    """What the messages of one lease call have in common."""

    def __init__(
        self, engine: Engine, keepalive: Keepalive, shard: ShardId, leased: Leased, lease_ms: int
    ) -> None:
        self.engine = engine
        self.keepalive = keepalive
        self.shard = shard
        self.lease = leased.lease
        self.history: History = engine.history(shard)
        self.lease_ms = lease_ms
        self.counts = leased.counts
        self.open = leased.seqs
        """Messages that this process has neither settled nor released, nor found to be lost."""
        self.deadline_ms = leased.deadline_ms
        self.deadlines: dict[int, int] = {}
        """Deadlines of the messages that were extended."""
        self.lost: dict[int, Refused] = {}
        """What extensions were refused with."""

    def extended(self, outcome: Outcome) -> None:
        """Take note of what an extension was answered."""
        self.deadlines.update(dict.fromkeys(outcome.done, outcome.deadline_ms))
        for seq, error in outcome.refused.items():
            # Superseded, or leased by another: the worker is told when it asks, or settles.
            self.lost[seq] = error
            self.open.discard(seq)

    def ended(self, seqs: BitMap64) -> None:
        """Take note that these were settled or released: an extension that came too late, and was
        refused for it, has lost nothing."""
        self.open -= seqs
        for seq in seqs if self.lost else ():
            self.lost.pop(seq, None)

    def give_back(self, seqs: BitMap64) -> None:
        """Release messages that no worker came to; nobody waits for the answer."""
        command = self.take_back(seqs)
        if command.seqs:
            # If the engine has ended, or takes nothing now, the lease runs out by itself.
            with suppress(MillraceError):
                self.engine.tell(self.shard, command)

    def take_back(self, seqs: BitMap64) -> Release:
        """The command that releases those of these messages that are open; they count as ended."""
        seqs = seqs & self.open
        self.open -= seqs
        return Release(self.lease, seqs, self.history)


class Keepalive:
    """Extends messages at half the time of their lease, while they are open and in use.

    In use means that the program still holds the object: one that was dropped without a word could
    otherwise be held for ever, and is left to run out.
    """

    def __init__(self) -> None:
        self._kept: dict[Grant, WeakValueDictionary[int, object]] = {}
        self._tasks: dict[Grant, asyncio.Task[None]] = {}

    def keep(self, grant: Grant, seq: int, holder: object) -> None:
        """Extend the message until it has ended, `drop` is called or `holder` is no more."""
        kept = self._kept.get(grant)
        if kept is None:
            kept = self._kept[grant] = WeakValueDictionary()
            task = asyncio.get_running_loop().create_task(self._extend(grant, kept))
            self._tasks[grant] = task
        kept[seq] = holder

    def drop(self, grant: Grant, seq: int) -> None:
        """Extend the message no more."""
        kept = self._kept.get(grant)
        if kept is not None:
            kept.pop(seq, None)
            if not kept:
                self._forget(grant)

    async def close(self) -> None:
        """Release all that is kept and open: nobody can settle it any more."""
        for grant, kept in list(self._kept.items()):
            self._forget(grant)
            command = grant.take_back(BitMap64(kept.keys()))
            if command.seqs:
                # If the engine or the queue has ended, there is nobody to give it back to.
                with suppress(MillraceError):
                    await grant.engine.ask(grant.shard, command, Outcome)

    def _forget(self, grant: Grant) -> None:
        del self._kept[grant]
        self._tasks.pop(grant).cancel()

    async def _extend(self, grant: Grant, kept: WeakValueDictionary[int, object]) -> None:
        half = wait = grant.lease_ms / 2000
        while True:
            await asyncio.sleep(wait)
            seqs = BitMap64(kept.keys()) & grant.open
            if not seqs:
                break
            command = Extend(grant.lease, seqs, grant.history, grant.lease_ms)
            try:
                grant.extended(await grant.engine.ask(grant.shard, command, Outcome))
            except Full as error:
                wait = error.after_ms / 1000
            except MillraceError:
                # The engine or the queue has ended: settling will say so to the worker.
                break
            else:
                wait = half
        del self._kept[grant]
        del self._tasks[grant]
