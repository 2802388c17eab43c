"""Where requests wait for messages: until some come, a lease or a delay ends, or time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

from millrace import limits
from millrace.core import lease, quarantine, work
from millrace.core.commands import Need
from millrace.core.desk import Desk
from millrace.core.model import ShardId
from millrace.core.view import View
from millrace.engine.in_flight_entries import Answers, Result
from millrace.engine.request import Request
from millrace.engine.timer import Timer
from millrace.engine.waiters import Waiters, is_empty
from millrace.errors import Full


class WaitingRoom:
    """Who waits at the shards of one host, and the alarms that wake it for them.

    `views` are the host's own, which come and go; `woken` is called when a lease or a delay may
    have ended, `tired` when someone's time to wait may be over: thousands wait at as many shards,
    and one whose time is over has nothing to do with the others.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        views: Mapping[ShardId, View],
        woken: Callable[[], None],
        tired: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._views = views
        self._alarm = Timer(loop, woken)
        self._patience = Timer(loop, tired)
        self._armed: dict[ShardId, float] = {}
        """Where to look, and when."""
        self._ends: list[tuple[float, ShardId]] = []
        """The same, soonest first, and some that are no longer so."""
        self._waiters = Waiters()

    def waits(self, shard: ShardId) -> bool:
        """Whether anyone may wait for messages of the shard."""
        return self._waiters.waits(shard)

    def woken(self) -> list[ShardId]:
        """Where lease calls or sessions wait, and a lease or a delay may have ended; they are
        armed no longer."""
        now, found = self._loop.time(), []
        while self._ends and self._ends[0][0] <= now:
            at, shard = heappop(self._ends)
            if self._armed.get(shard) == at:
                del self._armed[shard]
                if self._waiters.waits_for_work(shard):
                    found.append(shard)
        if self._ends:
            self._alarm.set(self._ends[0][0])
        return found

    def add(self, request: Request) -> Full | None:
        """Let one wait who found nothing; returns what it is told if too many do."""
        if not self._waiters.add(request, self._views):
            return Full(
                f"{limits.WAITERS_MAX} calls wait for messages of this queue; ask again later",
                field="wait",
                limit=limits.WAITERS_MAX,
            )
        for shard in request.shards():
            self.arm(shard)
        self._patience.set(request.wait_until)
        return None

    def serve(
        self,
        desk: Desk,
        decide: Callable[[Desk, Request], Result | Need],
        answers: Answers,
        taken: list[Request],
    ) -> None:
        """Who waits for messages of the shards that were touched is decided with this batch.

        Who is `taken` waits here no more, even if deciding ends with an error.
        """

        def give(request: Request) -> bool:
            result = decide(desk, request)
            if isinstance(result, Need) or is_empty(request.command, result):
                return False
            taken.append(request)
            answers.append((request, result))
            return True

        for shard in list(desk.drafts):
            if not self.waits(shard):
                continue
            draft = desk.draft(shard)
            if draft is None:
                gone = self._waiters.drop(shard)
                taken.extend(gone)
                answers.extend((request, work.deleted()) for request in gone)
                continue
            if draft.view.quarantine:
                gone = self._waiters.drop(shard)
                taken.extend(gone)
                answers.extend((request, quarantine.refusal(draft.view)) for request in gone)
                continue
            self._waiters.serve(draft, give)
            if self.waits(shard):
                # What was just leased, to one of them perhaps, may come back to the others.
                self.arm(shard)

    def arm(self, shard: ShardId) -> None:
        """Wake when the shard's next lease or delay ends, which a waiter could then be given."""
        at_ms = lease.next_end(self._views.get(shard))
        if at_ms is not None:
            self._arm_at(shard, self._loop.time() + (at_ms - self._now_ms()) / 1000)

    def arm_later(self, shard: ShardId) -> None:
        """Wake when what is under way may have ended, without which nothing is known."""
        self._arm_at(shard, self._loop.time() + limits.KEEPER_SECONDS)

    def _arm_at(self, shard: ShardId, at: float) -> None:
        armed = self._armed
        known = armed.get(shard)
        if known is not None and known <= at:
            return
        armed[shard] = at
        heappush(self._ends, (at, shard))
        if len(self._ends) > 2 * max(len(armed), limits.WAIT_ENDS_MIN):
            self._ends = [(at, shard) for shard, at in armed.items()]
            heapify(self._ends)
        self._alarm.set(at)

    def over(self) -> list[Request]:
        """As `expire`, without looking at anyone before the soonest of them is over."""
        soonest = self._waiters.soonest
        if soonest is None:
            return []
        if soonest > self._loop.time():
            self._patience.set(soonest)
            return []
        return self.expire()

    def look(self) -> list[Request]:
        """As `over`, and without those that no longer listen."""
        self._waiters.drop_gone()
        return self.over()

    def expire(self) -> list[Request]:
        """Those whose time to wait is over; the alarm is set for the next of them."""
        now = self._loop.time()
        found = self._waiters.expire(now)
        soonest = self._waiters.soonest
        if soonest is not None:
            step = limits.WAIT_ENDS_STEP_MS / 1000
            self._patience.set(max(soonest, now + step))
        return found

    def look_again(self) -> None:
        """What was decided is taken back: seqs that were seen will be given to other messages."""
        self._waiters.look_again()
        for shard in self._waiters.shards():
            self.arm_later(shard)

    def empty(self) -> list[Request]:
        """Let everyone go; returns them."""
        return self._waiters.drop_all()

    def rest(self) -> None:
        """Wake nobody any more."""
        self._alarm.cancel()
        self._patience.cancel()
