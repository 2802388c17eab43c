"""The end of a server, for those who wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace.server.rest.stopping import Stopping
from tests.server.rest.harness import served, until

ORDERS = "/v1/spaces/default/queues/orders"


def test_who_waits_is_answered_at_a_stop(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            told = {"wait": 20, "seconds": 60}
            polls = [
                asyncio.create_task(server.ask("POST", f"{ORDERS}/leases", told)) for _ in range(3)
            ]
            await until(lambda: server.app.stopping.waiting == 3)
            server.app.stop()
            for poll in polls:
                answer = await poll
                assert (answer.status, answer.json) == (200, {"messages": []})
            late = await server.ask("POST", f"{ORDERS}/leases", told)
            assert late.json == {"messages": []}

    asyncio.run(main())


def test_whoever_is_cancelled_beside_a_stop_stays_cancelled() -> None:
    async def main() -> None:
        stopping = Stopping()
        event = asyncio.Event()
        task = asyncio.create_task(stopping.until(event.wait))
        await asyncio.sleep(0)
        stopping.stop()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_what_came_before_the_stop_is_answered() -> None:
    async def main() -> None:
        stopping = Stopping()
        event = asyncio.Event()
        event.set()
        assert await stopping.until(event.wait) is True
        assert stopping.waiting == 0
        stopping.stop()
        assert await stopping.until(event.wait) is None

    asyncio.run(main())
