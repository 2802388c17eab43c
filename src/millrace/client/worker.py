"""`Worker`: calls a function with the messages of a queue, with prefetch, concurrency and retries.

Rule 1: a message is settled only after its function has returned.
Rule 2: all leases held by the worker are extended until they end: prefetched messages, messages in
work, and those being settled. If the function replaced its message, the successor is extended.
Rule 3: a message whose lease was lost (to a newer revision, or another worker) is neither settled
nor released.
Rule 4: when a worker has ended, it holds no leases, unless the engine ended before.
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
from millrace.client.lease import Lease, grant_of, seq_of
from millrace.client.queue import Queue, engine_and_shard, engine_and_shards
from millrace.client.retrying import retry_until_answered
from millrace.client.signals import stopping_on_signals
from millrace.client.transaction import Transaction, once_only
from millrace.client.work import release_unseen
from millrace.client.work_function import WorkFunction, WorkItem
from millrace.core import plain_types, validate
from millrace.errors import Closed, Gone, Invalid, MillraceError, Refused, Stale, Unknown, detached
from millrace.event_loop import run_to_completion

T = TypeVar("T")

log = logging.getLogger("millrace.worker")


class Verdict(enum.Enum):
    """Outcome for a message that has failed too often, decided by `on_poison`."""

    RELEASE = "release"
    """Release it as failed, to be delivered again."""
    SETTLE = "settle"
    """Settle it."""
    DISCARD = "discard"
    """Make it a dead letter: it goes to the queue's `dead_letter`, or is dropped without one."""


Handle = Callable[[Lease], object] | Callable[[Lease, Transaction], object]
"""Processes a message."""

OnPoison = (
    Callable[[Lease, BaseException], object] | Callable[[Lease, BaseException, Transaction], object]
)
"""Decides about a message that has failed too often: returns a `Verdict`, or an awaitable of
one."""


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """Counters of a worker."""

    handled: int = 0
    """Messages whose function returned, and that were settled."""
    failed: int = 0
    """Failures: the function raised an error, or its transaction could not be committed."""
    superseded: int = 0
    """Messages whose lease was lost: to a newer revision, or to another worker."""
    running: int = 0
    """Messages in work now."""


class Worker:
    """Calls a function with the messages of a queue as they arrive, several at a time.

    `handle(message)` gets a `Lease`. If it returns, the message is settled; if it raises, the
    message is released as failed. If it takes a second argument, a `Transaction`, the operations
    collected there are committed atomically with the settling of the message: exactly-once
    processing along the chain. An asynchronous function runs on the event loop, a plain one in a
    thread. If it replaces its message (`Lease.replace`), the successor is extended and settled
    instead.

    `await worker.run()` works until `stop()`; `async with worker:` works in the background of the
    body, and stops at its end. A worker runs once. Stop it before closing its engine: otherwise it
    ends with an error, and the messages it holds are delivered again only after their leases
    expire. While a server is unreachable, the worker keeps retrying; calls with an unknown outcome
    are repeated safely.
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

        `concurrency`: number of messages processed at a time. `prefetch`: number of messages leased
        ahead in addition, by default as many as `concurrency`. `lease_seconds`: time of the leases,
        which are extended while they are held, so that this is the delay of redelivery after a
        crash. `idle`: seconds without messages after which the worker ends; with None it never
        does. `grace_seconds`: time that running functions get to finish after a stop.

        `on_poison(message, error)` is called for a message that has failed `max_failures` times or
        more, and decides: `Verdict.SETTLE` settles it, `Verdict.DISCARD` makes it a dead letter,
        anything else releases it as usual. It may take a transaction as well, for example to
        publish the message elsewhere, which is committed if the message is settled or discarded.
        The queue has its own `max_failures`, which makes dead letters without calling `on_poison`.

        Raises:
            Invalid, TooLarge: a function or a number is not valid; the error names the field.
        """
        if not isinstance(queue, Queue):
            raise Invalid(
                f"queue is {validate.shown(queue)}, not a queue of millrace.open", field="queue"
            )
        self._queue = queue
        self._handle = WorkFunction(handle, "handle", 1)
        self._on_poison = None if on_poison is None else WorkFunction(on_poison, "on_poison", 2)
        limit = limits.WORKER_CONCURRENCY_MAX
        self._concurrency = validate.count(concurrency, "concurrency", limit)
        self._prefetch = self._concurrency
        if prefetch is not None:
            self._prefetch = (
                0
                if plain_types.whole(prefetch) == 0
                else validate.count(prefetch, "prefetch", limit)
            )
        self._lease_ms = validate.millis(lease_seconds, "lease_seconds", limits.LEASE_MS_MAX)
        self._idle_ms: int | None = None
        if idle is not None:
            self._idle_ms = validate.millis(idle, "idle", limits.WORK_IDLE_MS_MAX, least_ms=0)
        self._max_failures: int | None = None
        if max_failures is not None:
            limit = limits.WORKER_FAILURES_MAX
            self._max_failures = validate.count(max_failures, "max_failures", limit)
        limit = limits.WORKER_GRACE_MS_MAX
        self._grace_ms = validate.millis(grace_seconds, "grace_seconds", limit, least_ms=0)

        self._ahead: deque[Lease] = deque()
        self._running: dict[asyncio.Task[None], WorkItem] = {}
        self._handled = self._failed = self._superseded = 0
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._replaced_briefly = asyncio.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main_task: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(self._concurrency, "millrace-worker")

    @property
    def stats(self) -> WorkerStats:
        """Counters since the start."""
        return WorkerStats(self._handled, self._failed, self._superseded, len(self._running))

    def __repr__(self) -> str:
        return f"<Worker of {self._queue!r}: {self.stats}>"

    # --- Beginning and end ----------------------------------------------------------------------

    async def run(self, *, signals: bool = False) -> None:
        """Process messages until `stop` is called, or until none arrived for the idle time.

        With `signals`, SIGINT and SIGTERM stop it, the second signal at once. Within `async with`
        it waits for the end. If it is cancelled, it stops at once, and has stopped when the
        cancellation is raised.

        Raises:
            Fatal, Closed: the engine has ended.
            NotFound: the queue was deleted.
            Closed: this worker has ended before.
        """
        with stopping_on_signals(self.stop) if signals else nullcontext():
            await self._end(self._begin())

    def stop(self, *, at_once: bool = False) -> None:
        """Stop the worker: lease nothing more, and release prefetched messages.

        Running functions get the grace time to return; after that, or `at_once`, they are cancelled
        and their messages released. A thread cannot be cancelled: its message is released while it
        still runs. May be called from any thread and from signal handlers, and more than once.
        """
        if self._loop is None:
            self._stop(at_once=at_once)
            return
        # A closed loop has ended its workers already.
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
        if self._main_task is not None:
            await self._end(self._main_task)

    def _begin(self) -> asyncio.Task[None]:
        if self._main_task is None:
            self._loop = asyncio.get_running_loop()
            self._main_task = self._loop.create_task(self._main())
        elif self._main_task.done():
            raise Closed("this worker has ended; make another")
        return self._main_task

    async def _end(self, life: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait([life])
        except asyncio.CancelledError:
            self._stop(at_once=True)
            with suppress(MillraceError):
                await run_to_completion(life)
            raise
        life.result()

    async def _main(self) -> None:
        prefetching, extending = (
            asyncio.ensure_future(self._prefetch_messages()),
            asyncio.ensure_future(self._extend_held()),
        )
        for task in (prefetching, extending):
            task.add_done_callback(self._note)
        await self._stopping.wait()
        prefetching.cancel()
        await asyncio.wait([prefetching])
        await self._give_back()
        await self._let_run()
        extending.cancel()
        await asyncio.wait([extending])
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._error is not None:
            raise self._error

    async def _let_run(self) -> None:
        """Wait for running functions until the grace time ends; then give them up."""
        hurry = asyncio.ensure_future(self._hurrying.wait())
        deadline = asyncio.get_running_loop().time() + self._grace_ms / 1000
        while self._running and not hurry.done():
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            ended = [hurry, *self._running]
            await asyncio.wait(ended, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        self._hurrying.set()
        hurry.cancel()
        for item in self._running.values():
            item.give_up()
        if self._running:
            await asyncio.wait(list(self._running))

    def _note(self, task: asyncio.Future[None]) -> None:
        """End the worker on an error that does not concern a single message."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._error = self._error or error
            self._stop(at_once=True)

    # --- Leases ---------------------------------------------------------------------------------

    async def _prefetch_messages(self) -> None:
        """Prefetch messages whenever there is room."""
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
            leases = await self._with_retries(lease)
            if left_ms is not None:
                left_ms = self._idle_ms if leases or self._running else left_ms - wait_ms
                if left_ms is not None and left_ms <= 0 and not (leases or self._running):
                    self._stop(at_once=False)
                    return
            self._ahead.extend(leases)
            self._fill()

    def _fill(self) -> None:
        """Start functions, up to the concurrency."""
        while self._ahead and len(self._running) < self._concurrency:
            if self._stopping.is_set():
                return
            lease = self._ahead.popleft()
            if lease.lost is not None:
                self._lose(lease, lease.lost)
                continue
            item = WorkItem(lease, self._replaced)
            task = asyncio.ensure_future(self._work(item))
            self._running[task] = item
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._note(task)
        self._changed.set()
        self._fill()

    async def _extend_held(self) -> None:
        """Extend all held leases at a third of their time; cancel functions whose lease was
        lost."""
        engine, _ = engine_and_shard(self._queue)
        seconds = self._lease_ms / 1000
        while True:
            self._replaced_briefly.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds / 3):
                    await self._replaced_briefly.wait()
            items = list(self._running.values())
            until_ms = engine.now_ms() + self._lease_ms
            leases = [
                lease
                for lease in (*self._ahead, *(item.lease for item in items))
                # Never shorten a lease that the function extended for longer.
                if _open(lease) and lease.deadline_ms <= until_ms
            ]
            if leases:
                await self._with_retries(partial(self._queue.extend, leases, seconds))
            for item in items:
                if item.lease.lost is not None:
                    item.lose()

    def _replaced(self, lease: Lease) -> None:
        """Extend early if a successor is leased for a shorter time."""
        if grant_of(lease).lease_ms < self._lease_ms:
            self._replaced_briefly.set()

    async def _give_back(self) -> None:
        """Release prefetched messages, without counting a delivery."""
        leases = [lease for lease in self._ahead if _open(lease)]
        self._ahead.clear()
        if leases and self._error is None:
            try:
                await self._with_retries(partial(release_unseen, leases))
            except MillraceError as error:
                self._error = error
                self._stop(at_once=True)

    async def _with_retries(
        self, ask: Callable[[], Awaitable[T]], transaction: Transaction | None = None
    ) -> T:
        """Call the engine, with retries while it is full or, until the worker is stopped,
        unreachable."""

        def on_retry(error: MillraceError) -> None:
            if isinstance(error, Unknown) and transaction is not None:
                once_only(transaction, self._lease_ms)
            log.info("queue %s: %s; asking again", self._queue.name, error)

        engine, _ = engine_and_shard(self._queue)
        return await retry_until_answered(
            engine, ask, on_retry=on_retry, may_wait=lambda: not self._stopping.is_set()
        )

    # --- Messages -------------------------------------------------------------------------------

    async def _work(self, item: WorkItem) -> None:
        """Process one message, within a span if there is telemetry."""
        engine, shards = engine_and_shards(self._queue)
        telemetry, lease = engine.telemetry, item.lease
        if telemetry is None:
            return await self._do(item)
        with telemetry.processing(shards.label, str(lease.seq), lease.headers) as step:
            await self._do(item, lambda: telemetry.processed(step, item.error))

    async def _do(self, item: WorkItem, called: Callable[[], None] | None = None) -> None:
        is_done = await self._call(item, self._handle, item.lease)
        if called is not None:
            called()
        if is_done:
            error: BaseException | None = await self._settle(item)
            if error is None:
                self._handled += 1
                return
        else:
            error = item.error
        lease = item.lease
        if item.is_lost and lease.lost is not None:
            self._lose(lease, lease.lost)
        elif item.is_given_up:
            log.info("message %s of queue %s is given back: stop", lease.seq, self._queue.name)
            await self._release(lease, failed=False)
        elif error is not None:
            await self._fail(item, error)

    async def _call(self, item: WorkItem, function: WorkFunction, *arguments: object) -> bool:
        item.transaction = None
        if function.takes_transaction:
            engine, _ = engine_and_shard(self._queue)
            item.transaction = Transaction(engine, self._queue.space)
            arguments = (*arguments, item.transaction)
        return await item.call(function, self._threads, arguments)

    async def _settle(self, item: WorkItem, *, discards: bool = False) -> MillraceError | None:
        """Settle or discard the message, together with its transaction; return why that was
        refused."""
        lease, transaction = item.lease, item.transaction
        if lease.lost is not None:
            return lease.lost
        if transaction is not None:
            try:
                (transaction.discard if discards else transaction.settle)(lease)
            except Closed as error:
                # The function ended the transaction itself, which only the worker may do.
                return detached(error)
        try:
            if transaction is not None:
                await self._with_retries(partial(_commit, transaction), transaction)
            elif _open(lease):
                settle = self._queue.discard if discards else self._queue.settle
                await self._with_retries(partial(settle, lease))
        except Refused as error:
            return detached(error)
        return None

    async def _fail(self, item: WorkItem, error: BaseException) -> None:
        """Release a failed message, or let `on_poison` decide."""
        lease = item.lease
        failures = lease.failures + 1
        is_lost = isinstance(error, Stale | Gone)
        is_poison = self._max_failures is not None and failures >= self._max_failures
        if not (is_poison and not is_lost and await self._judge(item, error)) and (
            lost_error := await self._release(lease, failed=True)
        ):
            return self._lose(lease, lost_error)
        self._failed += 1
        log.warning(
            "message %s of queue %s failed (failure %d): %r",
            lease.seq,
            self._queue.name,
            failures,
            error,
            exc_info=error if log.isEnabledFor(logging.DEBUG) else None,
        )

    async def _judge(self, item: WorkItem, error: BaseException) -> bool:
        """Ask `on_poison` about a message; return True if the message was ended."""
        if self._on_poison is None or self._hurrying.is_set():
            return False
        if await self._call(item, self._on_poison, item.lease, error):
            discards = item.result is Verdict.DISCARD
            if not discards and item.result is not Verdict.SETTLE:
                return False
            refusal: BaseException | None = await self._settle(item, discards=discards)
            if refusal is None:
                return True
        else:
            refusal = item.error
        seq, name = item.lease.seq, self._queue.name
        log.warning("message %s of queue %s was not ended as poison: %r", seq, name, refusal)
        return False

    async def _release(self, lease: Lease, *, failed: bool) -> Refused | None:
        """Release a message unless the function ended it; return why its lease was lost, if it
        was."""
        if not _open(lease):
            return lease.lost
        try:
            await self._with_retries(partial(self._queue.release, lease, failed=failed))
        except (Stale, Gone) as error:
            return detached(error)
        return None

    def _lose(self, lease: Lease, why: Refused) -> None:
        self._superseded += 1
        log.info("message %s of queue %s is no longer ours: %s", lease.seq, self._queue.name, why)


def _open(lease: Lease) -> bool:
    """Return True if a message was neither settled nor released, nor lost."""
    return seq_of(lease) in grant_of(lease).open


async def _commit(transaction: Transaction) -> None:
    """Commit the transaction; may be repeated if nothing was accepted."""
    await transaction.__aexit__(None, None, None)
