"""Publishers with confirms: many messages in flight, each published once, in order, with
backpressure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from millrace import errors, limits
from millrace.client.embedded import EmbeddedEngine
from millrace.client.engine import Engine
from millrace.client.millrace import Millrace
from millrace.client.publisher import Publisher, Unconfirmed
from millrace.client.queue import Queue, engine_and_shards
from millrace.core.commands import Command, Publish
from millrace.core.model import NewMessage, ShardId
from tests.client.harness import Clock, embedded, opened, run, timed


async def bodies(queue: Queue) -> list[bytes | None]:
    return [row.body for row in await queue.peek(1000)]


class Weak:
    """An engine that refuses calls or is lost on demand, and otherwise works."""

    telemetry = None

    def __init__(self, queue: Queue, judge: Callable[[bytes], errors.MillraceError | None]) -> None:
        engine, self.shards = engine_and_shards(queue)
        assert isinstance(engine, EmbeddedEngine)
        self._engine = engine
        self._judge = judge
        self.producer_number = engine.producer_number
        self.numbers: list[int] = []

    async def ask(self, shard: ShardId, command: Command, kind: type[object]) -> object:
        assert isinstance(command, Publish)
        assert command.numbered is not None
        self.numbers.append(command.numbered.number)
        message = command.rows[0]  # type: ignore[index]
        error = self._judge(message.body or b"")
        if error is not None and not isinstance(error, errors.Fatal):
            raise error
        answer = await self._engine.ask(shard, command, kind)
        if error is not None:
            # It was done, and nobody hears of it.
            raise error
        return answer

    def publisher(self, window: int = 32) -> Publisher:
        return Publisher(cast("Engine", self), self.shards, "web", window)


@embedded
async def test_r9_sending_returns_before_it_is_confirmed(m: Millrace) -> None:
    queue = await m.queue("orders")
    async with queue.publisher("web") as publisher:
        sent = [await publisher.send(b"%d" % at) for at in range(10)]
        assert not any(one.is_done for one in sent)
        await publisher.flush()
        assert all(one.is_done for one in sent)
        assert [await one for one in sent] == list(range(1, 11))
    assert await bodies(queue) == [b"%d" % at for at in range(10)]
    assert await queue.producer("web") == 10


@embedded
async def test_r9_a_full_window_pushes_back(m: Millrace) -> None:
    queue = await m.queue("orders")
    publisher = queue.publisher("web", window=3)
    sent = [await publisher.send(b"%d" % at) for at in range(3)]
    more = asyncio.ensure_future(publisher.send(b"3"))
    await asyncio.sleep(0)
    assert not more.done()
    assert not sent[0].is_done
    assert await sent[0].wait() == 1
    assert await (await more).wait() == 4
    await publisher.flush()
    assert await bodies(queue) == [b"0", b"1", b"2", b"3"]


@embedded
async def test_r9_what_found_no_room_is_sent_again_in_order(m: Millrace) -> None:
    queue = await m.queue("orders")
    refused: list[bytes] = []

    def judge(body: bytes) -> errors.MillraceError | None:
        if body == b"2" and len(refused) < 3:
            refused.append(body)
            return errors.Full("no room now", field="inbox")
        return None

    publisher = Weak(queue, judge).publisher()
    for at in range(6):
        await publisher.send(b"%d" % at)
    await publisher.flush()
    assert len(refused) == 3
    assert await bodies(queue) == [b"%d" % at for at in range(6)]


@embedded
async def test_r9_one_that_is_refused_keeps_no_other(m: Millrace) -> None:
    queue = await m.queue("orders")
    weak = Weak(queue, lambda body: errors.Invalid("not so") if body in (b"1", b"4") else None)
    publisher = weak.publisher()
    sent = [await publisher.send(b"%d" % at) for at in range(6)]
    with pytest.raises(errors.Invalid, match="not so"):
        await sent[1].wait()
    with pytest.raises(errors.Invalid):
        await sent[4]
    # They were heard of.
    await publisher.flush()
    assert await bodies(queue) == [b"0", b"2", b"3", b"5"]
    assert await queue.producer("web") == 4
    await publisher.send(b"1")
    with pytest.raises(errors.Invalid):
        await publisher.flush()
    await publisher.flush()


@embedded
async def test_r9_what_the_queue_refuses_is_told(m: Millrace) -> None:
    queue = await m.queue("orders")
    publisher = queue.publisher("web")
    deletes = await publisher.send(None, key=b"k")
    fine = await publisher.send(b"fine")
    with pytest.raises(errors.Invalid):
        await deletes.wait()
    assert await fine.wait() == 1


def test_r9_what_is_unknown_is_sent_again_to_the_next_engine(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("orders")
            lost = errors.Fatal("the engine has ended")
            publisher = Weak(queue, lambda body: lost if body >= b"2" else None).publisher(4)
            sent = [await publisher.send(b"%d" % at) for at in range(4)]
            with pytest.raises(errors.Fatal):
                await publisher.flush()
            with pytest.raises(errors.Fatal):
                await publisher.send(b"later")
            with pytest.raises(errors.Fatal):
                await sent[3]
            left = publisher.unconfirmed()
            assert [one.message.body for one in left][-2:] == [b"2", b"3"]
        async with opened(tmp_path / "data") as m:
            queue = await m.find("orders")
            async with queue.publisher("web", unconfirmed=left) as publisher:
                assert await (await publisher.send(b"4")).wait() == 5
                with pytest.raises(errors.Invalid):
                    publisher.unconfirmed()
            assert await bodies(queue) == [b"%d" % at for at in range(5)]

    run(main())


@timed
async def test_r9_a_message_says_all_that_publish_lets_it_say(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("orders", order="group", dedup_by_body=True)
    async with queue.publisher("web") as publisher:
        await publisher.send(b"a1", group="a")
        await publisher.send(b"a2", group="a")
        await publisher.send(b"b1", group="b", ttl=5)
        await publisher.send(b"a1", group="c")
        await publisher.send(b"other", group="c", dedup="id")
        await publisher.send(b"yet another", group="c", dedup="id")
    assert await bodies(queue) == [b"a1", b"a2", b"b1", b"other"]
    clock.forward(seconds=5)
    assert [lease.body for lease in await queue.lease(3)] == [b"a1", b"a2", b"other"]
    assert (await queue.stats())["expired"] == 1


def test_r9_what_is_sent_again_says_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("orders", order="group")
            publisher = queue.publisher("web")
            await publisher.send(b"first")
            await publisher.flush()
        with pytest.raises(errors.Closed):
            await (await publisher.send(b"a", group="g", ttl=3600, dedup="id")).wait()
        left = publisher.unconfirmed()
        async with opened(tmp_path / "data") as m:
            queue = await m.find("orders")
            async with queue.publisher("web", unconfirmed=left):
                pass
            assert await queue.publish(b"a", group="g", dedup="id") == 2
            [_, again] = await queue.peek()
            assert (again.body, again.group) == (b"a", b"g")
            assert len(publisher.unconfirmed()[0].lives) == 1

    run(main())


def test_r9_what_was_never_accepted_is_sent_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("orders")
            publisher = queue.publisher("web")
            await (await publisher.send(b"0")).wait()
        with pytest.raises(errors.Closed):
            await (await publisher.send(b"1")).wait()
        with pytest.raises(errors.Closed):
            await publisher.flush()
        left = publisher.unconfirmed()
        assert [one.message.body for one in left] == [b"1"]
        async with opened(tmp_path / "data") as m:
            queue = await m.find("orders")
            async with queue.publisher("web", unconfirmed=left):
                pass
            assert await bodies(queue) == [b"0", b"1"]

    run(main())


@embedded
async def test_r9_the_deleted_queue_is_told_to_everyone(m: Millrace) -> None:
    queue = await m.queue("orders")
    publisher = queue.publisher("web", window=2)
    await (await publisher.send(b"a")).wait()
    await m.delete_queue("orders")
    sent = [await publisher.send(b"b"), await publisher.send(b"c")]
    for one in sent:
        with pytest.raises(errors.NotFound):
            await one.wait()


@embedded
async def test_odd_arguments_are_refused(m: Millrace) -> None:
    queue = await m.queue("orders")
    with pytest.raises(errors.Invalid):
        queue.publisher("no name!")
    with pytest.raises(errors.TooLarge):
        queue.publisher("web", window=limits.CALLS_AT_ONCE_MAX + 1)
    publisher = queue.publisher("web")
    with pytest.raises(errors.Invalid):
        await publisher.send("text")  # type: ignore[arg-type]
    await publisher.flush()
    assert await bodies(queue) == []


def test_r9_what_was_left_goes_before_what_is_sent_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        left = [Unconfirmed(at + 1, NewMessage(b"%d" % at)) for at in range(6)]
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("orders")
            publisher = queue.publisher("web", window=2, unconfirmed=left)
            await asyncio.gather(*(publisher.send(b"%d" % at) for at in (6, 7, 8)))
            await publisher.flush()
            assert await bodies(queue) == [b"%d" % at for at in range(9)]

    run(main())


@embedded
async def test_what_no_publisher_has_left_is_refused(m: Millrace) -> None:
    queue = await m.queue("jobs")
    for wrong in (None, True, 7, "text", b"bytes", [b"body"]):
        with pytest.raises(errors.Invalid) as caught:
            queue.publisher("p", unconfirmed=wrong)  # type: ignore[arg-type]
        assert caught.value.field == "unconfirmed"
