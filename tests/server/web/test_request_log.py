"""What is logged of requests: enough to find out what happened, and nothing that is secret."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.server.process import log_format
from millrace.server.web.request_log import AccessLog, RequestLog
from tests.server.rest.harness import served, until
from tests.server.server_process import Process
from tests.support.timeouts import scaled

ORDERS = "/v1/spaces/default/queues/orders"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextmanager
def logged(form: str) -> Iterator[io.StringIO]:
    """What is logged meanwhile."""
    logger = logging.getLogger("millrace")
    before = logger.handlers, logger.level, logger.propagate
    log_format.set_up("error", form)
    found = io.StringIO()
    [handler] = logger.handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(found)
    try:
        yield found
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])


def test_a_request_is_one_line_with_its_route_and_who_asked(tmp_path: Path) -> None:
    async def main(found: io.StringIO) -> None:
        async with served(tmp_path) as server:
            server.app.use(RequestLog(None, AccessLog(1)))
            headers = {"x-request-id": "call-7", "traceparent": TRACE}
            await server.ask("POST", f"{ORDERS}/messages", {"body": "tea"}, headers=headers)
            await server.ask("GET", f"{ORDERS}/messages/1?by=seq", headers={"x-request-id": "a b"})
            await server.ask("GET", f"{ORDERS}/secret-in-path")
            await server.ask("DELETE", ORDERS, role="worker")
            await server.ask("GET", "/v1/spaces", role="wrong")
            lines = [json.loads(line) for line in found.getvalue().splitlines()]
            post = lines[0]
            assert post.pop("us") > 0
            assert post.pop("out_bytes") > 0
            assert post.pop("in_bytes") == len(json.dumps({"body": "tea"}))
            assert {name: post[name] for name in post if name != "time"} == {
                "level": "info",
                "logger": "millrace.access",
                "message": "request",
                "who": "root",
                "from": "127.0.0.1",
                "method": "POST",
                "route": "/v1/spaces/{space}/queues/{queue}/messages",
                "status": 201,
                "request_id": "call-7",
                "trace_id": TRACE.split("-")[1],
            }
            told = [(one["who"], one["route"], one["status"]) for one in lines[1:5]]
            assert told == [
                ("root", "/v1/spaces/{space}/queues/{queue}/messages/{seq}", 200),
                ("root", "-", 404),
                ("worker", "/v1/spaces/{space}/queues/{queue}", 403),
                ("-", "/v1/spaces", 401),
            ]
            assert "request_id" not in lines[1]

    with logged("json") as found:
        asyncio.run(main(found))


def test_a_stream_is_logged_at_its_end_with_all_its_bytes(tmp_path: Path) -> None:
    async def main(found: io.StringIO) -> None:
        async with served(tmp_path) as server:
            server.app.use(RequestLog(None, AccessLog(1)))
            queue = await server.millrace.find("orders")
            await queue.publish_many([b"x" * 1000] * 100)
            answer = await server.ask("POST", f"{ORDERS}/snapshots", {})
            name = answer.text("snapshot")
            rows = await server.ask("GET", f"{ORDERS}/snapshots/{name}")
            assert rows.status == 200
            await until(lambda: "{snapshot}" in found.getvalue())
            line = found.getvalue().splitlines()[-1]
            assert f"out_bytes={len(rows.body)} " in line
            assert name not in found.getvalue()

    with logged("text") as found:
        asyncio.run(main(found))


def test_of_many_requests_some_are_logged_and_all_that_fail(tmp_path: Path) -> None:
    async def main(found: io.StringIO) -> None:
        async with served(tmp_path) as server:
            server.app.use(RequestLog(None, AccessLog(10)))
            for _ in range(20):
                assert (await server.ask("GET", "/v1")).status == 200
            for _ in range(3):
                assert (await server.ask("GET", "/v1", role=None)).status == 401
            statuses = [json.loads(line)["status"] for line in found.getvalue().splitlines()]
            assert statuses == [200, 200, 401, 401, 401]
            server.app.use(None)
            await server.ask("GET", "/v1", role=None)
            assert len(found.getvalue().splitlines()) == 5

    with logged("json") as found:
        asyncio.run(main(found))


@pytest.mark.process
@pytest.mark.parametrize("options", [(), ("--frontends", 1)])
def test_no_secret_is_in_any_log(tmp_path: Path, options: tuple[object, ...]) -> None:
    told = ("--set", "log_level=debug", "--set", "access_log=1")
    wrong = "mr_" + "wrong" * 8
    with Process(tmp_path / "data", *options, *told) as server:
        assert server.ask("PUT", ORDERS, {}).status == 201
        server.ask("POST", f"{ORDERS}/messages", {"body": "body-of-it", "key": "key-of-it"})
        receipt = server.ask("POST", f"{ORDERS}/leases", {}).items("messages")[0]["receipt"]
        assert isinstance(receipt, str)
        server.ask("POST", f"{ORDERS}/settle", {"receipts": [receipt]})
        server.ask("GET", "/v1", token=wrong)
        server.ask("GET", f"/v1?token={server.token}")
        server.ask("GET", f"/{server.token}")
        server.ask("POST", f"{ORDERS}/leases", {"token": server.token})
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=scaled(60))
        connection.request("GET", "/v1", headers={"authorization": f"Basic {server.token}"})
        assert connection.getresponse().status == 401
        connection.close()
        token = server.token
        assert server.stop() == 0
        text = server.errors()
    assert text.count(" request ") == 9
    for secret in (token, token[:20], wrong, receipt, "body-of-it", "key-of-it"):
        assert secret not in text
