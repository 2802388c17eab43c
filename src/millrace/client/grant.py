"""What one lease call handed out, and how it is held while it is worked on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from weakref import WeakValueDictionary

from pyroaring import BitMap64

from millrace.client.engine import Engine
from millrace.client.insisting import may_return
from millrace.client.shards import Shards
from millrace.core.answers import Leased, Outcome
from millrace.core.commands import Extend, Release
from millrace.core.model import NEVER_MS, History, LeaseId, ShardId
from millrace.errors import Full, MillraceError, Refused


class Grant:
    """What the messages of one lease call have in common."""

    def __init__(
        self,
        engine: Engine,
        keepalive: Keepalive,
        shards: Shards,
        shard: ShardId,
        leased: Leased,
        lease_ms: int,
    ) -> None:
        self.engine = engine
        self.keepalive = keepalive
        self.shards = shards
        self.shard = shard
        self.lease = leased.lease
        self.history: History = engine.history(shard, leased.lease)
        self.lease_ms = lease_ms
        self.counts = leased.counts
        self.firsts = leased.firsts
        self.open = leased.seqs
        """Messages that this process has neither settled nor released, nor found to be lost."""
        self.deadline_ms = leased.deadline_ms
        self.deadlines: dict[int, int] = {}
        """Deadlines of the messages that were extended."""
        self.lost: dict[int, Refused] = {}
        """What extensions were refused with."""
        self.replacing: set[int] = set()
        """Messages whose replacement is under way: it says itself whether they were lost."""

    def deadline_of(self, seq: int) -> int:
        """Until when the message is held, as far as is known here."""
        return self.deadlines.get(seq, self.deadline_ms)

    def extended(self, outcome: Outcome) -> None:
        """Take note of what an extension was answered."""
        self.deadlines.update(dict.fromkeys(outcome.done, outcome.deadline_ms))
        for seq, error in outcome.refused.items():
            # This process has ended the message itself, or may just have replaced it: an extension
            # that comes after that is refused, and nothing is lost.
            if seq not in self.open or seq in self.replacing:
                continue
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
        command = self.take_back(seqs, unseen=True)
        if command.seqs:
            # If the engine has ended, or takes nothing now, the lease runs out by itself.
            with suppress(MillraceError):
                self.engine.tell(self.shard, command)

    def take_back(self, seqs: BitMap64, *, unseen: bool = False) -> Release:
        """The command that releases those of these messages that are open; they count as ended."""
        seqs = seqs & self.open
        self.open -= seqs
        return Release(self.lease, seqs, self.history, unseen=unseen)


class _Watch:
    """The messages of one lease call that are extended by themselves, and when they next are."""

    def __init__(self, grant: Grant) -> None:
        self.grant = grant
        self.half_ms = max(grant.lease_ms // 2, 1)
        self.holders: WeakValueDictionary[int, object] = WeakValueDictionary()
        self.due_ms = grant.engine.now_ms() + self.half_ms
        self.task: asyncio.Task[None] | None = None
        self._early = asyncio.Event()

    def add(self, seq: int, holder: object) -> None:
        """One more. It may have been held for long: what is left of its time counts."""
        self.holders[seq] = holder
        now = self.grant.engine.now_ms()
        left_ms = max(self.grant.deadline_of(seq) - now, 0)
        self.hurry(now + min(self.half_ms, left_ms // 2))

    def hurry(self, due_ms: int) -> None:
        """Extend at this time, if it would be later otherwise."""
        if due_ms < self.due_ms:
            self.due_ms = due_ms
            self._early.set()

    def seqs(self) -> BitMap64:
        """The messages that are open and in use."""
        return BitMap64(self.holders.keys()) & self.grant.open

    async def pause(self, left_ms: int) -> None:
        """Wait for the time, or for another one; never for long: clocks may be set."""
        self._early.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left_ms, self.half_ms) / 1000):
                await self._early.wait()


class Keepalive:
    """Extends messages at half the time of their lease, while they are open and in use.

    What is taken into use late is extended at half of what is left, or at once. No message that the
    program itself holds for longer is cut short.

    In use means that the program still holds the object: one that was dropped without a word could
    otherwise be held for ever, and is left to run out.
    """

    def __init__(self) -> None:
        self._watches: dict[Grant, _Watch] = {}
        self.followed: WeakValueDictionary[tuple[ShardId, LeaseId, bytes, int], object] = (
            WeakValueDictionary()
        )
        """Leases in use, by shard, lease call, history and seq: a replacement that names a receipt
        finds the lease whose successor it makes."""
        self.closers: dict[object, Callable[[], Awaitable[None]]] = {}
        """What else holds messages that nobody can settle after the end, and how it lets go."""

    def keep(self, grant: Grant, seq: int, holder: object) -> None:
        """Extend the message until it has ended, `drop` is called or `holder` is no more."""
        if grant.deadline_ms >= NEVER_MS:
            # Its session holds it.
            return
        watch = self._watches.get(grant)
        if watch is None:
            watch = self._watches[grant] = _Watch(grant)
            watch.task = asyncio.get_running_loop().create_task(self._extend(watch))
        watch.add(seq, holder)

    def drop(self, grant: Grant, seq: int) -> None:
        """Extend the message no more."""
        watch = self._watches.get(grant)
        if watch is not None:
            watch.holders.pop(seq, None)
            if not watch.holders:
                self._forget(watch)

    def hand_over(self, old: Grant, old_seq: int, new: Grant, seq: int, holder: object) -> None:
        """Extend a message in the place of another one, if that one was extended."""
        watch = self._watches.get(old)
        if watch is not None and old_seq in watch.holders:
            self.drop(old, old_seq)
            self.keep(new, seq, holder)

    async def close(self) -> None:
        """Release all that is kept and open: nobody can settle it any more."""
        for close in list(self.closers.values()):
            with suppress(MillraceError):
                await close()
        for watch in list(self._watches.values()):
            self._forget(watch)
            grant = watch.grant
            command = grant.take_back(watch.seqs())
            if command.seqs:
                # If the engine or the queue has ended, there is nobody to give it back to.
                with suppress(MillraceError):
                    await grant.engine.ask(grant.shard, command, Outcome)

    def _forget(self, watch: _Watch) -> None:
        del self._watches[watch.grant]
        if watch.task is not None:
            watch.task.cancel()

    async def _extend(self, watch: _Watch) -> None:
        grant = watch.grant
        while seqs := watch.seqs():
            now = grant.engine.now_ms()
            if now < watch.due_ms:
                await watch.pause(watch.due_ms - now)
                continue
            # What is added while this is decided may have to be extended earlier.
            watch.due_ms = now + watch.half_ms
            until = now + grant.lease_ms
            short = BitMap64([seq for seq in seqs if grant.deadline_of(seq) <= until])
            if not short:
                continue
            command = Extend(grant.lease, short, grant.history, grant.lease_ms)
            try:
                grant.extended(await grant.engine.ask(grant.shard, command, Outcome))
            except Full as error:
                watch.hurry(now + error.after_ms)
            except MillraceError as error:
                if may_return(grant.engine, error):
                    continue
                # The engine or the queue has ended: settling will say so to the worker.
                break
        del self._watches[grant]
