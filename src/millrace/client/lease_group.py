"""The messages of one lease call, and the keepalive that extends their leases automatically."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from weakref import WeakValueDictionary

from pyroaring import BitMap64

from millrace.client.engine import Engine
from millrace.client.retrying import may_recover
from millrace.client.shards import Shards
from millrace.core.answers import Leased, Outcome
from millrace.core.commands import Extend, Release
from millrace.core.model import NEVER_MS, History, LeaseId, ShardId
from millrace.errors import Full, MillraceError, Refused


class LeaseGroup:
    """State shared by the messages of one lease call."""

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
        """Deadlines of messages that were extended."""
        self.lost: dict[int, Refused] = {}
        """Refusals of extensions, by seq."""
        self.replacing: set[int] = set()
        """Messages that are being replaced: the replacement reports whether they were lost."""

    def deadline_of(self, seq: int) -> int:
        """Return the deadline of a message in milliseconds, as far as this process knows."""
        return self.deadlines.get(seq, self.deadline_ms)

    def extended(self, outcome: Outcome) -> None:
        """Record the outcome of an extension."""
        self.deadlines.update(dict.fromkeys(outcome.done, outcome.deadline_ms))
        for seq, error in outcome.refused.items():
            # Refused because this process ended or replaced the message before the extension
            # arrived: the lease is not lost.
            if seq not in self.open or seq in self.replacing:
                continue
            # Superseded, or leased by another: reported by `Lease.lost`, or by settling.
            self.lost[seq] = error
            self.open.discard(seq)

    def ended(self, seqs: BitMap64) -> None:
        """Record that messages were settled or released; extensions refused after that mean no
        loss."""
        self.open -= seqs
        for seq in seqs if self.lost else ():
            self.lost.pop(seq, None)

    def give_back(self, seqs: BitMap64) -> None:
        """Release messages that the program did not receive, without waiting for the answer."""
        command = self.take_back(seqs, unseen=True)
        if command.seqs:
            # If the engine has ended or refuses the command, the lease expires by itself.
            with suppress(MillraceError):
                self.engine.tell(self.shard, command)

    def take_back(self, seqs: BitMap64, *, unseen: bool = False) -> Release:
        """Return the command that releases the open ones of these messages, and mark them as
        ended."""
        seqs = seqs & self.open
        self.open -= seqs
        return Release(self.lease, seqs, self.history, unseen=unseen)


class _ExtensionTimer:
    """The messages of one lease call that are extended automatically, and the time of the next
    extension."""

    def __init__(self, grant: LeaseGroup) -> None:
        self.grant = grant
        self.half_ms = max(grant.lease_ms // 2, 1)
        self.holders: WeakValueDictionary[int, object] = WeakValueDictionary()
        self.due_ms = grant.engine.now_ms() + self.half_ms
        self.task: asyncio.Task[None] | None = None
        self._early = asyncio.Event()

    def add(self, seq: int, holder: object) -> None:
        """Add a message; if it was leased some time ago, extend it at half of the remaining
        time."""
        self.holders[seq] = holder
        now = self.grant.engine.now_ms()
        left_ms = max(self.grant.deadline_of(seq) - now, 0)
        self.hurry(now + min(self.half_ms, left_ms // 2))

    def hurry(self, due_ms: int) -> None:
        """Extend at this time if the next extension would be later."""
        if due_ms < self.due_ms:
            self.due_ms = due_ms
            self._early.set()

    def seqs(self) -> BitMap64:
        """Return the messages that are open and in use."""
        return BitMap64(self.holders.keys()) & self.grant.open

    async def pause(self, left_ms: int) -> None:
        """Wait until an extension is due, at most half a lease, since clocks may be set."""
        self._early.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left_ms, self.half_ms) / 1000):
                await self._early.wait()


class Keepalive:
    """Extends leases at half of their time, while they are open and in use (a heartbeat).

    A message that is added late is extended at half of the remaining time, or at once. A lease that
    the program itself extended for longer is never shortened.

    In use means that the program still references the object: a lease that was dropped without
    settling would otherwise be held forever; it expires instead.
    """

    def __init__(self) -> None:
        self._timers: dict[LeaseGroup, _ExtensionTimer] = {}
        self.followed: WeakValueDictionary[tuple[ShardId, LeaseId, bytes, int], object] = (
            WeakValueDictionary()
        )
        """Leases in use, by shard, lease call, history and seq; `Queue.replace` finds a lease by
        its receipt here."""
        self.closers: dict[object, Callable[[], Awaitable[None]]] = {}
        """Other owners of leases that end with the engine, and how to close them."""

    def keep(self, group: LeaseGroup, seq: int, holder: object) -> None:
        """Extend the message until it ends, `drop` is called, or `holder` is garbage collected."""
        if group.deadline_ms >= NEVER_MS:
            # Leases of a session last as long as the session.
            return
        timer = self._timers.get(group)
        if timer is None:
            timer = self._timers[group] = _ExtensionTimer(group)
            timer.task = asyncio.get_running_loop().create_task(self._extend(timer))
        timer.add(seq, holder)

    def drop(self, group: LeaseGroup, seq: int) -> None:
        """Stop extending the message."""
        timer = self._timers.get(group)
        if timer is not None:
            timer.holders.pop(seq, None)
            if not timer.holders:
                self._forget(timer)

    def hand_over(
        self, old: LeaseGroup, old_seq: int, new: LeaseGroup, seq: int, holder: object
    ) -> None:
        """Extend the successor of a message that was extended."""
        timer = self._timers.get(old)
        if timer is not None and old_seq in timer.holders:
            self.drop(old, old_seq)
            self.keep(new, seq, holder)

    async def close(self) -> None:
        """Release all messages that are extended: after the end of the engine they cannot be
        settled."""
        for close in list(self.closers.values()):
            with suppress(MillraceError):
                await close()
        for timer in list(self._timers.values()):
            self._forget(timer)
            group = timer.grant
            command = group.take_back(timer.seqs())
            if command.seqs:
                # If the engine or the queue has ended, its leases have, too.
                with suppress(MillraceError):
                    await group.engine.ask(group.shard, command, Outcome)

    def _forget(self, timer: _ExtensionTimer) -> None:
        del self._timers[timer.grant]
        if timer.task is not None:
            timer.task.cancel()

    async def _extend(self, timer: _ExtensionTimer) -> None:
        group = timer.grant
        while seqs := timer.seqs():
            now = group.engine.now_ms()
            if now < timer.due_ms:
                await timer.pause(timer.due_ms - now)
                continue
            # Set before the call: messages added during it may move it to an earlier time.
            timer.due_ms = now + timer.half_ms
            deadline_ms = now + group.lease_ms
            due = BitMap64([seq for seq in seqs if group.deadline_of(seq) <= deadline_ms])
            if not due:
                continue
            command = Extend(group.lease, due, group.history, group.lease_ms)
            try:
                group.extended(await group.engine.ask(group.shard, command, Outcome))
            except Full as error:
                timer.hurry(now + error.after_ms)
            except MillraceError as error:
                if may_recover(group.engine, error):
                    continue
                # The engine or the queue has ended: settling reports it to the worker.
                break
        del self._timers[group]
