"""A source folder with an archive, and its content at several points."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypedDict

from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.journal.local import LOCAL
from tests.client.harness import Clock, opened

POINTS = ("end", "index", "time")


class Wanted(TypedDict, total=False):
    """The target of a restore."""

    index: int
    time: datetime


class Content(NamedTuple):
    """The compared content of a queue."""

    rows: list[tuple[int, bytes | None, bytes | None]]
    """Seq, key and body of each row."""
    counts: dict[str, int]
    cursors: dict[str, int]


@dataclass(frozen=True, slots=True)
class Point:
    """Content of the source after an entry was committed."""

    index: int
    held: dict[str, Content]
    wanted: Wanted


async def held(m: Millrace) -> dict[str, Content]:
    """Read the content of all queues of a folder."""
    return {name: await _content(await m.find(name)) for name in await m.queues()}


async def _content(queue: Queue) -> Content:
    rows: list[tuple[int, bytes | None, bytes | None]] = []
    while found := await queue.peek(1000, after=rows[-1][0] if rows else 0):
        rows += [(row.seq, row.key, row.body) for row in found]
    return Content(rows, await queue.stats(), await queue.cursors())


async def points(folder: Path, vault: Path) -> dict[str, Point]:
    """Fill a folder, back it up to a repository with an archive, and go on.

    The chosen time and index are in the archive, and the log continues after them.
    """
    clock = Clock()
    clock.stop()
    async with opened(folder, clock=clock) as m:
        node = m._engine._node  # type: ignore[attr-defined]

        async def look() -> Point:
            index = node.store.applied(LOCAL)
            found = await held(m)
            assert node.store.applied(LOCAL) == index, "nothing goes on meanwhile"
            return Point(index, found, {})

        orders, bills = await m.queue("orders"), await m.queue("bills", keyed=True)
        cursor = await orders.cursor("report", retain=True)
        for turn in range(3):
            await orders.publish_many([b"%d %d" % (turn, n) + bytes(1000) for n in range(300)])
        await node.checkpointer.seal_all()
        await go_on(orders, bills, b"in the log")
        await m.backup(vault, follow=True)

        await go_on(orders, bills, b"archived")
        snapshot = await cursor.next()
        assert snapshot is not None
        await snapshot.commit()
        at = await look()
        clock.forward(seconds=2)
        time = Point(at.index, at.held, {"time": datetime.fromtimestamp(clock() / 1000 - 1, UTC)})

        await go_on(orders, bills, b"after the time")
        at = await look()
        index = Point(at.index, at.held, {"index": at.index})

        await go_on(orders, bills, b"after the index")
        end = await look()
    return {"end": end, "index": index, "time": time}


async def go_on(orders: Queue, bills: Queue, body: bytes) -> None:
    """Publish and settle some messages, and replace some keys."""
    await orders.publish_many([b"%d " % n + body for n in range(10)])
    await orders.settle(await orders.lease(7))
    for key in ("a", "b", "a"):
        await bills.publish(body, key=key)
