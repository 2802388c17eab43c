"""Prefetch buffer of a session: receives deliveries ahead of the program.

It requests more messages while the program works on those it has, and stops when half of the credit
is buffered. It does not reference the `Session`, so that a session that is dropped without closing
is noticed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from pyroaring import BitMap64

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.lease import Lease, LeaseCall, grant_of
from millrace.client.lease_group import Keepalive, LeaseGroup
from millrace.client.shards import Shards
from millrace.core.answers import Leased
from millrace.core.model import ShardId
from millrace.core.session_commands import (
    Claim,
    CloseSession,
    Receive,
    ReceiveResult,
    ResumeSession,
    SessionDelivery,
    SessionRef,
    SuspectSession,
)
from millrace.errors import Closed, Full, MillraceError, Suspected
from millrace.event_loop import run_to_completion

_COUNT = 1_000
"""Messages per request where credit is granted explicitly."""


class PrefetchBuffer:
    """Buffers the deliveries of one session, in the order of their numbers."""

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
        """True after the session was closed or given up."""
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
        self._unread: deque[tuple[LeaseGroup, dict[int, int]]] = deque()
        """Messages whose bodies were not read yet: seq → delivery number, both ascending."""
        self._grants: dict[int, tuple[LeaseGroup, dict[int, int]]] = {}
        """By lease call: its group, and the delivery numbers of its seqs."""
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
            # Retrieved here, raised by `next`.
            task.exception()
        self._told.set()

    async def next(self) -> Lease | None:
        """Return the next message; None if no more will come.

        Raises:
            The error that ended the session: the queue was deleted, the session resumed elsewhere,
                or the engine closed.
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
        """Skip redelivered messages that were ended since; return True if a message is buffered."""
        ready = self._ready
        while ready and ready[0].seq not in grant_of(ready[0]).open:
            ready.popleft()
        return bool(ready)

    async def restart(self, expected: int | None) -> None:
        """Request again the held messages from this delivery number on; None: just continue."""
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
        """Wait until the buffer is low; return False after a while if the engine may have been
        replaced."""
        self._wanted.clear()
        try:
            async with asyncio.timeout(
                limits.WIRE_LOOK_SECONDS if self._engine.is_remote else None
            ):
                return await self._wanted.wait()
        except TimeoutError:
            return False

    async def _receive(self, count: int) -> bool:
        """Request more messages; return False if there were none."""
        command = Receive(self.claim, self._expected, count)
        wait_ms = limits.WAIT_STEP_MS if count and not self.is_cancelled else 0
        try:
            answer = await self._engine.ask(self._shard, command, ReceiveResult, wait_ms=wait_ms)
        except Full as error:
            await asyncio.sleep(error.after_ms / 1000)
            return True
        except Suspected:
            if not self._engine.is_remote:
                raise
            await self.resume(command.claim)
            return True
        for lease, (group, _) in list(self._grants.items()):
            if not group.open:
                del self._grants[lease]
        for delivery in answer.deliveries:
            self._take(delivery)
        self._expected = answer.next
        return bool(answer.deliveries)

    async def resume(self, claim: Claim) -> None:
        """Resume the session after the engine was restarted, or heard no heartbeat for a while.

        Messages held here stay held, under the same numbers. Concurrent callers share one attempt.
        """
        if self._resuming is None:
            if self.claim is not claim:
                return
            self._resuming = self.loop.create_task(self._resume())
            self._resuming.add_done_callback(_heard)
        await run_to_completion(self._resuming)

    async def _resume(self) -> None:
        command = ResumeSession(self.claim.session, self.claim.history)
        try:
            self.claim = (await self._engine.ask(self._shard, command, SessionRef)).claim
        finally:
            self._resuming = None

    def _take(self, delivery: SessionDelivery) -> None:
        leased = Leased(delivery.lease, delivery.seqs(), delivery.deadline_ms, delivery.counts)
        lease_ms = self._lease_ms or delivery.deadline_ms
        group, numbers = self._grants.get(delivery.lease, (None, {}))
        if group is None:
            owner = (self._engine, self._keepalive, self._shards, self._shard)
            group = LeaseGroup(*owner, leased, lease_ms)
        group.open |= leased.seqs
        self._grants[delivery.lease] = group, numbers | delivery.numbers
        runs: list[dict[int, int]] = []
        last = 0
        for seq, number in delivery.numbers.items():
            if not runs or seq < last:
                runs.append({})
            runs[-1][seq] = number
            last = seq
        self._unread.extend((group, run) for run in runs)

    async def _read(self) -> None:
        """Read the bodies of the next messages, as many as memory permits."""
        group, numbers = self._unread[0]
        seqs = BitMap64(numbers)
        telemetry = self._engine.telemetry
        began = None if telemetry is None else telemetry.began()
        rows = await self._engine.rows(
            self._shard, seqs, limits.LEASE_BYTES_MAX, group.lease, group.history
        )
        if telemetry is not None and began is not None:
            telemetry.received(self._shards.label, began, (row.headers for row in rows))
        self._unread.popleft()
        if len(rows) < len(numbers):
            upto = rows[-1].seq if rows else seqs.max()
            rest = {seq: number for seq, number in numbers.items() if seq > upto}
            if rest:
                self._unread.appendleft((group, rest))
            # The missing ones were replaced by newer revisions of their keys.
            group.open -= seqs - BitMap64([row.seq for row in rows]) - BitMap64(rest)
        self._ready.extend(Lease(group, row, numbers[row.seq]) for row in rows)
        self._told.set()

    # --- What it holds ------------------------------------------------------------------------

    def held(self, numbers: Callable[[int], bool]) -> list[tuple[LeaseCall, dict[int, int]]]:
        """Return the open messages that the program received, filtered by number, by lease call."""
        calls: list[tuple[LeaseCall, dict[int, int]]] = []
        for group, number_of in self._grants.values():
            seqs = BitMap64(
                [
                    seq
                    for seq, number in number_of.items()
                    if number < self._seen and numbers(number)
                ]
            )
            seqs &= group.open
            if seqs:
                call = LeaseCall(self._shard, group.lease, group.history, seqs, group)
                calls.append((call, number_of))
        return calls

    def _check_open(self) -> None:
        if self.is_over:
            raise Closed("this session was closed; open another with queue.session()")

    # --- The end ------------------------------------------------------------------------------

    async def cancel(self) -> None:
        """Stop deliveries; messages that are held stay so."""
        await self._engine.ask(self._shard, CloseSession(self.claim, self._seen, keep=True), int)
        self.is_cancelled = True
        await self.restart(None)

    def leave(self) -> None:
        """Suspect the session: the program dropped it, perhaps with messages in work."""
        if not self.is_over:
            self._end()
            self._tell(SuspectSession)

    def lose(self) -> None:
        """Close the session of a consumer that is known to be gone; its messages count as
        failed."""
        if not self.is_over:
            self._end()
            self._tell(partial(CloseSession, seen=self._seen, failed=True))

    def _tell(self, make: Callable[[Claim], SuspectSession | CloseSession]) -> None:
        """Send the end of the session without waiting for an answer, retrying while the engine is
        full."""
        resuming = self._resuming
        if resuming is not None and not resuming.done():
            # After the resumption only the new claim is accepted.
            resuming.add_done_callback(lambda _: self._tell(make))
            return
        try:
            self._engine.tell(self._shard, make(self.claim))
        except Full as error:
            self.loop.call_later(error.after_ms / 1000, self._tell, make)
        except MillraceError:
            # The engine has ended: the next one suspects the session.
            return

    async def close(self) -> None:
        """Close the session; its messages are released at once.

        Raises:
            Full: the session is not closed; retry.
        """
        if self.is_over:
            return
        self._end()
        make = partial(CloseSession, seen=self._seen)
        try:
            await asyncio.wait([self._task])
            if self._resuming is not None:
                # After the resumption only the new claim is accepted.
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
    """Mark an error as retrieved; the waiters get it from the task."""
    if not task.cancelled():
        task.exception()
