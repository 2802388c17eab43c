"""Who waits for messages."""

from __future__ import annotations

import asyncio

from millrace.core.commands import Lease
from millrace.core.model import ShardId
from millrace.shard.request import Request
from millrace.shard.waiters import Waiters

SHARD = ShardId(7)


def test_nobody_is_looked_at_before_someone_has_gone() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        waiters = Waiters()
        requests = [
            Request(SHARD, Lease(1, 1000), loop.create_future(), wait_until=loop.time() + 60)
            for _ in range(3)
        ]
        for request in requests:
            assert waiters.add(request, {})
        before = waiters._rows[SHARD].leases
        waiters.drop_gone()
        assert waiters._rows[SHARD].leases is before
        requests[1].future.cancel()
        await asyncio.sleep(0)
        waiters.drop_gone()
        assert list(waiters._rows[SHARD].leases) == [requests[0], requests[2]]
        requests[0].future.cancel()
        requests[2].future.cancel()
        await asyncio.sleep(0)
        waiters.drop_gone()
        assert not waiters.waits(SHARD)
        assert not waiters._rows

    asyncio.run(main())
