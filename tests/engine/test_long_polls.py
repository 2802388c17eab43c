"""Long polls: parking, timers and wake-ups."""

from __future__ import annotations

import asyncio

from millrace import limits
from millrace.core.commands import LeaseMessages
from millrace.core.model import Epoch, History, ShardId
from millrace.core.state.view import View
from millrace.engine.command_request import CommandRequest
from millrace.engine.long_polls import LongPolls

NOW_MS = 1_000_000
SOON, LATE = ShardId(1), ShardId(2)


def view_of(shard: ShardId, deadline_ms: int) -> View:
    view = View(shard, Epoch(1), History(bytes(16)))
    view.deadlines = [(deadline_ms, 1)]
    return view


def waiting(shard: ShardId) -> CommandRequest:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[object] = loop.create_future()
    return CommandRequest(shard, LeaseMessages(1, 1000), future, wait_until=loop.time() + 60)


async def next_woken(room: LongPolls, rang: asyncio.Event) -> list[ShardId]:
    """Return the shards that are due after the next alarm; timers may fire a moment too early."""
    found: list[ShardId] = []
    while not found:
        await asyncio.wait_for(rang.wait(), 30)
        rang.clear()
        found = room.pop_due_shards()
    return found


def test_nobody_is_looked_at_for_the_lease_of_another_queue() -> None:
    async def main() -> None:
        rang = asyncio.Event()
        views = {SOON: view_of(SOON, NOW_MS + 5), LATE: view_of(LATE, NOW_MS + 500_000)}
        loop = asyncio.get_running_loop()
        room = LongPolls(loop, lambda: NOW_MS, views, rang.set, lambda: None)
        first, second = waiting(SOON), waiting(LATE)
        assert room.add(first) is None
        assert room.add(second) is None
        assert await next_woken(room, rang) == [SOON]
        assert room.pop_due_shards() == []
        room.arm(SOON)
        room.arm(LATE)
        assert await next_woken(room, rang) == [SOON]
        room.cancel_timers()

    asyncio.run(main())


def test_after_a_rollback_everyone_who_waits_is_looked_at() -> None:
    async def main() -> None:
        rang = asyncio.Event()
        views: dict[ShardId, View] = {}
        loop = asyncio.get_running_loop()
        room = LongPolls(loop, lambda: NOW_MS, views, rang.set, lambda: None)
        assert room.add(waiting(SOON)) is None
        room.reset_seen()
        assert await next_woken(room, rang) == [SOON]
        room.cancel_timers()

    asyncio.run(main())


def test_no_more_times_are_kept_than_shards_and_as_many_again() -> None:
    async def main() -> None:
        views = {SOON: view_of(SOON, NOW_MS)}
        loop = asyncio.get_running_loop()
        room = LongPolls(loop, lambda: NOW_MS, views, lambda: None, lambda: None)
        assert room.add(waiting(SOON)) is None
        for sooner in range(5 * limits.WAIT_ENDS_MIN):
            views[SOON].deadlines = [(NOW_MS - 1000 * sooner, 1)]
            room.arm(SOON)
            assert len(room._ends) <= 2 * limits.WAIT_ENDS_MIN + 1
        assert room.pop_due_shards() == [SOON]
        room.cancel_timers()

    asyncio.run(main())
