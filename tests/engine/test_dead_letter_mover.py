"""The dead letter mover: no message prevents others from being moved."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

import millrace
from millrace import Message, Queue, Settings, errors, limits
from tests.client.harness import eventually, run

SMALL = Settings(segment_bytes=limits.SEGMENT_BYTES_MIN)
LARGE = Settings(segment_bytes=2 * 1024 * 1024)


async def arrive(queue: Queue, count: int) -> None:
    async def have_arrived() -> bool:
        return (await queue.stats())["published"] == count

    await eventually(have_arrived)


def test_more_than_a_record_holds_is_moved_in_parts(tmp_path: Path) -> None:
    async def main() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m:
            dead = await m.queue("dead")
            queue = await m.queue("orders", dead_letter="dead")
            for _ in range(20):
                await queue.publish(bytes(20_000))
                await queue.publish_many([Message(b"x", headers={"h": bytes(5_000)})] * 5)
            await queue.discard(await queue.lease(1_000))
            await arrive(dead, 120)
            assert (await queue.stats())["live"] == 0
            # The way back is as narrow.
            assert (await dead.redrive().run()).moved == 120
            assert (await queue.stats())["live"] == 120

    run(main())


def test_one_that_no_record_holds_any_more_stays_alone(tmp_path: Path) -> None:
    async def lose() -> None:
        async with millrace.open(tmp_path, settings=LARGE) as m:
            await m.queue("dead")
            queue = await m.queue("orders", dead_letter="dead")
            await queue.publish_many([b"small", bytes(500_000), b"last"])
            await m.delete_queue("dead")
            await queue.discard(await queue.lease(3))

    async def find(settings: Settings, count: int) -> None:
        async with millrace.open(tmp_path, settings=settings) as m:
            dead = await m.queue("dead")
            await arrive(dead, count)
            assert (await (await m.find("orders")).stats())["live"] == 3 - count

    run(lose())
    run(find(SMALL, 2))
    run(find(LARGE, 3))


def test_the_largest_message_can_be_moved(tmp_path: Path) -> None:
    async def main() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m:
            dead = await m.queue("dead")
            queue = await m.queue("orders", dead_letter="dead")
            with pytest.raises(errors.TooLarge) as refused:
                await queue.publish(bytes(limits.SEGMENT_BYTES_MIN))
            most = refused.value.limit
            assert most is not None
            sizes = range(most - 100, most + 1)
            for size in reversed(sizes):
                with suppress(errors.TooLarge):
                    await queue.publish(bytes(size))
                    break
            await queue.discard(await queue.lease(1))
            await arrive(dead, 1)

    run(main())
