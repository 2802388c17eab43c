"""What was seen of queues and topics lately, and when it is looked at anew."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace import limits
from millrace.errors import NotFound
from millrace.server.aws.queue_info import AS_AWS, VISIBILITY, QueueDirectory, QueueInfo
from millrace.server.aws.refreshing_cache import RefreshingCache
from millrace.server.sns.topic_cache import TopicCache
from millrace.server.web.queue_cache import QueueCache
from tests.client.harness import opened, run

AT = ("default", "orders")
AGAIN, OVER = limits.AWS_KNOWN_AGAIN_SECONDS, limits.AWS_KNOWN_SECONDS


class Clock:
    """Seconds, moved by the test."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Numbers(RefreshingCache[int]):
    """Numbers that change; a look takes as long as the test wants."""

    kind = "number"

    def __init__(self, now: Clock) -> None:
        super().__init__(now)
        self.number: int | None = 1
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def read(self, space: str, name: str) -> int:
        found = self.number
        await self.may_end.wait()
        if found is None:
            raise NotFound("there is no number", field="number")
        return found


def test_one_caller_looks_anew_while_the_others_go_on() -> None:
    async def main() -> None:
        clock = Clock()
        numbers = Numbers(clock)
        assert numbers.known(*AT) is None
        assert await numbers.look(*AT) == 1
        numbers.number = 2
        clock.seconds += AGAIN
        assert numbers.known(*AT) == 1
        clock.seconds += 1
        assert numbers.known(*AT) is None, "somebody has to look"
        numbers.may_end.clear()
        looking = asyncio.create_task(numbers.look(*AT))
        await asyncio.sleep(0)
        assert numbers.known(*AT) == 1, "somebody does"
        clock.seconds += OVER - AGAIN
        assert numbers.known(*AT) is None, "that takes too long"
        clock.seconds -= OVER - AGAIN
        numbers.may_end.set()
        assert await looking == 2
        assert numbers.known(*AT) == 2

    asyncio.run(main())


def test_what_is_changed_during_a_look_is_not_taken_for_new() -> None:
    async def main() -> None:
        numbers = Numbers(Clock())
        numbers.may_end.clear()
        looking = asyncio.create_task(numbers.look(*AT))
        await asyncio.sleep(0)
        numbers.number = 2
        numbers.forget(*AT)
        numbers.may_end.set()
        assert await looking == 1
        assert numbers.known(*AT) is None
        assert await numbers.look(*AT) == 2

    asyncio.run(main())


def test_it_was_seen_when_the_look_began() -> None:
    async def main() -> None:
        clock = Clock()
        numbers = Numbers(clock)
        numbers.may_end.clear()
        looking = asyncio.create_task(numbers.look(*AT))
        await asyncio.sleep(0)
        clock.seconds += AGAIN + 1
        numbers.may_end.set()
        await looking
        assert numbers.known(*AT) is None

    asyncio.run(main())


def test_what_is_gone_is_known_no_more() -> None:
    async def main() -> None:
        numbers = Numbers(Clock())
        await numbers.look(*AT)
        numbers.number = None
        with pytest.raises(NotFound):
            await numbers.look(*AT)
        assert numbers.known(*AT) is None

    asyncio.run(main())


def test_what_is_used_in_vain_is_looked_at_once_more() -> None:
    async def main() -> None:
        numbers = Numbers(Clock())
        await numbers.look(*AT)
        numbers.number = 2

        async def use(number: int) -> int:
            if number == 1:
                raise NotFound("it was made anew", field="number")
            return number

        assert await numbers.use(*AT, use) == 2
        assert numbers.known(*AT) == 2

    asyncio.run(main())


async def seconds_of(known: QueueInfo) -> int:
    """For how long messages are held that are received."""
    return known.visibility_seconds


def test_another_process_sees_a_change_within_a_minute_and_the_same_at_once(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            clock, desks = Clock(), (QueueCache(m), QueueCache(m))
            here, there = (QueueDirectory(desk, AS_AWS, clock) for desk in desks)
            queue = await m.queue("orders")
            for directory in (here, there):
                assert (await directory.look(*AT)).visibility_seconds == 30
            await queue.configure(notes={f"aws.{VISIBILITY}": "7"})
            desks[0].changed(*AT)

            assert await here.use(*AT, seconds_of) == 7
            assert await there.use(*AT, seconds_of) == 30
            clock.seconds += OVER + 0.1
            assert await there.use(*AT, seconds_of) == 7

    run(main())


def test_a_topic_that_was_changed_is_looked_at_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            desk = QueueCache(m)
            exchange = TopicCache(desk, tmp_path)
            await m.topic("orders")
            await exchange.look(*AT)
            assert exchange.known(*AT) is not None
            desk.changed("default", "others")
            assert exchange.known(*AT) is not None
            desk.changed(*AT)
            assert exchange.known(*AT) is None

    run(main())
