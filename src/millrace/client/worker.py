"""Workers: a function that is called with the messages of a queue, as they come.

Rule 1: a message is settled after its function has returned, never before and never otherwise.
Rule 2: whatever is leased is extended until it has ended here: what waits ahead, what is worked on,
and what is being settled. Of a message that the function has replaced, its successor.
Rule 3: a message that was lost (a newer revision, another worker) is neither settled nor released.
Rule 4: when a worker has ended, nothing that it leased is still leased by it, unless the engine has
ended first.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TypeVar

from millrace import limits
from millrace.client.finish import finish
from millrace.client.function import Function
from millrace.client.insisting import insist
from millrace.client.lease import Lease, grant_of, seq_of
from millrace.client.queue import Queue, engine_and_shard, engine_and_shards
from millrace.client.run import Run
from millrace.client.signals import stopping_on_signals
from millrace.client.transaction import Transaction, once_only
from millrace.client.work import return_unseen
from millrace.core import check, exact
from millrace.errors import Closed, Gone, Invalid, MillraceError, Refused, Stale, Unknown, detached

T = TypeVar("T")

log = logging.getLogger("millrace.worker")


class Verdict(enum.Enum):
    """What is to become of a message that has failed too often."""

    RELEASE = "release"
    """It is given back as failed, and will come again."""
    SETTLE = "settle"
    """It is done with."""
    DISCARD = "discard"
    """It is a dead letter: it goes to the queue's `dead_letter`, or is dropped without one."""


Handle = Callable[[Lease], object] | Callable[[Lease, Transaction], object]
"""Works on a message."""

OnPoison = (
    Callable[[Lease, BaseException], object] | Callable[[Lease, BaseException, Transaction], object]
)
"""Decides about a message that has failed too often: returns a `Verdict`, or is awaited for one."""


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """What a worker has done so far."""

    handled: int = 0
    """Messages whose function returned, and which were settled."""
    failed: int = 0
    """Failures: the function raised an error, or what it did could not be committed."""
    superseded: int = 0
    """Messages that were lost while they were held: to a newer revision, or to another worker."""
    running: int = 0
    """Messages that are being worked on."""


class Worker:
    """Calls a function with the messages of a queue, as they come, several at a time.

    `handle(message)` gets a `Lease`. If it returns, the message is settled; if it raises, the
    message is released as failed. Where it takes a second argument, a `Transaction`, what it
    publishes there and the settling of its message are done at once, or not at all: exactly once
    along the chain. An asynchronous function runs on the event loop, a plain one in a thread. If it
    replaces its message (`Lease.replace`), the successor is extended and settled in its place.

    `await worker.run()` works until `stop()`; `async with worker:` works beside the body, and stops
    at its end. A worker works once. It is to be stopped before its engine is closed, which ends it
    with an error, and what it holds comes back only when its time is over. A server that is away is
    waited for; what it was asked and did not answer is done once.
    """

    def __init__(
        self,
        queue: Queue,
        handle: Handle,
        *,
        concurrency: int = 8,
        prefetch: int | None = None,
        lease_seconds: float = 30,
        idle: float | None = None,
        max_failures: int | None = None,
        on_poison: OnPoison | None = None,
        grace_seconds: float = 30,
    ) -> None:
        """Prepare to call `handle` with the messages of `queue`; nothing is leased yet.

        `concurrency`: how many messages are worked on at a time. `prefetch`: how many are leased
        ahead besides, as many as are worked on unless it is given. `lease_seconds`: for how long
        messages are leased; they are extended while they are held, so that this is how long they
        are kept from others after a crash. `idle`: the worker ends when nothing came for so many
        seconds; never, if it is None. `grace_seconds`: how long a stop leaves to functions that
        run.

        `on_poison(message, error)` is called for a message that has failed `max_failures` times or
        more, and decides: `Verdict.SETTLE` ends it, `Verdict.DISCARD` makes a dead letter of it,
        anything else releases it as usual. It may take a transaction as well, which is done if the
        message is settled or discarded: to put it elsewhere. The queue has a `max_failures` of its
        own, which makes dead letters without asking.

        Raises:
            Invalid, TooLarge: a function or a number, named by the field of the error.
        """
        if not isinstance(queue, Queue):
            raise Invalid(
                f"queue is {check.shown(queue)}, not a queue of millrace.open", field="queue"
            )
        self._queue = queue
        self._handle = Function(handle, "handle", 1)
        self._on_poison = None if on_poison is None else Function(on_poison, "on_poison", 2)
        most = limits.WORKER_CONCURRENCY_MAX
        self._concurrency = check.count(concurrency, "concurrency", most)
        self._prefetch = self._concurrency
        if prefetch is not None:
            self._prefetch = (
                0 if exact.whole(prefetch) == 0 else check.count(prefetch, "prefetch", most)
            )
        self._lease_ms = check.millis(lease_seconds, "lease_seconds", limits.LEASE_MS_MAX)
        self._idle_ms: int | None = None
        if idle is not None:
            self._idle_ms = check.millis(idle, "idle", limits.WORK_IDLE_MS_MAX, least_ms=0)
        self._max_failures: int | None = None
        if max_failures is not None:
            most = limits.WORKER_FAILURES_MAX
            self._max_failures = check.count(max_failures, "max_failures", most)
        most = limits.WORKER_GRACE_MS_MAX
        self._grace_ms = check.millis(grace_seconds, "grace_seconds", most, least_ms=0)

        self._ahead: deque[Lease] = deque()
        self._running: dict[asyncio.Task[None], Run] = {}
        self._handled = self._failed = self._superseded = 0
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._replaced_briefly = asyncio.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._life: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(self._concurrency, "millrace-worker")

    @property
    def stats(self) -> WorkerStats:
        """What was done so far."""
        return WorkerStats(self._handled, self._failed, self._superseded, len(self._running))

    def __repr__(self) -> str:
        return f"<Worker of {self._queue!r}: {self.stats}>"

    # --- Beginning and end ----------------------------------------------------------------------

    async def run(self, *, signals: bool = False) -> None:
        """Work until `stop` is called, or until nothing came for the idle time.

        With `signals`, SIGINT and SIGTERM stop it, and the second one does so at once. Within
        `async with` it waits for the end. If it is cancelled, it stops at once, and has stopped
        when the cancellation is raised.

        Raises:
            Fatal, Closed: the engine has ended.
            NotFound: the queue was deleted.
            Closed: this worker has ended before.
        """
        with stopping_on_signals(self.stop) if signals else nullcontext():
            await self._end(self._begin())

    def stop(self, *, at_once: bool = False) -> None:
        """Ask for the end: nothing more is leased, and what was leased ahead is given back.

        Functions that run have the grace time to return; then, or `at_once`, they are cancelled and
        their messages given back. A thread cannot be cancelled: its message is given back while it
        still runs. May be called from any thread and from signal handlers, and more than once.
        """
        if self._loop is None:
            self._stop(at_once=at_once)
            return
        # A loop that was closed has ended its workers.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: self._stop(at_once=at_once))

    def _stop(self, *, at_once: bool) -> None:
        self._stopping.set()
        if at_once:
            self._hurrying.set()

    async def __aenter__(self) -> Worker:
        self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop(at_once=isinstance(error, asyncio.CancelledError))
        if self._life is not None:
            await self._end(self._life)

    def _begin(self) -> asyncio.Task[None]:
        if self._life is None:
            self._loop = asyncio.get_running_loop()
            self._life = self._loop.create_task(self._live())
        elif self._life.done():
            raise Closed("this worker has ended; make another")
        return self._life

    async def _end(self, life: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait([life])
        except asyncio.CancelledError:
            self._stop(at_once=True)
            with suppress(MillraceError):
                await finish(life)
            raise
        life.result()

    async def _live(self) -> None:
        feeding, holding = asyncio.ensure_future(self._feed()), asyncio.ensure_future(self._hold())
        for task in (feeding, holding):
            task.add_done_callback(self._note)
        await self._stopping.wait()
        feeding.cancel()
        await asyncio.wait([feeding])
        await self._give_back()
        await self._let_run()
        holding.cancel()
        await asyncio.wait([holding])
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._error is not None:
            raise self._error

    async def _let_run(self) -> None:
        """Wait for functions that run, as long as there is time; then give them up."""
        hurry = asyncio.ensure_future(self._hurrying.wait())
        until = asyncio.get_running_loop().time() + self._grace_ms / 1000
        while self._running and not hurry.done():
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                break
            ended = [hurry, *self._running]
            await asyncio.wait(ended, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        self._hurrying.set()
        hurry.cancel()
        for run in self._running.values():
            run.give_up()
        if self._running:
            await asyncio.wait(list(self._running))

    def _note(self, task: asyncio.Future[None]) -> None:
        """An error that is not one message's own ends the worker: nothing more can be settled."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._error = self._error or error
            self._stop(at_once=True)

    # --- Leases ---------------------------------------------------------------------------------

    async def _feed(self) -> None:
        """Lease ahead, whenever there is room for some."""
        left_ms = self._idle_ms
        while True:
            self._changed.clear()
            held = len(self._running) + len(self._ahead)
            room = self._concurrency + self._prefetch - held
            if room < max(self._prefetch // 2, 1):
                await self._changed.wait()
                continue
            wait_ms = limits.WAIT_STEP_MS
            if left_ms is not None:
                wait_ms = min(wait_ms, max(left_ms, limits.WORKER_LOOK_MS if held else 0))
            count, seconds = min(room, limits.LEASE_MESSAGES_MAX), self._lease_ms / 1000
            lease = partial(self._queue.lease, count, seconds=seconds, wait=wait_ms / 1000)
            leases = await self._insist(lease)
            if left_ms is not None:
                left_ms = self._idle_ms if leases or self._running else left_ms - wait_ms
                if left_ms is not None and left_ms <= 0 and not (leases or self._running):
                    self._stop(at_once=False)
                    return
            self._ahead.extend(leases)
            self._fill()

    def _fill(self) -> None:
        """Let functions begin, as many as may run."""
        while self._ahead and len(self._running) < self._concurrency:
            if self._stopping.is_set():
                return
            lease = self._ahead.popleft()
            if lease.lost is not None:
                self._lose(lease, lease.lost)
                continue
            run = Run(lease, self._replaced)
            task = asyncio.ensure_future(self._work(run))
            self._running[task] = run
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._note(task)
        self._changed.set()
        self._fill()

    async def _hold(self) -> None:
        """Extend what is held, at a third of its time; cancel what turns out to be lost."""
        engine, _ = engine_and_shard(self._queue)
        seconds = self._lease_ms / 1000
        while True:
            self._replaced_briefly.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds / 3):
                    await self._replaced_briefly.wait()
            runs = list(self._running.values())
            until_ms = engine.now_ms() + self._lease_ms
            leases = [
                lease
                for lease in (*self._ahead, *(run.lease for run in runs))
                # What the function itself holds for longer is not cut short.
                if _open(lease) and lease.deadline_ms <= until_ms
            ]
            if leases:
                await self._insist(partial(self._queue.extend, leases, seconds))
            for run in runs:
                if run.lease.lost is not None:
                    run.lose()

    def _replaced(self, lease: Lease) -> None:
        """A successor that is leased for a shorter time must not wait for the next round."""
        if grant_of(lease).lease_ms < self._lease_ms:
            self._replaced_briefly.set()

    async def _give_back(self) -> None:
        """Release what no function was called for: nobody has seen it."""
        leases = [lease for lease in self._ahead if _open(lease)]
        self._ahead.clear()
        if leases and self._error is None:
            try:
                await self._insist(partial(return_unseen, leases))
            except MillraceError as error:
                self._error = error
                self._stop(at_once=True)

    async def _insist(
        self, ask: Callable[[], Awaitable[T]], transaction: Transaction | None = None
    ) -> T:
        """What the engine answers, once it does: while it has no room, it is asked again.

        A server that is away is waited for, unless this is to end.
        """

        def told(error: MillraceError) -> None:
            if isinstance(error, Unknown) and transaction is not None:
                once_only(transaction, self._lease_ms)
            log.info("queue %s: %s; asking again", self._queue.name, error)

        engine, _ = engine_and_shard(self._queue)
        return await insist(engine, ask, told=told, waits=lambda: not self._stopping.is_set())

    # --- Messages -------------------------------------------------------------------------------

    async def _work(self, run: Run) -> None:
        """What happens to one message."""
        engine, shards = engine_and_shards(self._queue)
        telemetry, lease = engine.telemetry, run.lease
        if telemetry is None:
            return await self._do(run)
        with telemetry.processing(shards.label, str(lease.seq), lease.headers) as step:
            await self._do(run, lambda: telemetry.processed(step, run.error))

    async def _do(self, run: Run, called: Callable[[], None] | None = None) -> None:
        is_done = await self._call(run, self._handle, run.lease)
        if called is not None:
            called()
        if is_done:
            error: BaseException | None = await self._settle(run)
            if error is None:
                self._handled += 1
                return
        else:
            error = run.error
        lease = run.lease
        if run.is_lost and lease.lost is not None:
            self._lose(lease, lease.lost)
        elif run.is_given_up:
            log.info("message %s of queue %s is given back: stop", lease.seq, self._queue.name)
            await self._release(lease, failed=False)
        elif error is not None:
            await self._fail(run, error)

    async def _call(self, run: Run, function: Function, *arguments: object) -> bool:
        run.transaction = None
        if function.takes_transaction:
            engine, _ = engine_and_shard(self._queue)
            run.transaction = Transaction(engine, self._queue.space)
            arguments = (*arguments, run.transaction)
        return await run.call(function, self._threads, arguments)

    async def _settle(self, run: Run, *, discards: bool = False) -> MillraceError | None:
        """Settle or discard the message, with all that is in its transaction.

        Returns why that was refused.
        """
        lease, transaction = run.lease, run.transaction
        if lease.lost is not None:
            return lease.lost
        if transaction is not None:
            try:
                (transaction.discard if discards else transaction.settle)(lease)
            except Closed as error:
                # The function has ended it, which is not its affair.
                return detached(error)
        try:
            if transaction is not None:
                await self._insist(partial(_commit, transaction), transaction)
            elif _open(lease):
                end = self._queue.discard if discards else self._queue.settle
                await self._insist(partial(end, lease))
        except Refused as error:
            return detached(error)
        return None

    async def _fail(self, run: Run, error: BaseException) -> None:
        """The function failed, or what it did was refused: the queue says what comes of that."""
        lease = run.lease
        failures = lease.failures + 1
        is_lost = isinstance(error, Stale | Gone)
        is_poison = self._max_failures is not None and failures >= self._max_failures
        if not (is_poison and not is_lost and await self._judge(run, error)) and (
            lost := await self._release(lease, failed=True)
        ):
            return self._lose(lease, lost)
        self._failed += 1
        log.warning(
            "message %s of queue %s failed (failure %d): %r",
            lease.seq,
            self._queue.name,
            failures,
            error,
            exc_info=error if log.isEnabledFor(logging.DEBUG) else None,
        )

    async def _judge(self, run: Run, error: BaseException) -> bool:
        """Ask what is to become of a poisonous message; whether it has ended."""
        if self._on_poison is None or self._hurrying.is_set():
            return False
        if await self._call(run, self._on_poison, run.lease, error):
            discards = run.result is Verdict.DISCARD
            if not discards and run.result is not Verdict.SETTLE:
                return False
            refusal: BaseException | None = await self._settle(run, discards=discards)
            if refusal is None:
                return True
        else:
            refusal = run.error
        seq, name = run.lease.seq, self._queue.name
        log.warning("message %s of queue %s was not ended as poison: %r", seq, name, refusal)
        return False

    async def _release(self, lease: Lease, *, failed: bool) -> Refused | None:
        """Give a message back, unless the function has ended it; returns how it was lost."""
        if not _open(lease):
            return lease.lost
        try:
            await self._insist(partial(self._queue.release, lease, failed=failed))
        except (Stale, Gone) as error:
            return detached(error)
        return None

    def _lose(self, lease: Lease, why: Refused) -> None:
        self._superseded += 1
        log.info("message %s of queue %s is no longer ours: %s", lease.seq, self._queue.name, why)


def _open(lease: Lease) -> bool:
    """Whether it was neither settled nor released, nor lost."""
    return seq_of(lease) in grant_of(lease).open


async def _commit(transaction: Transaction) -> None:
    """Do what it collected; where nothing was accepted, this may be called again."""
    await transaction.__aexit__(None, None, None)
