"""Queues of waiting requests: order, timeouts and abandoned requests."""

from __future__ import annotations

import asyncio

from millrace import limits
from millrace.core.commands import LeaseMessages
from millrace.core.model import ShardId
from millrace.engine.command_request import CommandRequest
from millrace.engine.long_polls import PollQueues

SHARD = ShardId(7)


def test_nobody_is_looked_at_before_someone_has_gone() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        waiters = PollQueues()
        requests = [
            CommandRequest(
                SHARD, LeaseMessages(1, 1000), loop.create_future(), wait_until=loop.time() + 60
            )
            for _ in range(3)
        ]
        for request in requests:
            assert waiters.add(request, {})
        before = waiters._queues[SHARD].leases
        waiters.drop_gone()
        assert waiters._queues[SHARD].leases is before
        requests[1].future.cancel()
        await asyncio.sleep(0)
        waiters.drop_gone()
        assert list(waiters._queues[SHARD].leases) == [requests[0], requests[2]]
        requests[0].future.cancel()
        requests[2].future.cancel()
        await asyncio.sleep(0)
        waiters.drop_gone()
        assert not waiters.waits(SHARD)
        assert not waiters._queues

    asyncio.run(main())


def test_those_whose_time_is_over_end_soonest_first_and_the_others_wait_on() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        waiters = PollQueues()
        ends = (5.0, 1.0, 3.0, 1.0, 9.0)
        requests = [
            CommandRequest(
                ShardId(7 + at % 2), LeaseMessages(1, 1000), loop.create_future(), wait_until=end
            )
            for at, end in enumerate(ends)
        ]
        for request in requests:
            assert waiters.add(request, {})
        assert waiters.next_deadline == 1
        requests[3].future.cancel()
        assert waiters.expire(0.5) == []
        assert waiters.expire(3) == [requests[1], requests[2]]
        assert waiters.next_deadline == 5
        assert waiters.expire(3) == []
        await asyncio.sleep(0)
        waiters.drop_gone()
        assert list(waiters._queues) == [SHARD]
        assert list(waiters._queues[SHARD].leases) == [requests[0], requests[4]]
        assert waiters.expire(9) == [requests[0], requests[4]]
        assert not waiters._ends
        assert not waiters._queues

    asyncio.run(main())


def test_nothing_is_left_of_those_who_end_in_the_order_in_which_they_came() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        waiters = PollQueues()
        requests = [
            CommandRequest(SHARD, LeaseMessages(1, 1000), loop.create_future(), wait_until=end)
            for end in (1.0, 2.0, 3.0)
        ]
        for request in requests:
            assert waiters.add(request, {})
        assert waiters.expire(2) == requests[:2]
        for request in requests[:2]:
            request.future.set_result(None)
        await asyncio.sleep(0)
        row = waiters._queues[SHARD]
        assert list(row.leases) == requests[2:]
        assert row.ends == 0
        assert not waiters._changed

    asyncio.run(main())


def test_no_more_ends_are_kept_than_wait_and_as_many_again() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        waiters = PollQueues()
        stays = CommandRequest(SHARD, LeaseMessages(1, 1000), loop.create_future(), wait_until=1.0)
        assert waiters.add(stays, {})
        for _ in range(5 * limits.WAIT_ENDS_MIN):
            request = CommandRequest(
                SHARD, LeaseMessages(1, 1000), loop.create_future(), wait_until=2.0
            )
            assert waiters.add(request, {})
            request.future.cancel()
            await asyncio.sleep(0)
            waiters.drop_gone()
            assert len(waiters._ends) <= 2 * limits.WAIT_ENDS_MIN + 1
        assert waiters.expire(3) == [stays]

    asyncio.run(main())
