"""Lease calls and followers that wait for messages: on the shard, not on a timer."""

from __future__ import annotations

from collections import deque

from millrace import limits
from millrace.core import work
from millrace.core.commands import Command, Lease, NextSnapshot
from millrace.core.draft import Draft
from millrace.core.model import ShardId
from millrace.shard.request import Request


class Waiters:
    """Who waits, by shard, in the order of arrival."""

    def __init__(self) -> None:
        self._waiting: dict[ShardId, deque[Request]] = {}

    def add(self, request: Request) -> bool:
        """Let it wait; False if too many do."""
        waiting = self._waiting.setdefault(request.shard, deque())
        if len(waiting) >= limits.WAITERS_MAX:
            return False
        waiting.append(request)
        return True

    def add_first(self, request: Request) -> None:
        """Put back one that could not be served after all."""
        self._waiting.setdefault(request.shard, deque()).appendleft(request)

    def next(self, shard: ShardId, draft: Draft) -> Request | None:
        """The first one for whom there may be something now."""
        waiting = self._waiting.get(shard)
        if not waiting:
            return None
        view = draft.view
        work = bool(view.returned) or view.pointers.next <= view.last_seq
        for at, request in enumerate(waiting):
            if request.future.done():
                continue
            command = request.command
            ready = (isinstance(command, Lease) and work) or (
                isinstance(command, NextSnapshot) and command.after < view.last_seq
            )
            if ready:
                del waiting[at]
                return request
        return None

    def take_first(self, shard: ShardId) -> Request | None:
        """The first lease call that waits, whatever there is for it."""
        waiting = self._waiting.get(shard, ())
        for at, request in enumerate(waiting):
            if isinstance(request.command, Lease) and not request.future.done():
                del self._waiting[shard][at]
                return request
        return None

    def expire(self, now_ms: int) -> list[Request]:
        """Those whose time is over, and without those that no longer listen."""
        over: list[Request] = []
        for shard, waiting in list(self._waiting.items()):
            if not waiting:
                del self._waiting[shard]
                continue
            rest: deque[Request] = deque()
            for request in waiting:
                if request.future.done():
                    continue
                (over if request.wait_until_ms <= now_ms else rest).append(request)
            self._waiting[shard] = rest
        return over

    def waits(self, shard: ShardId) -> bool:
        """Whether anyone may wait for messages of the shard."""
        return bool(self._waiting.get(shard))

    def shards(self) -> list[ShardId]:
        return [shard for shard, waiting in self._waiting.items() if waiting]

    def drop(self, shard: ShardId) -> list[Request]:
        return list(self._waiting.pop(shard, ()))

    def drop_all(self) -> list[Request]:
        waiting = [request for queue in self._waiting.values() for request in queue]
        self._waiting.clear()
        return waiting


def is_empty(command: Command, result: object) -> bool:
    """Whether there was nothing to be had, so that the request may wait."""
    if isinstance(command, NextSnapshot):
        return result is None
    return isinstance(command, Lease) and work.is_empty(result)
