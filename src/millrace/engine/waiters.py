"""Lease calls, sessions and followers that wait for messages: on the shard, not on a timer.

Rule 1: who finds nothing keeps its place in the row.
Rule 2: workers (lease calls and sessions), followers, and those who wait for a follower's commit
wait apart: that there is nothing for one kind says nothing about the others.
Rule 3: nobody is judged again unless something came that it has not seen.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from millrace import limits
from millrace.core import lease, sessions
from millrace.core.across_commands import LeaseAcross, LeasedAcross, SnapshotAcross
from millrace.core.commands import (
    AwaitCursor,
    Command,
    Lease,
    NextSnapshot,
)
from millrace.core.draft import Draft
from millrace.core.model import ShardId
from millrace.core.session_commands import Receive
from millrace.core.view import View
from millrace.engine.request import Request


@dataclass(slots=True)
class _Row:
    """Who waits at one shard, in the order of arrival."""

    shard: ShardId
    changed: set[ShardId]
    """Where someone has ended, of all rows."""
    leases: deque[Request] = field(default_factory=deque)
    """Lease calls and sessions."""
    has_sessions: bool = False
    """Sessions may be among them."""
    followers: deque[Request] = field(default_factory=deque)
    watchers: deque[Request] = field(default_factory=deque)
    """Those who wait for a cursor to come as far as a position."""
    seen: int = 0
    """The last seq when the followers were last judged: up to there is nothing for any of them."""
    ends: int = 0
    """So many of them, or of those who waited before, may no longer listen."""

    def __len__(self) -> int:
        return len(self.leases) + len(self.followers) + len(self.watchers)

    def note_end(self, _: asyncio.Future[object]) -> None:
        """Someone who waited here was answered, or has left."""
        self.ends += 1
        self.changed.add(self.shard)

    def end(self, request: Request) -> None:
        """The time of one who waits here is over."""
        if self.leases and self.leases[0] is request:
            # Most who wait do so for the same time: nothing is left of it to be dropped later.
            self.leases.popleft()
            request.future.remove_done_callback(self.note_end)
        else:
            self.note_end(request.future)
        for waiting in (self.leases, self.followers, self.watchers):
            while waiting and not _waits(waiting[0]):
                waiting.popleft()

    def drop_gone(self) -> bool:
        """Forget those who no longer listen; returns whether there were any."""
        if not self.ends:
            # Who is refused again and again must not look at all of them each time.
            return False
        self.ends = 0
        before = len(self)
        self.leases = deque([one for one in self.leases if _waits(one)])
        self.followers = deque([one for one in self.followers if _waits(one)])
        self.watchers = deque([one for one in self.watchers if _waits(one)])
        return len(self) < before


class Waiters:
    """Who waits, by shard."""

    def __init__(self) -> None:
        self._rows: dict[ShardId, _Row] = {}
        self._changed: set[ShardId] = set()
        self._ends: list[tuple[float, int, Request]] = []
        """When each one's time is over, soonest first; some may no longer wait."""
        self._ends_max = limits.WAIT_ENDS_MIN
        """Beyond so many, those that no longer wait are dropped."""
        self._number = 0

    @property
    def soonest(self) -> float | None:
        """Nobody's time is over before this, which is the loop's own time."""
        ends = self._ends
        while ends and not _waits(ends[0][2]):
            heappop(ends)
        return ends[0][0] if ends else None

    def add(self, request: Request, views: Mapping[ShardId, View]) -> bool:
        """Let one wait who found nothing in these; False if too many do."""
        known, command = self._rows, request.command
        rows = [known.get(shard) or self._begin(shard) for shard in request.shards()]
        for row in rows:
            if len(row) >= limits.WAITERS_MAX and not row.drop_gone():
                return False
        request.is_given = False
        for row in rows:
            if type(command) is Lease or isinstance(command, LeaseAcross | Receive):
                row.leases.append(request)
                row.has_sessions = row.has_sessions or type(command) is Receive
            elif isinstance(command, AwaitCursor):
                row.watchers.append(request)
            else:
                if not row.followers:
                    view = views.get(row.shard)
                    row.seen = view.last_seq if view is not None else 0
                row.followers.append(request)
            request.future.add_done_callback(row.note_end)
        self._number += 1
        heappush(self._ends, (request.wait_until, self._number, request))
        if len(self._ends) > self._ends_max:
            self._ends = [one for one in self._ends if _waits(one[2])]
            heapify(self._ends)
            self._ends_max = 2 * max(len(self._ends), limits.WAIT_ENDS_MIN)
        return True

    def _begin(self, shard: ShardId) -> _Row:
        return self._rows.setdefault(shard, _Row(shard, self._changed))

    def serve(self, draft: Draft, give: Callable[[Request], bool]) -> None:
        """Call `give` for those for whom there may be something now; False: there was nothing."""
        view = draft.view
        row = self._rows.get(view.shard)
        if row is None:
            return
        if row.has_sessions:
            _serve_workers(row, view, draft.now, give)
        leases = row.leases
        while not row.has_sessions and leases and lease.may_have_work(view, draft.now):
            # Another lease call would find nothing either.
            if _waits(leases[0]) and not _give(leases[0], give):
                break
            leases.popleft()
        if row.followers and view.last_seq > row.seen:
            row.followers = deque(
                [one for one in row.followers if _waits(one) and not _give(one, give)]
            )
            row.seen = view.last_seq
        if row.watchers and draft.moved:
            row.watchers = deque(
                [
                    one
                    for one in row.watchers
                    if _waits(one) and not (_watches(one, draft.moved) and _give(one, give))
                ]
            )

    def look_again(self) -> None:
        """What was decided is taken back: seqs that were seen will be given to other messages."""
        for row in self._rows.values():
            row.seen = 0

    def drop_gone(self) -> None:
        """Forget those who no longer listen, looking only at rows where they may be many."""
        for shard in self._changed:
            row = self._rows.get(shard)
            if row is None:
                continue
            if row.ends * limits.WAITERS_GONE_SHARE >= len(row):
                row.drop_gone()
            if not len(row):
                del self._rows[shard]
        self._changed.clear()

    def expire(self, now: float) -> list[Request]:
        """Those whose time is over; they wait no more."""
        over: list[Request] = []
        ends = self._ends
        while ends and ends[0][0] <= now:
            request = heappop(ends)[2]
            if not _waits(request):
                continue
            request.is_given = True
            over.append(request)
            for shard in request.shards():
                row = self._rows.get(shard)
                if row is None:
                    continue
                row.end(request)
                if not len(row):
                    del self._rows[shard]
        return over

    def waits(self, shard: ShardId) -> bool:
        """Whether anyone may wait for messages of the shard."""
        row = self._rows.get(shard)
        return row is not None and len(row) > 0

    def waits_for_work(self, shard: ShardId) -> bool:
        """Whether lease calls or sessions may wait there."""
        row = self._rows.get(shard)
        return row is not None and bool(row.leases)

    def shards(self) -> list[ShardId]:
        """Where lease calls or sessions wait."""
        return [shard for shard, row in self._rows.items() if row.leases]

    def drop(self, shard: ShardId) -> list[Request]:
        """Let all of a shard go; returns them."""
        row = self._rows.pop(shard, None)
        waiting: list[Request] = []
        if row is not None:
            everyone = (*row.leases, *row.followers, *row.watchers)
            waiting = [one for one in everyone if _waits(one)]
        for request in waiting:
            request.is_given = True
        return waiting

    def drop_all(self) -> list[Request]:
        """Let everyone go; returns them."""
        return [request for shard in list(self._rows) for request in self.drop(shard)]


def is_empty(command: Command, result: object) -> bool:
    """Whether there was nothing to be had, so that the request may wait."""
    if type(command) is Lease:
        # The way of a single message, which must cost little.
        return lease.is_empty(result)
    if isinstance(command, NextSnapshot | SnapshotAcross | AwaitCursor):
        return result is None
    if isinstance(command, LeaseAcross):
        return isinstance(result, LeasedAcross) and not result.parts
    if isinstance(command, Receive):
        return sessions.is_empty(command, result)
    return False


def _serve_workers(row: _Row, view: View, now: int, give: Callable[[Request], bool]) -> None:
    """Ask each one once: what is nothing to a session without credit may be another one's."""
    is_dry = False
    waiting, row.leases = row.leases, deque()
    row.has_sessions = False
    for request in waiting:
        if not _waits(request):
            continue
        command = request.command
        is_session = isinstance(command, Receive)
        may = not is_dry and lease.may_have_work(view, now)
        if isinstance(command, Receive):
            may = sessions.has_news(view, command, may_have_work=may)
        if may and _give(request, give):
            continue
        is_dry = is_dry or (may and not is_session)
        row.leases.append(request)
        row.has_sessions = row.has_sessions or is_session


def _watches(request: Request, moved: set[str]) -> bool:
    """Whether it waits for one of the cursors that have moved."""
    command = request.command
    return isinstance(command, AwaitCursor) and command.name in moved


def _waits(request: Request) -> bool:
    """Whether it still listens, and was given nothing at another shard."""
    return not (request.is_given or request.future.done())


def _give(request: Request, give: Callable[[Request], bool]) -> bool:
    request.is_given = give(request)
    return request.is_given
