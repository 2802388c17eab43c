"""The end of a server, for those who wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace.core.commands import LeaseMessages
from millrace.rpc.calls import FindQueue, Submit
from millrace.rpc.codec import AnswerStatus, FrameWriter, read_answers
from millrace.rpc.frames import FrameReader
from millrace.server.web.server_context import Shutdown
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


def test_calls_that_wait_are_answered_at_a_stop(tmp_path: Path) -> None:
    """Whatever else came in the same request is answered as it ended."""

    async def main() -> None:
        async with served(tmp_path) as server:
            shard = (await server.millrace.find("orders")).shards.first
            both = FrameWriter()
            both.call(1, Submit(shard, 20_000, LeaseMessages(1, 60_000)))
            both.call(2, FindQueue("default", "orders"))
            body, type = b"".join(both.take()), "application/vnd.millrace.calls"
            asked = asyncio.create_task(server.ask("POST", "/v1/calls", body, type=type))
            await until(lambda: server.app.stopping.waiting == 1)
            server.app.stop()
            for answer in (await asked, await server.ask("POST", "/v1/calls", body, type=type)):
                items = [
                    item
                    for frame in FrameReader().feed(answer.body)
                    for item in read_answers(frame)
                ]
                found = {item[0]: item for item in items}
                assert {id: item[1] for id, item in found.items()} == {
                    1: AnswerStatus.FAILED,
                    2: AnswerStatus.DONE,
                }
                error = found[1][2]
                assert isinstance(error, list)
                assert error[:2] == ["t", "closed"], "it may be asked again"

    asyncio.run(main())


def test_whoever_is_cancelled_beside_a_stop_stays_cancelled() -> None:
    async def main() -> None:
        stopping = Shutdown()
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
        stopping = Shutdown()
        event = asyncio.Event()
        event.set()
        assert await stopping.until(event.wait) is True
        assert stopping.waiting == 0
        stopping.stop()
        assert await stopping.until(event.wait) is None

    asyncio.run(main())
