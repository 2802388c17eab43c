"""Headers and notes that the server alone writes, and calls of other processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from millrace import Message, Millrace
from millrace.client.lease import Lease
from millrace.client.millrace import engine_of
from millrace.client.queue import Queue
from millrace.client.remote import RemoteEngine
from millrace.client.topic import configure_durably, subscribe_durably
from millrace.core.topic_commands import ConfigureSubscription, Subscribe
from millrace.errors import Invalid
from millrace.rpc.http_transport import HttpTransport
from millrace.rpc.socket_transport import SocketTransport
from millrace.server.rpc.local_socket import LocalListener
from tests.client.harness import opened
from tests.server.calls_site import served

FORGED = {"colour": "red", "aws.topic": "arn:of:another"}
DEAD = {"millrace-dead-queue": "other/secret"}


@asynccontextmanager
async def asking(m: Millrace, path: Path, way: str) -> AsyncIterator[Millrace]:
    """Another process that asks: a client over HTTP or the socket, or a front end."""
    engine = RemoteEngine()
    if way == "http":
        async with served(engine_of(m)) as url:
            engine.use(HttpTransport(urlsplit(url), "token", None, engine.late))
            async with Millrace(engine) as other:
                yield other
        return
    local = LocalListener(engine_of(m), path)
    if way == "front end":
        local.of_server = lambda: [os.getpid()]
    await local.start()
    engine.use(SocketTransport(path, engine.late))
    try:
        async with Millrace(engine) as other:
            yield other
    finally:
        await local.stop()


CLIENTS = pytest.mark.parametrize("way", ["http", "socket"])


@CLIENTS
@pytest.mark.parametrize("headers", [FORGED, DEAD])
def test_sec_04_no_client_writes_headers_of_the_server(
    tmp_path: Path, way: str, headers: dict[str, str]
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as owner, asking(owner, tmp_path, way) as m:
            queue = await m.queue("orders")
            topic = await m.topic("news")
            await topic.subscribe(queue)
            # So that the calls after it take the quickest way.
            await queue.publish(b"fine")

            async def in_transaction() -> None:
                async with m.transaction() as t:
                    t.publish(queue, b"x", headers=headers)

            async def staged_in_transaction() -> None:
                async with m.transaction() as t:
                    t.publish_many(queue, [b"x", Message(b"y", headers=headers)])

            async def replaced() -> None:
                [lease] = await queue.lease()
                try:
                    await lease.replace(b"y", headers=headers)
                finally:
                    await lease.release()

            attempts: list[Callable[[], Awaitable[object]]] = [
                lambda: queue.publish(b"x", headers=headers),
                lambda: queue.publish_many([b"x", Message(b"y", headers=headers)]),
                lambda: queue.publish_many(batch(headers)),
                lambda: queue.stage("s", [Message(b"y", headers=headers)]),
                lambda: topic.publish(b"x", headers=headers),
                lambda: topic.publish_many([b"x", Message(b"y", headers=headers)]),
                in_transaction,
                staged_in_transaction,
                replaced,
            ]
            for attempt in attempts:
                with pytest.raises(Invalid, match="the server alone") as refused:
                    await attempt()
                assert refused.value.field == "headers"
            assert (await queue.stats())["published"] == 1

    asyncio.run(main())


def batch(headers: dict[str, str]) -> pa.RecordBatch:
    pairs = [{"name": name, "value": text.encode()} for name, text in headers.items()]
    kind = pa.list_(pa.struct([("name", pa.utf8()), ("value", pa.binary())]))
    columns = {"value": pa.array([b"1", b"2"]), "headers": pa.array([[], pairs], kind)}
    return pa.RecordBatch.from_pydict(columns)


@CLIENTS
@pytest.mark.parametrize("name", ["aws.pending", "raw:arn", "subscription:arn", "millrace-dead-x"])
def test_sec_04_no_client_writes_notes_of_the_server(tmp_path: Path, way: str, name: str) -> None:
    async def main() -> None:
        async with opened(tmp_path) as owner, asking(owner, tmp_path, way) as m:
            queue, topic = await m.queue("orders"), await m.topic("news")
            await topic.subscribe(queue, name="s")
            notes = {"fine": "1", name: "forged"}
            attempts: list[Callable[[], Awaitable[object]]] = [
                lambda: m.queue("other", notes=notes),
                lambda: queue.configure(notes=notes),
                lambda: m.topic("other", notes=notes),
                lambda: topic.configure(notes=notes),
                lambda: topic.subscribe(queue, name="other", notes=notes),
                lambda: topic.configure_subscription("s", notes=notes),
            ]
            for attempt in attempts:
                with pytest.raises(Invalid, match="the server alone") as refused:
                    await attempt()
                assert refused.value.field == "notes"
            assert (await m.queues(), await m.topics()) == (["orders"], ["news"])
            assert not (await queue.spec()).notes

    asyncio.run(main())


def test_sec_04_a_front_end_is_the_server_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as owner, asking(owner, tmp_path, "front end") as m:
            queue = await m.queue("orders", notes={"aws.tag:x": "1"})
            await queue.publish(b"x", headers=FORGED)
            [lease] = await queue.lease()
            assert dict(lease.headers)["aws.topic"] == b"arn:of:another"

    asyncio.run(main())


# --- What is moved -------------------------------------------------------------------------------


async def bury(owner: Millrace, count: int) -> tuple[Queue, Queue]:
    """Messages that a topic and SQS have told of, as dead letters."""
    dead, held = await owner.queue("dead"), list[Lease]()
    orders = await owner.queue("orders", dead_letter="dead")
    for number in range(count):
        headers = {"aws.topic": "arn:news", "aws.id": str(number), "colour": "red"}
        await orders.publish(str(number).encode(), headers=headers)
    for lease in await orders.lease(count):
        await lease.discard()
    while len(held) < count:
        held += await dead.lease(count, wait=60)
    for lease in held:
        await lease.release()
    return orders, dead


@pytest.mark.parametrize("way", ["http", "socket", "front end"])
def test_sec_04_what_a_client_redrives_keeps_what_the_server_said_of_it(
    tmp_path: Path, way: str
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as owner:
            orders, _ = await bury(owner, 3)
            async with asking(owner, tmp_path, way) as m:
                dead = await m.find("dead")
                assert (await dead.redrive().run()).moved == 3
            for lease in await orders.lease(3):
                told = dict(lease.headers)
                assert told == {
                    "aws.topic": b"arn:news",
                    "aws.id": lease.body,
                    "colour": b"red",
                }

    asyncio.run(main())


@pytest.mark.parametrize("way", ["http", "socket", "front end"])
def test_sec_04_another_body_is_a_message_of_the_clients_own(tmp_path: Path, way: str) -> None:
    def forge(message: Message) -> Message:
        return Message(b"forged", headers=message.headers)

    async def main() -> None:
        async with opened(tmp_path) as owner:
            orders, _ = await bury(owner, 2)
            async with asking(owner, tmp_path, way) as m:
                dead = await m.find("dead")
                assert (await dead.redrive(edit=forge).run()).moved == 2
            for lease in await orders.lease(2):
                assert (lease.body, dict(lease.headers)) == (b"forged", {"colour": b"red"})

    asyncio.run(main())


@CLIENTS
def test_sec_04_what_is_moved_is_settled_once_and_has_the_same_body(
    tmp_path: Path, way: str
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as owner:
            await bury(owner, 2)
            async with asking(owner, tmp_path, way) as m:
                dead, mine = await m.find("dead"), await m.queue("mine")
                first, second = await dead.lease(2)
                alive = {"aws.topic": b"arn:news", "aws.id": first.body}

                async def move(*bodies: bytes, **changed: bytes) -> None:
                    async with m.transaction() as t:
                        for body in bodies:
                            t.publish(mine, body, headers=alive | changed)
                        t.settle(first)

                for bodies, changed in (
                    ((b"forged",), {}),
                    ((first.body,), {"aws.subject": b"forged"}),
                    ((first.body,), {"millrace-dead-queue": b"other/secret"}),
                    ((first.body, first.body), {}),
                    ((second.body,), {"aws.id": second.body}),
                ):
                    with pytest.raises(Invalid, match="the server alone"):
                        await move(*bodies, **changed)
                await move(first.body)
                [lease] = await mine.lease()
                assert (lease.body, dict(lease.headers)) == (first.body, alive)

    asyncio.run(main())


@CLIENTS
def test_sec_04_a_dead_letter_that_is_replaced_knows_where_it_was(tmp_path: Path, way: str) -> None:
    async def main() -> None:
        async with opened(tmp_path) as owner:
            await bury(owner, 1)
            async with asking(owner, tmp_path, way) as m:
                dead = await m.find("dead")
                [lease] = await dead.lease()
                after = await lease.replace(b"halfway")
                told = dict(after.headers)
                assert told["millrace-dead-queue"] == b"default/orders"
                assert "aws.topic" not in told
                with pytest.raises(Invalid, match="the server alone"):
                    await after.replace(b"on", headers=DEAD)
                await after.release()
                [again] = await dead.lease()
                assert again.headers == after.headers

    asyncio.run(main())


@CLIENTS
@pytest.mark.parametrize(
    "named",
    [
        {"durable": True},
        {"dead_letter": "other/secret"},
        {"queue_notes": (("raw:arn", "1"),)},
    ],
    ids=str,
)
def test_sec_no_client_makes_a_subscription_durable(
    tmp_path: Path, way: str, named: dict[str, Any]
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as owner, asking(owner, tmp_path, way) as m:
            topic = await m.topic("news")
            await topic.subscribe(await m.queue("orders"))
            with pytest.raises(Invalid, match="the server alone"):
                await subscribe_durably(topic, Subscribe("s", "default", "late", "", **named))
            with pytest.raises(Invalid, match="the server alone"):
                await configure_durably(topic, ConfigureSubscription("orders", **named))
            assert [one.name for one in await topic.subscriptions()] == ["orders"]

    asyncio.run(main())
