"""Contract of loglets: run it over your own implementation of `millrace.backend.loglets`.

Each check takes a function that returns the loglets as one node sees them; all nodes share one
store, which is new and may be out of reach now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace.backend.loglets import Loglets, LogletSealed, LogletTrimmed
from millrace.errors import Corrupt

Node = Callable[[], Loglets]

ID, OTHER = b"l" * 16, b"m" * 16


def record(number: int) -> bytes:
    return b"record %d " % number * 20


async def filled(node: Node, count: int, loglet: bytes = ID) -> Loglets:
    """Return the loglets of a writer that has appended so many records."""
    writer = node()
    await asyncio.gather(*(writer.append(loglet, n, record(n)) for n in range(1, count + 1)))
    return writer


async def check_append_and_read(node: Node) -> None:
    """What was appended is read by every node, in order."""
    writer = await filled(node, 40)
    await filled(node, 3, OTHER)
    assert await node().read(ID, 1, 40) == [record(n) for n in range(1, 41)]
    assert await writer.read(ID, 7, 9) == [record(7), record(8), record(9)]
    assert await node().read(OTHER, 1, 3) == [record(1), record(2), record(3)]
    assert await node().read(ID, 5, 4) == []


async def check_repeated_append(node: Node) -> None:
    """Repeating a call means the same, also after a restart of the writer's adapter."""
    writer = await filled(node, 3)
    await writer.append(ID, 2, record(2))
    again = node()
    await asyncio.gather(*(again.append(ID, n, record(n)) for n in (3, 1, 2)))
    assert await again.read(ID, 1, 3) == [record(1), record(2), record(3)]


async def check_order(node: Node) -> None:
    """X3: a record is durable only when all before it are."""
    writer = node()
    late = asyncio.create_task(writer.append(ID, 2, record(2)))
    for _ in range(200):
        await asyncio.sleep(0)
    assert not late.done()
    await writer.append(ID, 1, record(1))
    await late


async def check_second_writer(node: Node) -> None:
    """A second writer of a loglet is noticed."""
    await filled(node, 2)
    with pytest.raises(Corrupt):
        await node().append(ID, 2, b"another record")


async def check_seal(node: Node) -> None:
    """A sealed loglet takes no more records, and has one end for all."""
    writer = await filled(node, 5)
    assert await node().seal(ID) == 5
    for number in (6, 7):
        with pytest.raises(LogletSealed):
            await writer.append(ID, number, record(number))
    assert await asyncio.gather(*(node().seal(ID) for _ in range(4))) == [5] * 4
    assert await node().read(ID, 1, 5) == [record(n) for n in range(1, 6)]
    # What was appended before the seal is answered as before.
    await writer.append(ID, 5, record(5))
    assert await node().seal(OTHER) == 0
    with pytest.raises(LogletSealed):
        await node().append(OTHER, 1, record(1))


async def check_seal_behind_a_gap(node: Node) -> None:
    """A record behind a gap is not part of the loglet, and its append never returns OK."""
    writer = await filled(node, 2)
    behind = asyncio.create_task(writer.append(ID, 4, record(4)))
    for _ in range(200):
        await asyncio.sleep(0)
    assert await node().seal(ID) == 2
    with pytest.raises(LogletSealed):
        await writer.append(ID, 3, record(3))
    with pytest.raises(LogletSealed):
        await behind


async def check_seal_while_appending(node: Node) -> None:
    """Sealers at once, beside a writer with records in flight: one end, nothing lost behind it."""
    writer = node()
    acknowledged: list[int] = []
    begun = asyncio.Event()

    async def append(number: int) -> None:
        try:
            await writer.append(ID, number, record(number))
        except LogletSealed:
            return
        acknowledged.append(number)
        begun.set()

    async def write() -> None:
        for first in range(1, 200, 8):
            await asyncio.gather(*(append(n) for n in range(first, first + 8)))
            if len(acknowledged) < first + 7:
                return

    async def seal() -> int:
        await begun.wait()
        return await node().seal(ID)

    _, *ends = await asyncio.gather(write(), seal(), seal(), seal())
    assert len(set(ends)) == 1
    assert sorted(acknowledged) == list(range(1, len(acknowledged) + 1))
    assert ends[0] >= len(acknowledged)
    assert await node().read(ID, 1, ends[0]) == [record(n) for n in range(1, ends[0] + 1)]


async def check_trim(node: Node) -> None:
    """Trimmed records are refused, never skipped; the end is found all the same."""
    writer = await filled(node, 10)
    await node().trim(ID, 6)
    await node().trim(ID, 4)
    for first in (1, 6):
        try:
            found = await node().read(ID, first, 8)
        except LogletTrimmed:
            continue
        # A request that was given up may write a record once more; then it is right.
        assert found == [record(n) for n in range(first, 9)]
    assert await node().read(ID, 7, 10) == [record(n) for n in range(7, 11)]
    await writer.append(ID, 11, record(11))
    assert await node().seal(ID) == 11
    await node().trim(ID, 11)
    assert await node().seal(ID) == 11
    # X6: the seal has outlived the records, so that a zombie finds no empty place.
    with pytest.raises(LogletSealed):
        await node().append(ID, 12, record(12))


CHECKS = (
    check_append_and_read,
    check_repeated_append,
    check_order,
    check_second_writer,
    check_seal,
    check_seal_behind_a_gap,
    check_seal_while_appending,
    check_trim,
)


async def check_loglets(make: Callable[[], Awaitable[Node]]) -> None:
    """Run all checks, each with a new store."""
    for check in CHECKS:
        await check(await make())
