"""Connecting to a server by its address: authentication, refusals, unreachable servers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import millrace
from millrace import errors
from millrace.client.millrace import Millrace, engine_of
from millrace.client.remote import RemoteEngine
from tests.client.harness import embedded
from tests.server.calls_site import served

WEAK = {"token": ("allow * */*",), "weak": ("allow publish default/orders",)}


@embedded
async def test_the_objects_are_those_of_open(m: Millrace) -> None:
    async with served(engine_of(m)) as url, millrace.connect(url, token="token") as other:
        queue = await other.queue("orders", shards=2)
        waiting = asyncio.create_task(queue.lease(wait=30))
        await queue.publish_many([b"%d" % n for n in range(1_000)])
        [lease] = await waiting
        async with other.transaction() as t:
            t.settle(lease)
            t.publish("orders", b"more")
        async with queue.snapshot() as snapshot:
            rows = [row async for row in snapshot.rows()]
        assert len(rows) == 1_000
        assert (await queue.stats())["settled"] == 1
        assert (await other.health()).refuses is None


@embedded
async def test_whoever_is_not_known_is_refused_at_once(m: Millrace) -> None:
    async with served(engine_of(m)) as url:
        for token in ("wrong", None):
            with pytest.raises(errors.Unauthenticated):
                await millrace.connect(url, token=token)


@embedded
async def test_whoever_is_known_does_what_rules_allow(m: Millrace) -> None:
    own = await m.queue("orders")
    await m.queue("secret")
    await own.publish(b"x")
    [held] = await own.lease()
    async with served(engine_of(m), WEAK) as url, millrace.connect(url, token="weak") as other:
        assert await other.queues() == ["orders"]
        queue = await other.find("orders")
        await queue.publish(b"y")
        with pytest.raises(errors.Denied, match="may not work default/orders"):
            await queue.lease()
        # With the right receipt, too.
        with pytest.raises(errors.Denied):
            await queue.settle(held.receipt)
        with pytest.raises(errors.Denied):
            await queue.peek(1)
        with pytest.raises(errors.Denied):
            await other.find("secret")
        with pytest.raises(errors.Denied):
            await other.delete_queue("orders")
        with pytest.raises(errors.Denied):
            await other.health()


@embedded
async def test_a_lease_call_that_is_given_up_leaves_nothing_leased(m: Millrace) -> None:
    async with served(engine_of(m)) as url, millrace.connect(url, token="token") as other:
        queue = await other.queue("orders")
        waiting = asyncio.create_task(queue.lease(wait=60))
        # It waits on the shard once others that came later are answered.
        for _ in range(3):
            await queue.stats()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await queue.publish(b"x")
        [lease] = await queue.lease(wait=30)
        assert lease.body == b"x"


@embedded
async def test_what_cannot_be_had_over_http_says_so(m: Millrace) -> None:
    async with served(engine_of(m)) as url, millrace.connect(url, token="token") as other:
        queue = await other.queue("orders")
        with pytest.raises(errors.Invalid, match="on the server's"):
            await other.backup(Path("backups"))
        async with queue.snapshot() as snapshot:
            with pytest.raises(errors.Invalid, match="in another thread"):
                snapshot.arrow().read_all()


@embedded
async def test_whoever_is_gone_is_named(m: Millrace) -> None:
    async with served(engine_of(m)) as url:
        other = await millrace.connect(url, token="token")
        queue = await other.queue("orders")
    engine = engine_of(other)
    assert isinstance(engine, RemoteEngine)
    engine.patience = 0.05
    with pytest.raises((errors.Closed, errors.Unknown), match=r"127\.0\.0\.1"):
        await queue.stats()
    await other.close()
    with pytest.raises(errors.Closed):
        await queue.stats()


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "localhost:8080", "http://", "http://x:0", "http://a:b@x", "http://x?q"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        millrace.connect(url)
    assert caught.value.field == "url"


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/queues"])
def test_an_address_with_a_path_is_refused(path: str) -> None:
    with pytest.raises(
        errors.Invalid, match=r"drop the path: https://queues\.example:1$"
    ) as caught:
        millrace.connect(f"https://queues.example:1{path}")
    assert caught.value.field == "url"
    millrace.connect("https://queues.example:1/")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.0 501 Unsupported\r\ncontent-type: text/html\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
    ],
)
def test_whoever_is_not_millrace_is_told_of_at_once(answer: bytes) -> None:
    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(answering, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(errors.Invalid, match=r"does not (answer|speak)") as caught:
                await millrace.connect(f"http://127.0.0.1:{port}")
            assert caught.value.field == "url"

    asyncio.run(main())


def test_nobody_at_an_address_is_no_engine_that_is_closed() -> None:
    async def main() -> None:
        with pytest.raises(errors.Closed, match="does a server run there"):
            await millrace.connect("http://127.0.0.1:1", patience=0)

    asyncio.run(main())


def test_a_token_that_would_change_the_request_is_refused() -> None:
    with pytest.raises(errors.Invalid) as caught:
        millrace.connect("http://localhost", token="x\r\nhost: other")
    assert caught.value.field == "token"
