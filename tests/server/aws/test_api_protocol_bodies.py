"""Bodies of calls of AWS: no larger than the messages that a call may have."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from millrace import limits
from millrace.server.process.frontend import FrontendOrders
from millrace.server.process.server import Server
from millrace.server.process.server_settings import load
from tests.server.aws.site import make_key, run
from tests.server.rest.harness import until
from tests.support.stall import ATTEMPTS, StallMonitor

JSON = "application/x-amz-json-1.0"
FORM = "application/x-www-form-urlencoded"
WHERE = "http://localhost/000000000000/jobs"
RSS_GROWTH_BYTES_MAX = 384 << 20
"""Client and server are one process: a body of 60 MiB is made, sent and kept ready for here."""

LIMIT = limits.AWS_ESCAPES_MAX * limits.SQS_MESSAGE_BYTES_MAX + limits.AWS_BESIDE_BYTES


def _ask(port: int, action: str, body: bytes | Iterator[bytes], kind: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"content-type": kind, "x-amz-target": f"AmazonSQS.{action}"}
    try:
        connection.request("POST", "/", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _attributes(size: int) -> bytes:
    one = b'"a%x":{"DataType":"String","StringValue":""}'
    many = b",".join(one % at for at in range(size // len(one % size)))
    return b'{"QueueUrl":"%b","MessageBody":"x","MessageAttributes":{%b}}' % (WHERE.encode(), many)


def _entries(size: int) -> bytes:
    many = b",".join([b'{"Id":"","MessageBody":""}'] * (size // 27))
    return b'{"QueueUrl":"%b","Entries":[%b]}' % (WHERE.encode(), many)


@pytest.mark.slow
def test_sec_08_bodies_of_aws_are_bounded_and_stop_nobody(tmp_path: Path) -> None:
    flags = {"data": str(tmp_path), "listen": "127.0.0.1:0", "anonymous": "true"}
    escaped = b"\\u003c" * limits.SQS_MESSAGE_BYTES_MAX
    send = b'{"QueueUrl":"%b","MessageBody":"%b"}'
    cases: dict[str, tuple[str, bytes | Iterator[bytes], str, int]] = {
        "60 MiB": ("SendMessage", _attributes(60 << 20), JSON, 413),
        "attributes": ("SendMessage", _attributes(LIMIT - 200), JSON, 400),
        "entries": ("SendMessageBatch", _entries(LIMIT - 200), JSON, 400),
        "chunks": ("SendMessage", iter([b"x" * 65_536] * 200), JSON, 413),
        "a form": ("", b"a=b&" * (LIMIT // 4), FORM, 400),
        "escapes": ("", b"a=" + b"%41" * (LIMIT // 3 - 1), FORM, 400),
        "signs of escapes": ("", b"a=" + b"%" * (LIMIT - 2), FORM, 400),
        "fields of escapes": (
            "",
            b"&".join([b"%25" * 200 + b"=" + b"%41" * 200] * 4_990),
            FORM,
            400,
        ),
        "a message that is allowed": ("SendMessage", send % (WHERE.encode(), escaped), JSON, 200),
    }

    async def main() -> None:
        server = Server(load(None, {}, flags), FrontendOrders(flags=flags))
        await server.start()
        port = int(server.addresses[0].rpartition(":")[2])
        try:
            made = json.dumps({"QueueName": "jobs"}).encode()
            assert (await asyncio.to_thread(_ask, port, "CreateQueue", made, JSON))[0] == 200
            for name, (action, body, kind, status) in cases.items():
                monitor = StallMonitor()
                for _ in range(ATTEMPTS if isinstance(body, bytes) else 1):
                    monitor = StallMonitor()
                    async with monitor:
                        found = await asyncio.to_thread(_ask, port, action, body, kind)
                    assert found[0] == status, (name, found)
                    if status == 413:
                        assert b"RequestEntityTooLarge" in found[1]
                        assert str(LIMIT).encode() in found[1]
                    if monitor.is_responsive:
                        break
                monitor.assert_responsive()
                assert monitor.rss_growth_bytes < RSS_GROWTH_BYTES_MAX, name
        finally:
            await server.stop()

    asyncio.run(main())


@pytest.mark.process
def test_sec_11_whoever_knows_the_id_of_a_key_does_not_lock_its_owner_out(tmp_path: Path) -> None:
    """Ids stand in addresses that were signed: bodies that name one are not its owner's."""
    key = make_key(tmp_path, "ada", "allow * */*")
    token = str(run("token", "new", "ada", "--data", tmp_path)["token"])
    flags = {"data": str(tmp_path), "listen": "127.0.0.1:0"}
    now = datetime.now(UTC)
    head = (
        "POST / HTTP/1.1\r\nHost: h\r\nX-Amz-Date: {:%Y%m%dT%H%M%SZ}\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 6000000\r\n"
        f"Authorization: AWS4-HMAC-SHA256 Credential={key.id}/{{:%Y%m%d}}/us-east-1/sqs/"
        f"aws4_request, SignedHeaders=host;x-amz-date, Signature={'a' * 64}\r\n\r\n"
    ).format(now, now)

    async def main() -> None:
        server = Server(load(None, {}, flags), FrontendOrders(flags=flags))
        await server.start()
        port = int(server.addresses[0].rpartition(":")[2])
        bodies = server._serving._app.site.bodies  # type: ignore[union-attr]
        try:
            made = []
            for _ in range(10):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head.encode() + bytes(5_999_999))
                made.append(writer)
                # It is read, or refused for what others of the address hold.
                await asyncio.wait_for(writer.drain(), 60)
            await until(lambda: bodies.unproved.size > limits.HTTP_UNPROVED_BYTES_MAX // 3)
            assert bodies.unproved.size <= limits.HTTP_UNPROVED_BYTES_MAX // limits.HTTP_SHARE
            assert bodies.held("ada") == 0
            sent = await asyncio.to_thread(_publish, port, token)
            assert sent[0] == 201, sent
            for writer in made:
                writer.transport.abort()
            await until(lambda: bodies.unproved.size == 0)
        finally:
            await server.stop()

    asyncio.run(main())


def _publish(port: int, token: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"authorization": f"Bearer {token}"}
    try:
        queue = "/v1/spaces/default/queues/jobs"
        connection.request("PUT", queue, b"{}", {**headers, "content-type": "application/json"})
        connection.getresponse().read()
        body, headers["content-type"] = bytes(16 << 20), "application/octet-stream"
        connection.request("POST", f"{queue}/messages", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
