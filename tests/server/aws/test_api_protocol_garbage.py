"""What requests of AWS leave behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path

from millrace.server.aws.actions import AwsCall
from millrace.server.aws.api_protocol import AwsCaller
from millrace.server.http.parser import Request
from millrace.server.process.frontend import FrontendOrders
from millrace.server.process.server import Server
from millrace.server.process.server_settings import load
from millrace.server.web.route import RequestContext
from tests.server.aws.site import NOBODY, Aws

ROUNDS = 20


def _work(url: str) -> None:
    sqs = Aws(url, NOBODY).sqs
    where = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    for _ in range(ROUNDS):
        sqs.send_message(QueueUrl=where, MessageBody="x")
        [found] = sqs.receive_message(QueueUrl=where)["Messages"]
        sqs.delete_message(QueueUrl=where, ReceiptHandle=found["ReceiptHandle"])


def test_requests_go_when_they_were_answered(tmp_path: Path) -> None:
    """What goes with a collection of garbage alone is not in any cache when it is used again."""
    flags = {"data": str(tmp_path / "data"), "listen": "127.0.0.1:0", "anonymous": "true"}
    left: list[object] = []

    def work(url: str) -> None:
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            _work(url)
            gc.collect()
            left.extend(
                one
                for one in gc.garbage
                if isinstance(one, RequestContext | AwsCall | AwsCaller | Request)
            )
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    asyncio.run(_served(flags, work))
    # One or two of those that took a task; never one for each.
    assert len(left) < ROUNDS


async def _served(flags: dict[str, str], use: Callable[[str], None]) -> None:
    """Use a server of this process, in a thread."""
    server = Server(load(None, {}, flags), FrontendOrders(flags=flags))
    await server.start()
    try:
        await asyncio.to_thread(use, server.addresses[0])
    finally:
        await server.stop()
