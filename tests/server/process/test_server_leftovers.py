"""What refused requests leave behind: nothing that a garbage collection would have to free.

A server's collector runs seldom. An error that is stored with its traceback holds the frames that
it came through, and they hold the request with its body.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest

from millrace.core.commands import ProducerNumber, Publish
from millrace.core.model import NewMessage, ShardId
from millrace.rpc.calls import Submit
from millrace.rpc.codec import FrameWriter
from millrace.server.http.connection import ClientConnection
from millrace.server.http.parser import RequestParser
from millrace.server.process.frontend import FrontendOrders
from millrace.server.process.server import Server
from millrace.server.process.server_settings import load
from millrace.server.rpc.http_calls import TYPE as CALLS
from tests.server.aws.site import Key, make_key
from tests.server.rest.harness import Served, served, until
from tests.support.timeouts import scaled

ORDERS = "/v1/spaces/default/queues/orders"
LARGE = 64 * 1024
MARK = secrets.token_hex(512)
"""In no other test's bodies: segments of an engine that an earlier test left behind may become
garbage while these run."""

BODY = MARK * (4 * LARGE // len(MARK))
ROUNDS = 3


class Sent(NamedTuple):
    """A request that is refused."""

    method: str
    path: str
    body: object
    type: str = "application/json"
    status: int = 400
    headers: Mapping[str, str] = {}


def _calls(shard: int) -> bytes:
    sheet = FrameWriter()
    number = ProducerNumber("p", 9, "dense", 0, ())
    sheet.call(1, Submit(ShardId(shard), 0, Publish((NewMessage(BODY.encode()),), number)))
    return b"".join(map(bytes, sheet.take()))


OUT_OF_ORDER = {"producer": "p", "number": 9}
BYTES = "application/octet-stream"
REST = {
    "unknown field": Sent("POST", f"{ORDERS}/messages", {"body": BODY, "bod": 1}),
    "no JSON": Sent("POST", f"{ORDERS}/messages", b'{"body":"' + BODY.encode()),
    "no UTF-8": Sent("POST", f"{ORDERS}/messages", b'{"body":"' + BODY.encode() + b'\xff"}'),
    "long key": Sent("POST", f"{ORDERS}/messages", {"body": BODY, "key": "k" * 999}, status=413),
    "refused by the engine": Sent(
        "POST", f"{ORDERS}/messages", {"body": BODY, **OUT_OF_ORDER}, status=409
    ),
    "refused in a task": Sent(
        "POST", f"{ORDERS}/messages?producer=p&number=9", BODY.encode(), BYTES, status=409
    ),
    "several": Sent(
        "POST", f"{ORDERS}/messages", {"messages": [{"body": BODY}], **OUT_OF_ORDER}, status=409
    ),
    "no queue": Sent("POST", f"{ORDERS}-/messages", BODY.encode(), BYTES, status=404),
    "a part of a transaction": Sent(
        "POST",
        "/v1/spaces/default/transactions",
        {"parts": [{"do": "publish", "queue": "orders", "body": BODY, **OUT_OF_ORDER}]},
        status=409,
    ),
    "another part of a transaction": Sent(
        "POST",
        "/v1/spaces/default/transactions",
        {
            "parts": [
                {"do": "publish", "queue": "orders", "body": BODY},
                {"do": "settle", "queue": "orders", "receipts": ["x"]},
            ]
        },
    ),
    "calls": Sent("POST", "/v1/calls", _calls(1), CALLS, status=200),
    "calls of no shard": Sent("POST", "/v1/calls", _calls(99), CALLS, status=200),
    "no frames": Sent("POST", "/v1/calls", BODY.encode(), CALLS, status=413),
    "refused by the head": Sent("POST", "/v1/nowhere", BODY.encode(), status=404),
    "too large": Sent(
        "POST", f"{ORDERS}/messages", b"", headers={"content-length": f"{1 << 40}"}, status=413
    ),
    "no HTTP": Sent("POST", f"{ORDERS}/messages", b"", headers={"a": BODY[:LARGE]}, status=431),
}


def _ask(port: int, sent: Sent, headers: Mapping[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=scaled(60))
    body = sent.body if isinstance(sent.body, bytes) else json.dumps(sent.body)
    try:
        told = {**headers, "content-type": sent.type, **sent.headers}
        connection.request(sent.method, sent.path, body, told)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


async def left_by(work: Callable[[], Awaitable[None]]) -> list[str]:
    """Return what the work leaves to the collector that holds a request, by the holders' names.

    Only buffers with the bytes of `BODY` count: a closed engine is garbage too.
    """
    await work()
    gc.collect()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            await work()
        # Callbacks of what has ended.
        for _ in range(3):
            await asyncio.sleep(0)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        return [_named(holder) for holder in gc.garbage if _has_body(holder)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _has_body(holder: object) -> bool:
    return any(_is_body(held) for held in gc.get_referents(holder))


def _is_body(held: object) -> bool:
    if isinstance(held, str):
        return len(held) >= LARGE and MARK in held
    if isinstance(held, bytes | bytearray | memoryview):
        # The body of a request begins in its first bytes; a map of a log segment is not searched.
        start = bytes(memoryview(held).cast("B")[:LARGE])
        return memoryview(held).nbytes >= LARGE and MARK.encode() in start
    return False


def _named(holder: object) -> str:
    return holder.f_code.co_qualname if isinstance(holder, FrameType) else type(holder).__name__


@pytest.mark.slow
@pytest.mark.parametrize("is_front", [False, True], ids=["engine", "front end"])
def test_sec_30_refused_requests_leave_no_garbage(tmp_path: Path, *, is_front: bool) -> None:
    async def main() -> None:
        async with served(tmp_path, is_front=is_front) as server:
            found = {name: await _left(server, sent) for name, sent in REST.items()}
            assert not any(found.values()), found

    asyncio.run(main())


async def _left(server: Served, sent: Sent) -> list[str]:
    async def work() -> None:
        root = {"authorization": "Bearer root"}
        status, body = await asyncio.to_thread(_ask, server.port, sent, root)
        assert status == sent.status, body

    return await left_by(work)


def test_sec_30_connections_go_when_they_are_closed(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("GET", "/v1/spaces")
            gc.collect()
            gc.disable()
            try:
                found = await server.ask("GET", "/v1/spaces")
                assert found.status == 200
                await until(lambda: not server.app.site.connections)
                await asyncio.sleep(0)
                left = [
                    one
                    for one in gc.get_objects()
                    if isinstance(one, ClientConnection | RequestParser)
                ]
                assert left == []
            finally:
                gc.enable()

    asyncio.run(main())


def _sqs(action: str, body: Mapping[str, object], status: int, key: Key | None = None) -> Sent:
    headers = {"x-amz-target": f"AmazonSQS.{action}"}
    if key is not None:
        headers["x-amz-date"] = "20261116T120000Z"
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={key.id}/20261116/us-east-1/sqs/aws4_request, "
            f"SignedHeaders=host;x-amz-date, Signature={'a' * 64}"
        )
    return Sent("POST", "/", body, "application/x-amz-json-1.0", status, headers)


@pytest.mark.process
def test_sec_30_refused_requests_of_aws_leave_no_garbage(tmp_path: Path) -> None:
    key = make_key(tmp_path, "ada", "allow * */*")
    flags = {"data": str(tmp_path), "listen": "127.0.0.1:0", "anonymous": "true"}
    where = "http://localhost/000000000000/jobs"
    sent = {
        "long": _sqs("SendMessage", {"QueueUrl": where, "MessageBody": BODY * 5}, 400),
        "no queue": _sqs("SendMessage", {"QueueUrl": where + "-", "MessageBody": BODY}, 400),
        "characters": _sqs("SendMessage", {"QueueUrl": where, "MessageBody": BODY + "\0"}, 400),
        "unknown field": _sqs("SendMessage", {"QueueUrl": where, "Body": BODY}, 400),
        "wrong signature": _sqs("SendMessage", {"QueueUrl": where, "MessageBody": BODY}, 403, key),
        "receipt": _sqs("DeleteMessage", {"QueueUrl": where, "ReceiptHandle": BODY}, 404),
        "form": Sent(
            "POST", "/", f"Action=Nothing&A={BODY}".encode(), "application/x-www-form-urlencoded"
        ),
    }

    async def main() -> None:
        server = Server(load(None, {}, flags), FrontendOrders(flags=flags))
        await server.start()
        port = int(server.addresses[0].rpartition(":")[2])

        async def left(sent: Sent) -> list[str]:
            async def work() -> None:
                status, body = await asyncio.to_thread(_ask, port, sent, {})
                assert status == sent.status, body

            return await left_by(work)

        try:
            made = _sqs("CreateQueue", {"QueueName": "jobs"}, 200)
            assert (await asyncio.to_thread(_ask, port, made, {}))[0] == 200
            found = {name: await left(one) for name, one in sent.items()}
            assert not any(found.values()), found
        finally:
            await server.stop()

    asyncio.run(main())
