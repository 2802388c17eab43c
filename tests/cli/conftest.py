"""Folders that the real engine has made; each test gets a copy of its own."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from millrace import Message, Millrace, Settings
from millrace.client.embedded import EmbeddedEngine
from millrace.node import Node, real_ports
from tests.cli.desk import Desk

SETTINGS = Settings(segment_bytes=1 << 18, log_segments_max=100, log_segments_unsealed=90)
"""Sealing happens when the test says so."""

BODY = b"\x1b[31mred\x00" + bytes(500)


async def fill(folder: Path) -> None:
    """Two queues with a bit of everything, some of it sealed, some in the log alone."""
    node = await Node.open(real_ports(folder), SETTINGS)
    async with Millrace(EmbeddedEngine(node)) as engine:
        orders = await engine.queue("orders", keyed=True)
        await orders.publish(b"one", key="k1", headers={"from": "test"}, producer="p", number=1)
        await orders.publish_many(
            [Message(b"two", key=b"k2"), Message(b"three", key=b"k1"), Message(None, key=b"k2")]
        )
        work = await engine.queue("work")
        for _ in range(8):
            await work.publish_many([BODY] * 100)
        await node.checkpointer.checkpoint()
        await node.checkpointer.seal_all()
        for _ in range(12):
            await work.publish_many([BODY] * 100)
        leases = await work.lease(50)
        assert await work.settle(leases[:30]) == {}
        assert await work.release(leases[30:35]) == {}
        await work.cursor("report", retain=True)
        await work.stage("later", [b"a", b"b"])
        await (await engine.queue("mail", space="post")).publish(b"letter")


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "data"
    asyncio.run(fill(folder))
    (folder / "index" / "ballast").unlink()
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return Path(shutil.copytree(original, tmp_path / "data"))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A folder of the test's own, with the queues of `millrace demo`."""
    desk = Desk(tmp_path)
    desk.text("demo")
    return desk
