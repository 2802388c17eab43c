"""Receives of messages that are larger than those of SQS, which other APIs publish."""

from __future__ import annotations

import asyncio
import html
import http.client
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import md5
from pathlib import Path

import pytest

from millrace import limits
from millrace.server.process.frontend import FrontendOrders
from millrace.server.process.server import Server
from millrace.server.process.server_settings import load
from tests.server.aws.site import ACCOUNT
from tests.support.stall import ATTEMPTS, STEP_CPU_SECONDS_MAX, StallMonitor
from tests.support.timeouts import scaled

JSON = "application/x-amz-json-1.0"
FORM = "application/x-www-form-urlencoded"
BYTES = "application/octet-stream"
MESSAGES = "/v1/spaces/default/queues/jobs/messages"
PEEK = f"/_aws/sqs/messages?QueueUrl=/{ACCOUNT}/jobs"
LARGE = limits.SQS_MESSAGE_BYTES_MAX + 1

WAYS = ["json", "xml", "peek in json", "peek in xml"]


def _ask(
    port: int, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=scaled(60))
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


async def _receive(port: int, way: str) -> tuple[int, bytes]:
    """Receive up to ten messages, which are ready again at once."""
    url = f"http://localhost/{ACCOUNT}/jobs"
    if way == "json":
        target = {"content-type": JSON, "x-amz-target": "AmazonSQS.ReceiveMessage"}
        asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 0}
        return await asyncio.to_thread(_ask, port, "POST", "/", json.dumps(asked).encode(), target)
    if way == "xml":
        form = f"Action=ReceiveMessage&QueueUrl={url}&MaxNumberOfMessages=10&VisibilityTimeout=0"
        kind = {"content-type": FORM}
        return await asyncio.to_thread(_ask, port, "POST", "/", form.encode(), kind)
    accept = {"accept": "application/json"} if way == "peek in json" else {}
    return await asyncio.to_thread(_ask, port, "GET", PEEK, None, accept)


def _told(answer: bytes, way: str) -> list[tuple[str, str]]:
    """Text and digest of each message."""
    if way == "json":
        return [(one["Body"], one["MD5OfBody"]) for one in json.loads(answer)["Messages"]]
    if way == "peek in json":
        told = json.loads(answer)["ReceiveMessageResponse"]["ReceiveMessageResult"]["Message"]
        return [(one["Body"], one["MD5OfBody"]) for one in told]
    text = answer.decode()
    bodies = re.findall(r"<Body>(.*?)</Body>", text, re.DOTALL)
    digests = re.findall(r"<MD5OfBody>(.*?)</MD5OfBody>", text)
    return [(html.unescape(one), digest) for one, digest in zip(bodies, digests, strict=True)]


@asynccontextmanager
async def _served(folder: Path) -> AsyncIterator[int]:
    flags = {"data": str(folder), "listen": "127.0.0.1:0", "anonymous": "true"}
    server = Server(load(None, {}, flags), FrontendOrders(flags=flags))
    await server.start()
    try:
        port = int(server.addresses[0].rpartition(":")[2])
        target = {"content-type": JSON, "x-amz-target": "AmazonSQS.CreateQueue"}
        made = await asyncio.to_thread(_ask, port, "POST", "/", b'{"QueueName":"jobs"}', target)
        assert made[0] == 200
        yield port
    finally:
        await server.stop()


async def _publish(port: int, body: bytes) -> None:
    sent = await asyncio.to_thread(_ask, port, "POST", MESSAGES, body, {"content-type": BYTES})
    assert sent[0] == 201


@pytest.mark.slow
@pytest.mark.parametrize("fill", [b"\x01", b"\xff", b"<\x01"])
def test_sec_08_a_receive_of_a_large_body_stops_nobody(tmp_path: Path, fill: bytes) -> None:
    """Control characters are six bytes of JSON each, and no XML holds them."""

    async def main() -> None:
        async with _served(tmp_path) as port:
            await _publish(port, fill * (limits.BODY_BYTES_MAX // len(fill)))
            for way in WAYS:
                steps: list[float] = []
                while len(steps) < ATTEMPTS and (not steps or steps[-1] > STEP_CPU_SECONDS_MAX):
                    async with StallMonitor() as monitor:
                        status, answer = await _receive(port, way)
                    assert status == 200
                    assert len(answer) > limits.BODY_BYTES_MAX
                    steps.append(monitor.longest_cpu_seconds)
                assert min(steps) < STEP_CPU_SECONDS_MAX, (way, steps)

    asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
def test_large_messages_are_told_as_small_ones_are(tmp_path: Path, way: str) -> None:
    text = 'a"\\<&>\r\n\u0001ü\U0001f600'
    step = limits.ANSWER_STEP_BYTES
    bodies = [
        # Characters that are cut by the end of a step, and bytes that are no text.
        b"x" + "\U0001f600".encode() * (LARGE // 4),
        b"\xe2\x82" * (step // 2) + b"\xff",
        text.encode() * (LARGE // len(text.encode())),
        b"small",
        b"",
    ]

    async def main() -> None:
        async with _served(tmp_path) as port:
            for body in bodies:
                await _publish(port, body)
            status, answer = await _receive(port, way)
            assert status == 200
            expected = [body.decode("utf-8", "replace") for body in bodies]
            if way != "json":
                expected = [one.replace("\u0001", "\ufffd") for one in expected]
            told = _told(answer, way)
            assert [one for one, _ in told] == expected
            assert [digest for _, digest in told] == [
                md5(one.encode()).hexdigest() for one in expected
            ]

    asyncio.run(main())
