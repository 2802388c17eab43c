"""The key that messages of topics are signed with: made once, in a thread, and for no stranger."""

from __future__ import annotations

import asyncio
import http.client
from pathlib import Path

import pytest

from millrace.errors import Invalid
from millrace.server.process.frontend import FrontendOrders
from millrace.server.process.server import Server
from millrace.server.process.server_settings import load
from millrace.server.sns.signing import SIGNING_KEY_FILE
from millrace.server.sns.topic_cache import TopicCache
from millrace.server.web.queue_cache import QueueCache
from tests.client.harness import opened
from tests.support.stall import StallMonitor


def _get(address: str, path: str) -> int:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_sec_27_a_stranger_has_no_key_made(tmp_path: Path) -> None:
    flags = {"data": str(tmp_path), "listen": "127.0.0.1:0"}

    async def main() -> None:
        server = Server(load(None, {}, flags), FrontendOrders(flags=flags))
        await server.start()
        try:
            async with StallMonitor() as monitor:
                found = await asyncio.to_thread(_get, server.addresses[0], "/_aws/sns/a.pem")
            assert found == 400
            monitor.assert_responsive()
            assert not (tmp_path / SIGNING_KEY_FILE).exists()
        finally:
            await server.stop()

    asyncio.run(main())


def test_sec_27_a_key_is_made_once_beside_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            exchange = TopicCache(QueueCache(m), tmp_path)
            assert not exchange.has_key
            async with StallMonitor() as monitor:
                found = await asyncio.gather(*(exchange.prepare() for _ in range(50)))
            monitor.assert_responsive()
            assert {id(signer) for signer in found} == {id(exchange.signer)}
            assert exchange.has_key

    asyncio.run(main())


def test_whoever_waits_for_a_key_hears_that_there_is_none(tmp_path: Path) -> None:
    """The next one tries again."""
    (tmp_path / SIGNING_KEY_FILE).write_text("nonsense")
    (tmp_path / SIGNING_KEY_FILE).chmod(0o600)

    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            exchange = TopicCache(QueueCache(m), tmp_path)
            for found in await asyncio.gather(
                exchange.prepare(), exchange.prepare(), return_exceptions=True
            ):
                assert isinstance(found, Invalid)
            (tmp_path / SIGNING_KEY_FILE).unlink()
            waiting = asyncio.ensure_future(exchange.prepare())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await exchange.prepare()).name

    asyncio.run(main())
