"""Long polls: requests that wait for messages until some arrive or the wait times out.

Leases, sessions, snapshots and cursor waits that find nothing are parked here, per shard and in the
order of arrival, instead of polling. A commit to the shard, the end of a lease or delay, or the
timeout of the request wakes them.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from millrace import limits
from millrace.core.answers import ShardLeases
from millrace.core.commands import (
    AwaitCursor,
    Command,
    LeaseFromShards,
    LeaseMessages,
    NextSnapshot,
    SnapshotShards,
)
from millrace.core.delivery import lease, quarantine, sessions, settle
from millrace.core.model import ShardId
from millrace.core.needs import Need
from millrace.core.session_commands import Receive
from millrace.core.state.draft import BatchContext, Draft
from millrace.core.state.view import View
from millrace.engine.command_request import CommandRequest
from millrace.engine.in_flight_entries import Decision, PendingAnswers
from millrace.errors import Full

_SOON_SECONDS = 0.001
"""Delay before a second look: timers may fire slightly early."""


class CoalescingTimer:
    """Calls back at the soonest of the times it was set to, and is unset then.

    A time shortly after the last call is postponed by up to `WAKE_STEP_MS`, so that one call serves
    many times.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._call = call
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._last_fired = -math.inf

    def set(self, at: float) -> None:
        """Fire at this time of the event loop, unless an earlier time is set."""
        at = max(at, self._last_fired + limits.WAKE_STEP_MS / 1000)
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        delay = max(at - self._loop.time(), _SOON_SECONDS)
        self._timer = self._loop.call_later(delay, self._fire)

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._last_fired = self._loop.time()
        self._call()


# --- Queues of waiting requests, by shard ---------------------------------------------------------
# Rule 1: a request that finds nothing keeps its place in the queue. Rule 2: workers (leases and
# sessions), followers and cursor waits have separate queues, because an empty result for one kind
# says nothing about the others. Rule 3: a request is decided again only if something has arrived
# that it has not seen.


@dataclass(slots=True)
class _PollQueue:
    """Requests that wait at one shard, in the order of arrival."""

    shard: ShardId
    changed: set[ShardId]
    """Shards of all queues at which a waiting request has ended."""
    leases: deque[CommandRequest] = field(default_factory=deque)
    """Lease calls and sessions."""
    has_sessions: bool = False
    """True if `leases` may contain sessions."""
    followers: deque[CommandRequest] = field(default_factory=deque)
    watchers: deque[CommandRequest] = field(default_factory=deque)
    """Requests that wait for a cursor to reach a position."""
    seen: int = 0
    """Last seq when the followers were last served; there is nothing new up to it."""
    ends: int = 0
    """Upper bound of the requests here, or that waited here, whose caller may have gone."""

    def __len__(self) -> int:
        return len(self.leases) + len(self.followers) + len(self.watchers)

    def count_end(self, _: asyncio.Future[object]) -> None:
        """Count a request that was answered or abandoned."""
        self.ends += 1
        self.changed.add(self.shard)

    def end(self, request: CommandRequest) -> None:
        """Remove a request whose wait timed out."""
        if self.leases and self.leases[0] is request:
            # Most requests wait equally long, so that the first one is removed without leaving a
            # remnant.
            self.leases.popleft()
            request.future.remove_done_callback(self.count_end)
        else:
            self.count_end(request.future)
        for waiting in (self.leases, self.followers, self.watchers):
            while waiting and not _waits(waiting[0]):
                waiting.popleft()

    def drop_gone(self) -> bool:
        """Remove abandoned requests; return True if there were any."""
        if not self.ends:
            # A caller that is refused repeatedly must not scan all of them each time.
            return False
        self.ends = 0
        before = len(self)
        self.leases = deque([one for one in self.leases if _waits(one)])
        self.followers = deque([one for one in self.followers if _waits(one)])
        self.watchers = deque([one for one in self.watchers if _waits(one)])
        return len(self) < before


class PollQueues:
    """Queues of waiting requests, by shard."""

    def __init__(self) -> None:
        self._queues: dict[ShardId, _PollQueue] = {}
        self._changed: set[ShardId] = set()
        self._ends: list[tuple[float, int, CommandRequest]] = []
        """Heap of wait deadlines; entries of requests that have ended may remain."""
        self._ends_max = limits.WAIT_ENDS_MIN
        """Size of the heap above which entries of ended requests are dropped."""
        self._number = 0

    @property
    def next_deadline(self) -> float | None:
        """Earliest deadline of a waiting request, in loop time; None if none waits."""
        ends = self._ends
        while ends and not _waits(ends[0][2]):
            heappop(ends)
        return ends[0][0] if ends else None

    def add(self, request: CommandRequest, views: Mapping[ShardId, View]) -> bool:
        """Add a request that found nothing at its shards; return False if too many wait."""
        queues, command = self._queues, request.command
        shard_queues = [queues.get(shard) or self._begin(shard) for shard in request.shards()]
        for queue in shard_queues:
            if len(queue) >= limits.WAITERS_MAX and not queue.drop_gone():
                return False
        request.wait_ended = False
        for queue in shard_queues:
            if type(command) is LeaseMessages or isinstance(command, LeaseFromShards | Receive):
                queue.leases.append(request)
                queue.has_sessions = queue.has_sessions or type(command) is Receive
            elif isinstance(command, AwaitCursor):
                queue.watchers.append(request)
            else:
                if not queue.followers:
                    view = views.get(queue.shard)
                    queue.seen = view.last_seq if view is not None else 0
                queue.followers.append(request)
            request.future.add_done_callback(queue.count_end)
        self._number += 1
        heappush(self._ends, (request.wait_until, self._number, request))
        if len(self._ends) > self._ends_max:
            self._ends = [one for one in self._ends if _waits(one[2])]
            heapify(self._ends)
            self._ends_max = 2 * max(len(self._ends), limits.WAIT_ENDS_MIN)
        return True

    def _begin(self, shard: ShardId) -> _PollQueue:
        return self._queues.setdefault(shard, _PollQueue(shard, self._changed))

    def serve(self, draft: Draft, give: Callable[[CommandRequest], bool]) -> None:
        """Call `give` for requests that may now get something; it returns False if there was
        nothing."""
        view = draft.view
        queue = self._queues.get(view.shard)
        if queue is None:
            return
        if queue.has_sessions:
            _serve_workers(queue, view, draft.now, give)
        leases = queue.leases
        while not queue.has_sessions and leases and lease.may_have_work(view, draft.now):
            # Another lease call would find nothing either.
            if _waits(leases[0]) and not _try_give(leases[0], give):
                break
            leases.popleft()
        if queue.followers and view.last_seq > queue.seen:
            queue.followers = deque(
                [one for one in queue.followers if _waits(one) and not _try_give(one, give)]
            )
            queue.seen = view.last_seq
        if queue.watchers and draft.moved:
            queue.watchers = deque(
                [
                    one
                    for one in queue.watchers
                    if _waits(one) and not (_watches(one, draft.moved) and _try_give(one, give))
                ]
            )

    def reset_seen(self) -> None:
        """Reset what followers have seen: after a rollback, its seqs are assigned to other
        messages."""
        for queue in self._queues.values():
            queue.seen = 0

    def drop_gone(self) -> None:
        """Remove abandoned requests from queues in which they may be many."""
        for shard in self._changed:
            queue = self._queues.get(shard)
            if queue is None:
                continue
            if queue.ends * limits.WAITERS_GONE_SHARE >= len(queue):
                queue.drop_gone()
            if not len(queue):
                del self._queues[shard]
        self._changed.clear()

    def expire(self, now: float) -> list[CommandRequest]:
        """Remove and return the requests whose wait has timed out."""
        timed_out: list[CommandRequest] = []
        ends = self._ends
        while ends and ends[0][0] <= now:
            request = heappop(ends)[2]
            if not _waits(request):
                continue
            request.wait_ended = True
            timed_out.append(request)
            for shard in request.shards():
                queue = self._queues.get(shard)
                if queue is None:
                    continue
                queue.end(request)
                if not len(queue):
                    del self._queues[shard]
        return timed_out

    def waits(self, shard: ShardId) -> bool:
        """Return True if a request may wait at the shard."""
        queue = self._queues.get(shard)
        return queue is not None and len(queue) > 0

    def waits_for_work(self, shard: ShardId) -> bool:
        """Return True if lease calls or sessions may wait at the shard."""
        queue = self._queues.get(shard)
        return queue is not None and bool(queue.leases)

    def shards(self) -> list[ShardId]:
        """Return the shards at which lease calls or sessions wait."""
        return [shard for shard, queue in self._queues.items() if queue.leases]

    def drop(self, shard: ShardId) -> list[CommandRequest]:
        """Remove and return all requests of a shard."""
        queue = self._queues.pop(shard, None)
        waiting: list[CommandRequest] = []
        if queue is not None:
            requests = (*queue.leases, *queue.followers, *queue.watchers)
            waiting = [one for one in requests if _waits(one)]
        for request in waiting:
            request.wait_ended = True
        return waiting

    def drop_all(self) -> list[CommandRequest]:
        """Remove and return all requests."""
        return [request for shard in list(self._queues) for request in self.drop(shard)]


def is_empty_result(command: Command, result: object) -> bool:
    """Return True if the result is empty, so that the request may wait."""
    if type(command) is LeaseMessages:
        # The fast path of a single message.
        return lease.is_empty(result)
    if isinstance(command, NextSnapshot | SnapshotShards | AwaitCursor):
        return result is None
    if isinstance(command, LeaseFromShards):
        return isinstance(result, ShardLeases) and not result.parts
    if isinstance(command, Receive):
        return sessions.is_empty(command, result)
    return False


def _serve_workers(
    queue: _PollQueue, view: View, now: int, give: Callable[[CommandRequest], bool]
) -> None:
    """Try each request once: a message is of no use to a session without credit, but to the next
    one."""
    is_dry = False
    waiting, queue.leases = queue.leases, deque()
    queue.has_sessions = False
    for request in waiting:
        if not _waits(request):
            continue
        command = request.command
        is_session = isinstance(command, Receive)
        may = not is_dry and lease.may_have_work(view, now)
        if isinstance(command, Receive):
            may = sessions.has_news(view, command, may_have_work=may)
        if may and _try_give(request, give):
            continue
        is_dry = is_dry or (may and not is_session)
        queue.leases.append(request)
        queue.has_sessions = queue.has_sessions or is_session


def _watches(request: CommandRequest, moved: set[str]) -> bool:
    """Return True if the request waits for one of the cursors that moved."""
    command = request.command
    return isinstance(command, AwaitCursor) and command.name in moved


def _waits(request: CommandRequest) -> bool:
    """Return True if the request has a listener and was not served at another shard."""
    return not (request.wait_ended or request.future.done())


def _try_give(request: CommandRequest, give: Callable[[CommandRequest], bool]) -> bool:
    request.wait_ended = give(request)
    return request.wait_ended


# --- Long polls of a commit loop ------------------------------------------------------------------


class LongPolls:
    """Long polls of a commit loop, with the timers that wake it.

    `views` are the commit loop's own. `on_alarm` is called when a lease or delay may have ended,
    `on_timeout` when a wait may have timed out. The two are separate timers: thousands of requests
    wait at as many shards, and a timeout of one does not concern the others.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        views: Mapping[ShardId, View],
        on_alarm: Callable[[], None],
        on_timeout: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._views = views
        self._wake_timer = CoalescingTimer(loop, on_alarm)
        self._deadline_timer = CoalescingTimer(loop, on_timeout)
        self._armed: dict[ShardId, float] = {}
        """Time of the next check, by shard."""
        self._ends: list[tuple[float, ShardId]] = []
        """Heap of the same times; outdated entries may remain."""
        self._waiters = PollQueues()

    def waits(self, shard: ShardId) -> bool:
        """Return True if a request may wait at the shard."""
        return self._waiters.waits(shard)

    def pop_due_shards(self) -> list[ShardId]:
        """Return and disarm the shards with waiting workers at which a lease or delay may have
        ended."""
        now, due = self._loop.time(), []
        while self._ends and self._ends[0][0] <= now:
            at, shard = heappop(self._ends)
            if self._armed.get(shard) == at:
                del self._armed[shard]
                if self._waiters.waits_for_work(shard):
                    due.append(shard)
        if self._ends:
            self._wake_timer.set(self._ends[0][0])
        return due

    def add(self, request: CommandRequest) -> Full | None:
        """Park a request that found nothing; return the error to answer with if too many wait."""
        if not self._waiters.add(request, self._views):
            return Full(
                f"{limits.WAITERS_MAX} calls wait for messages of this queue; ask again later",
                field="wait",
                limit=limits.WAITERS_MAX,
            )
        for shard in request.shards():
            self.arm(shard)
        self._deadline_timer.set(request.wait_until)
        return None

    def serve(
        self,
        context: BatchContext,
        decide: Callable[[BatchContext, CommandRequest], Decision | Need],
        answers: PendingAnswers,
        taken: list[CommandRequest],
    ) -> None:
        """Decide the requests that wait at the shards of this batch, as part of the batch.

        Requests in `taken` no longer wait, even if deciding raises.
        """

        def give(request: CommandRequest) -> bool:
            result = decide(context, request)
            if isinstance(result, Need) or is_empty_result(request.command, result):
                return False
            taken.append(request)
            answers.append((request, result))
            return True

        for shard in list(context.drafts):
            if not self.waits(shard):
                continue
            draft = context.draft(shard)
            if draft is None:
                dropped = self._waiters.drop(shard)
                taken.extend(dropped)
                answers.extend((request, settle.queue_deleted()) for request in dropped)
                continue
            if draft.view.quarantine:
                dropped = self._waiters.drop(shard)
                taken.extend(dropped)
                answers.extend((request, quarantine.refusal(draft.view)) for request in dropped)
                continue
            self._waiters.serve(draft, give)
            if self.waits(shard):
                # Messages that were just leased, perhaps to one of them, may return to the others.
                self.arm(shard)

    def arm(self, shard: ShardId) -> None:
        """Wake up when the next lease or delay of the shard ends."""
        at_ms = lease.next_end(self._views.get(shard))
        if at_ms is not None:
            self._arm_at(shard, self._loop.time() + (at_ms - self._now_ms()) / 1000)

    def arm_later(self, shard: ShardId) -> None:
        """Wake up after a rollback may have ended; until then the shard's state is unknown."""
        self._arm_at(shard, self._loop.time() + limits.KEEPER_SECONDS)

    def _arm_at(self, shard: ShardId, at: float) -> None:
        armed = self._armed
        armed_at = armed.get(shard)
        if armed_at is not None and armed_at <= at:
            return
        armed[shard] = at
        heappush(self._ends, (at, shard))
        if len(self._ends) > 2 * max(len(armed), limits.WAIT_ENDS_MIN):
            self._ends = [(at, shard) for shard, at in armed.items()]
            heapify(self._ends)
        self._wake_timer.set(at)

    def expire_due(self) -> list[CommandRequest]:
        """As `expire`, but return at once if no wait has timed out."""
        next_deadline = self._waiters.next_deadline
        if next_deadline is None:
            return []
        if next_deadline > self._loop.time():
            self._deadline_timer.set(next_deadline)
            return []
        return self.expire()

    def sweep(self) -> list[CommandRequest]:
        """As `expire_due`, and remove abandoned requests."""
        self._waiters.drop_gone()
        return self.expire_due()

    def expire(self) -> list[CommandRequest]:
        """Return the requests whose wait timed out, and set the timer for the next one."""
        now = self._loop.time()
        timed_out = self._waiters.expire(now)
        next_deadline = self._waiters.next_deadline
        if next_deadline is not None:
            step = limits.WAIT_ENDS_STEP_MS / 1000
            self._deadline_timer.set(max(next_deadline, now + step))
        return timed_out

    def reset_seen(self) -> None:
        """Forget what followers have seen: after a rollback, its seqs are assigned to other
        messages."""
        self._waiters.reset_seen()
        for shard in self._waiters.shards():
            self.arm_later(shard)

    def drop_all(self) -> list[CommandRequest]:
        """Remove and return all requests."""
        return self._waiters.drop_all()

    def cancel_timers(self) -> None:
        """Cancel the timers."""
        self._wake_timer.cancel()
        self._deadline_timer.cancel()
