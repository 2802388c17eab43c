"""What a session is handed, on its way to the program.

A feed asks for more while the program works on what it has, until half of the credit waits here. It
holds nothing of the session's own object, so that one that was dropped is noticed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from pyroaring import BitMap64

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.finish import finish
from millrace.client.grant import Grant, Keepalive
from millrace.client.lease import Call, Lease, grant_of
from millrace.client.shards import Shards
from millrace.core.answers import Leased
from millrace.core.model import ShardId
from millrace.core.session_commands import (
    Claim,
    CloseSession,
    Delivered,
    Delivery,
    Receive,
    ResumeSession,
    SessionRef,
    SuspectSession,
)
from millrace.errors import Closed, Full, MillraceError, Suspected

_COUNT = 1_000
"""How many are asked for at once where credit is granted on demand."""


class Feed:
    """The deliveries of one session, in the order of their numbers."""

    def __init__(
        self,
        engine: Engine,
        keepalive: Keepalive,
        shard: ShardId,
        ref: SessionRef,
        expected: int,
        label: str = "",
    ) -> None:
        self.claim = ref.claim
        self.is_cancelled = False
        self.is_over = False
        """It was closed, or given up."""
        self.loop = asyncio.get_running_loop()
        self._engine = engine
        self._keepalive = keepalive
        self._shard = shard
        self._shards = Shards((shard,), "key", label=label)
        self._lease_ms = ref.lease_ms
        self._count = ref.credit if ref.refill else _COUNT
        self._low = ref.credit // 2 if ref.refill else 0
        self._expected = expected
        self._seen = ref.next
        self._ready: deque[Lease] = deque()
        self._unread: deque[tuple[Grant, dict[int, int]]] = deque()
        """Seq → number, both rising, of messages whose bodies are not here."""
        self._grants: dict[int, tuple[Grant, dict[int, int]]] = {}
        """By lease: what was handed out, and its numbers."""
        self._resuming: asyncio.Task[None] | None = None
        self._told = asyncio.Event()
        self._wanted = asyncio.Event()
        keepalive.closers[self] = self.close
        self._task = self._begin()

    def _begin(self) -> asyncio.Task[None]:
        task = self.loop.create_task(self._run())
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            # Whoever asks for the next message hears of it.
            task.exception()
        self._told.set()

    async def next(self) -> Lease | None:
        """The next message; None if there will be no more.

        Raises:
            What ended it: the queue was deleted, the session resumed elsewhere, the engine closed.
        """
        while not self._drop_ended():
            self._check_open()
            if self._task.done() and not self._task.cancelled():
                error = self._task.exception()
                if error is None:
                    return None
                raise error.again() if isinstance(error, MillraceError) else error
            self._told.clear()
            await self._told.wait()
        lease = self._ready.popleft()
        self._seen = max(self._seen, (lease.number or 0) + 1)
        if len(self._ready) <= self._low:
            self._wanted.set()
        return lease

    def _drop_ended(self) -> bool:
        """Pass over what came again and was ended meanwhile; whether something is there."""
        ready = self._ready
        while ready and ready[0].seq not in grant_of(ready[0]).open:
            ready.popleft()
        return bool(ready)

    async def restart(self, expected: int | None) -> None:
        """Begin anew with what is held from this delivery number on; None: go on."""
        self._check_open()
        self._task.cancel()
        await asyncio.wait([self._task])
        if expected is not None:
            self._ready.clear()
            self._unread.clear()
            self._expected = min(expected, self._expected)
        self._task = self._begin()

    # --- The way here -------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if len(self._ready) > self._low:
                if not await self._is_wanted():
                    await self._receive(0)
            elif self._unread:
                await self._read()
            elif not await self._receive(self._count) and self.is_cancelled:
                return

    async def _is_wanted(self) -> bool:
        """Wait until more is wanted; False after a while, if the engine may be another one."""
        self._wanted.clear()
        try:
            async with asyncio.timeout(limits.WIRE_LOOK_SECONDS if self._engine.is_far else None):
                return await self._wanted.wait()
        except TimeoutError:
            return False

    async def _receive(self, count: int) -> bool:
        """Ask for so many more; False if there was nothing."""
        command = Receive(self.claim, self._expected, count)
        wait_ms = limits.WAIT_STEP_MS if count and not self.is_cancelled else 0
        try:
            answer = await self._engine.ask(self._shard, command, Delivered, wait_ms=wait_ms)
        except Full as error:
            await asyncio.sleep(error.after_ms / 1000)
            return True
        except Suspected:
            if not self._engine.is_far:
                raise
            await self.resume(command.claim)
            return True
        for lease, (grant, _) in list(self._grants.items()):
            if not grant.open:
                del self._grants[lease]
        for delivery in answer.deliveries:
            self._take(delivery)
        self._expected = answer.next
        return bool(answer.deliveries)

    async def resume(self, claim: Claim) -> None:
        """The engine has begun anew, or has not heard of this for a while: go on.

        What is held here is still held, under the same numbers. Once for all who find out.
        """
        if self._resuming is None:
            if self.claim is not claim:
                return
            self._resuming = self.loop.create_task(self._resume())
            self._resuming.add_done_callback(_heard)
        await finish(self._resuming)

    async def _resume(self) -> None:
        command = ResumeSession(self.claim.session, self.claim.history)
        try:
            self.claim = (await self._engine.ask(self._shard, command, SessionRef)).claim
        finally:
            self._resuming = None

    def _take(self, delivery: Delivery) -> None:
        leased = Leased(delivery.lease, delivery.seqs(), delivery.deadline_ms, delivery.counts)
        lease_ms = self._lease_ms or delivery.deadline_ms
        grant, numbers = self._grants.get(delivery.lease, (None, {}))
        if grant is None:
            to = (self._engine, self._keepalive, self._shards, self._shard)
            grant = Grant(*to, leased, lease_ms)
        grant.open |= leased.seqs
        self._grants[delivery.lease] = grant, numbers | delivery.numbers
        runs: list[dict[int, int]] = []
        last = 0
        for seq, number in delivery.numbers.items():
            if not runs or seq < last:
                runs.append({})
            runs[-1][seq] = number
            last = seq
        self._unread.extend((grant, run) for run in runs)

    async def _read(self) -> None:
        """Read bodies of what comes next; so many that memory holds them."""
        grant, run = self._unread[0]
        seqs = BitMap64(run)
        telemetry = self._engine.telemetry
        began = None if telemetry is None else telemetry.began()
        rows = await self._engine.rows(
            self._shard, seqs, limits.LEASE_BYTES_MAX, grant.lease, grant.history
        )
        if telemetry is not None and began is not None:
            telemetry.received(self._shards.label, began, (row.headers for row in rows))
        self._unread.popleft()
        if len(rows) < len(run):
            upto = rows[-1].seq if rows else seqs.max()
            rest = {seq: number for seq, number in run.items() if seq > upto}
            if rest:
                self._unread.appendleft((grant, rest))
            # Newer revisions have replaced the others meanwhile.
            grant.open -= seqs - BitMap64([row.seq for row in rows]) - BitMap64(rest)
        self._ready.extend(Lease(grant, row, run[row.seq]) for row in rows)
        self._told.set()

    # --- What it holds ------------------------------------------------------------------------

    def held(self, numbers: Callable[[int], bool]) -> list[tuple[Call, dict[int, int]]]:
        """Of what the program was given and has not ended: those with these numbers, by lease."""
        found: list[tuple[Call, dict[int, int]]] = []
        for grant, known in self._grants.values():
            seqs = BitMap64(
                [seq for seq, number in known.items() if number < self._seen and numbers(number)]
            )
            seqs &= grant.open
            if seqs:
                call = Call(self._shard, grant.lease, grant.history, seqs, grant)
                found.append((call, known))
        return found

    def _check_open(self) -> None:
        if self.is_over:
            raise Closed("this session was closed; open another with queue.session()")

    # --- The end ------------------------------------------------------------------------------

    async def cancel(self) -> None:
        """Have nothing more handed out."""
        await self._engine.ask(self._shard, CloseSession(self.claim, self._seen, keep=True), int)
        self.is_cancelled = True
        await self.restart(None)

    def leave(self) -> None:
        """The program has gone, perhaps with some of the messages: give them time."""
        if not self.is_over:
            self._end()
            self._tell(SuspectSession)

    def lose(self) -> None:
        """Whoever this is for is known to be gone: end it, with all that it holds as failed."""
        if not self.is_over:
            self._end()
            self._tell(partial(CloseSession, seen=self._seen, failed=True))

    def _tell(self, make: Callable[[Claim], SuspectSession | CloseSession]) -> None:
        """Have it decided; nobody waits for that, and nobody else would say it."""
        resuming = self._resuming
        if resuming is not None and not resuming.done():
            # From then on the new claim alone is heard.
            resuming.add_done_callback(lambda _: self._tell(make))
            return
        try:
            self._engine.tell(self._shard, make(self.claim))
        except Full as error:
            self.loop.call_later(error.after_ms / 1000, self._tell, make)
        except MillraceError:
            # The engine has ended: its next life will suspect the session.
            return

    async def close(self) -> None:
        """End the session: what it holds is given back at once.

        Raises:
            Full: it is not closed; close it again.
        """
        if self.is_over:
            return
        self._end()
        make = partial(CloseSession, seen=self._seen)
        try:
            await asyncio.wait([self._task])
            if self._resuming is not None:
                # From then on the new claim alone is heard.
                await asyncio.wait([self._resuming])
            await self._engine.ask(self._shard, make(self.claim), int)
        except Full:
            self.is_over = False
            self._keepalive.closers[self] = self.close
            raise
        except asyncio.CancelledError:
            self._tell(make)
            raise

    def _end(self) -> None:
        self.is_over = True
        self._keepalive.closers.pop(self, None)
        self._ready.clear()
        self._task.cancel()
        self._told.set()


def _heard(task: asyncio.Task[None]) -> None:
    """Those who wait are told; if nobody does any more, it is no error that went unnoticed."""
    if not task.cancelled():
        task.exception()
