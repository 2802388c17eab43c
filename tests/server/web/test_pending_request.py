"""Single messages are answered without a task: as by the way of all other requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from millrace import Queue, limits
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import engine_of
from tests.server.rest.harness import Answer, Served, served, until, until_told

ORDERS = "/v1/spaces/default/queues/orders"


FRONT = pytest.mark.parametrize("is_front", [False, True], ids=["engine", "front"])


@asynccontextmanager
async def known(folder: Path, *, is_front: bool = False) -> AsyncIterator[Served]:
    """A server whose desk has the queue at hand; nothing of it is handled by a task from now on."""
    async with served(folder, is_front=is_front) as server:
        await server.ask("POST", f"{ORDERS}/leases", {})

        async def never(request: object) -> None:
            raise AssertionError(f"{request} was handled by a task")

        server.app.site.handle = never  # type: ignore[assignment]
        yield server


async def lease(server: Served, **told: object) -> Answer:
    return await server.ask("POST", f"{ORDERS}/leases", {"seconds": 60, **told})


@FRONT
def test_a_round_of_one_message_takes_no_task(tmp_path: Path, *, is_front: bool) -> None:
    async def main() -> None:
        async with known(tmp_path, is_front=is_front) as server:
            told = {"body": "tea", "key": "k", "headers": {"a": "b"}, "priority": 7}
            made = await server.ask("POST", f"{ORDERS}/messages", told)
            assert (made.status, made.json) == (201, {"count": 1, "seq": 1})
            [message] = (await lease(server)).items("messages")
            assert (
                message.items()
                >= {
                    "seq": 1,
                    "body": "tea",
                    "key": "k",
                    "headers": {"a": "b"},
                    "deliveries": 1,
                    "version": 1,
                }.items()
            )
            receipts = {"receipts": [message["receipt"]]}
            for _ in range(2):
                done = await server.ask("POST", f"{ORDERS}/settle", receipts)
                assert (done.status, done.json) == (200, {"done": 1, "refused": []})
            stats = await (await server.millrace.find("orders")).stats()
            assert (stats["settled"], stats["live"]) == (1, 0)

    asyncio.run(main())


@FRONT
def test_messages_come_in_the_order_of_their_turns_with_what_was_counted(
    tmp_path: Path, *, is_front: bool
) -> None:
    async def main() -> None:
        async with known(tmp_path, is_front=is_front) as server:
            queue = await server.millrace.find("orders")
            await queue.publish(b"low", priority=0)
            await queue.publish(b"\xff", priority=9)
            [urgent] = await queue.lease()
            await urgent.release(failed=True)
            found = (await lease(server, count=5)).items("messages")
            assert [one.get("body_base64", one.get("body")) for one in found] == ["/w==", "low"]
            assert [(one["deliveries"], one.get("failures", 0)) for one in found] == [
                (2, 1),
                (1, 0),
            ]
            receipts = [one["receipt"] for one in found]
            done = await server.ask("POST", f"{ORDERS}/settle", {"receipts": receipts})
            assert done.json == {"done": 2, "refused": []}

    asyncio.run(main())


@FRONT
def test_who_waits_is_answered_at_a_stop(tmp_path: Path, *, is_front: bool) -> None:
    async def main() -> None:
        async with known(tmp_path, is_front=is_front) as server:
            polls = [asyncio.create_task(lease(server, wait=20)) for _ in range(3)]
            await until(lambda: server.app.stopping.waiting == 3)
            server.app.stop()
            for poll in polls:
                answer = await poll
                assert (answer.status, answer.json) == (200, {"messages": []})
            assert server.app.stopping.waiting == 0
            queue = await server.millrace.find("orders")
            await queue.publish(b"x")
            assert len(await queue.lease()) == 1

    asyncio.run(main())


@FRONT
def test_who_waits_is_refused_when_the_right_to_ask_is_lost(
    tmp_path: Path, *, is_front: bool
) -> None:
    async def main() -> None:
        async with known(tmp_path, is_front=is_front) as server:
            told = {"wait": 60, "seconds": 60}
            poll = asyncio.create_task(server.ask("POST", f"{ORDERS}/leases", told, role="worker"))
            await until(lambda: server.app.stopping.waiting == 1)
            server.door.forget("worker")
            server.app.site.look(asyncio.get_running_loop().time())
            answer = await poll
            assert (answer.status, answer.json["code"]) == (401, "unauthenticated")
            assert answer.headers["connection"] == "close"
            assert server.app.stopping.waiting == 0
            queue = await server.millrace.find("orders")
            await queue.publish(b"x")
            assert len(await queue.lease()) == 1

    asyncio.run(main())


@FRONT
def test_whoever_has_gone_leaves_what_comes_to_others(tmp_path: Path, *, is_front: bool) -> None:
    async def main() -> None:
        async with known(tmp_path, is_front=is_front) as server:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            body = json.dumps({"wait": 60, "seconds": 600}).encode()
            head = (
                f"POST {ORDERS}/leases HTTP/1.1\r\nhost: a\r\nauthorization: Bearer root\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await until(lambda: server.app.stopping.waiting == 1)
            writer.close()
            await until(lambda: server.app.stopping.waiting == 0)
            queue = await server.millrace.find("orders")
            await queue.publish(b"x")
            assert len((await lease(server)).items("messages")) == 1

    asyncio.run(main())


def test_a_queue_that_was_made_anew_is_found(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await lease(server)
            for body in ("first", "second"):
                made = await server.ask("POST", f"{ORDERS}/messages", {"body": body})
                assert made.json["seq"] == 1
                [message] = (await lease(server)).items("messages")
                assert message["body"] == body
                await server.millrace.delete_queue("orders")
                gone = await server.ask("POST", f"{ORDERS}/messages", {"body": "?"})
                assert (gone.status, gone.json["field"]) == (404, "queue")
                late = await server.ask(
                    "POST", f"{ORDERS}/settle", {"receipts": [message["receipt"]]}
                )
                assert late.status == 404
                await server.millrace.queue("orders")

    asyncio.run(main())


def test_who_waits_hears_that_the_queue_was_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await lease(server)
            poll = asyncio.create_task(lease(server, wait=60))
            await until(lambda: server.app.stopping.waiting == 1)
            await server.millrace.delete_queue("orders")
            assert (await poll).status == 404

    asyncio.run(main())


def test_rows_that_are_not_at_hand_are_read_by_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with known(tmp_path) as server:
            await server.ask("POST", f"{ORDERS}/messages", {"body": "tea"})
            engine = server.app.service.quick
            assert engine is not None
            with monkeypatch.context() as patch:
                patch.setattr(engine, "rows_in_memory", lambda *_: None)
                patch.setattr(engine, "rows", lambda *a: _read(engine._node.store, *a[:3]))
                [message] = (await lease(server)).items("messages")
            assert message["body"] == "tea"
            done = await server.ask("POST", f"{ORDERS}/settle", {"receipts": [message["receipt"]]})
            assert done.json == {"done": 1, "refused": []}

    async def _read(store: object, *arguments: object) -> object:
        return store.rows(*arguments)  # type: ignore[attr-defined]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "told", "status", "field"),
    [
        ("messages", {}, 400, "body"),
        ("messages", {"body": "x", "number": 1}, 400, "producer"),
        ("messages", {"body": "x", "producer": "p", "number": 7}, 409, "number"),
        ("leases", {"count": 0}, 400, "count"),
        ("leases", {"wait": -1}, 400, "wait"),
        ("settle", {"receipts": ["made up"]}, 400, "receipt"),
        ("settle", {"receipts": []}, 400, "receipts"),
    ],
)
def test_what_is_refused_is_refused_as_by_a_task(
    tmp_path: Path, path: str, told: dict[str, object], status: int, field: str
) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            first = await server.ask("POST", f"{ORDERS}/{path}", told)
            await lease(server)
            again = await server.ask("POST", f"{ORDERS}/{path}", told)
            assert (again.status, again.json) == (first.status, first.json)
            assert (again.status, again.json["field"]) == (status, field)

    asyncio.run(main())


def test_a_front_end_that_loses_its_engine_asks_the_next_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with known(tmp_path, is_front=True) as server:
            # If the call that was lost gets the message, it is the next one's after a second.
            poll = asyncio.create_task(lease(server, wait=60, seconds=1))
            await until(lambda: server.app.stopping.waiting == 1)
            transport = engine_of(server.app._desk.millrace)._transport  # type: ignore[attr-defined]
            connection = transport._connection
            connection._transport.abort()
            await until(lambda: transport._connection not in (None, connection))
            queue = await server.millrace.find("orders")
            await queue.publish(b"x")
            assert [one["body"] for one in (await poll).items("messages")] == ["x"]

    asyncio.run(main())


def test_a_mistake_at_the_beginning_is_told_and_not_begun_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = EmbeddedEngine.submit

    def fail(*args: object, **named: object) -> object:
        submit(*args, **named)  # type: ignore[arg-type]
        raise ZeroDivisionError("secret")

    async def main() -> None:
        async with known(tmp_path) as server:
            queue = await server.millrace.find("orders")
            with monkeypatch.context() as patched:
                patched.setattr(EmbeddedEngine, "submit", fail)
                answer = await server.ask("POST", f"{ORDERS}/messages", {"body": "x"})
            assert answer.status == 500
            assert b"secret" not in answer.body
            assert "ZeroDivisionError" in caplog.text
            route = "/v1/spaces/{space}/queues/{queue}/messages"
            assert ("POST", route, 500, 1) in server.app.counted().requests
            await until_told(partial(has_published, queue, 1))

    asyncio.run(main())


async def has_published(queue: Queue, count: int) -> bool:
    return (await queue.stats())["published"] == count


def test_a_receipt_is_known_again_once_and_proves_itself_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECEIPTS_WRITTEN_MAX", 2)

    async def main() -> None:
        async with served(tmp_path) as server:
            for _ in range(5):
                await server.ask("POST", f"{ORDERS}/messages", {"body": "tea"})
            given = [(await lease(server)).items("messages")[0] for _ in range(5)]
            for message in given * 2:
                # The first ones are forgotten, and the second time all of them are.
                told = {"receipts": [message["receipt"]]}
                ended = await server.ask("POST", f"{ORDERS}/settle", told)
                assert (ended.status, ended.json) == (200, {"done": 1, "refused": []})
            receipt = str(given[-1]["receipt"])
            other = receipt[:-1] + ("A" if receipt[-1] != "A" else "B")
            ended = await server.ask("POST", f"{ORDERS}/settle", {"receipts": [other]})
            assert (ended.status, ended.json["code"]) == (400, "forged")

    asyncio.run(main())
