"""Contract of blobs: run it over your own implementation of `millrace.backend.blobs`.

Each check takes a function that returns the blobs as one node sees them; all nodes share one store,
which is new and may be out of reach now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from millrace import limits
from millrace.backend.blobs import Blobs
from millrace.backend.objects import BackendUnavailable
from millrace.errors import Exists, Invalid, NotFound

T = TypeVar("T")

Node = Callable[[], Blobs]

BLOCK = limits.BLOB_BLOCK_BYTES
SIZES = (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17)


async def insist(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until the backend answers."""
    while True:
        try:
            return await ask()
        except BackendUnavailable:
            await asyncio.sleep(0)


def data_of(size: int) -> bytes:
    return (b"%d:" % size + bytes(range(251)) * (size // 251 + 1))[:size]


async def check_put_and_get(node: Node) -> None:
    """A blob of any size comes back, whole and in parts."""
    for size in SIZES:
        data, name = data_of(size), f"image/{size}"
        await node().put(name, data)
        blobs = node()
        assert await insist(lambda: blobs.get(name)) == data  # noqa: B023
        for start, length in ((0, 1), (1, BLOCK), (BLOCK - 1, 2), (size // 2, 10), (size, 5)):
            part = await insist(lambda: blobs.get(name, start, length))  # noqa: B023
            assert part == data[start : start + length], (size, start, length)


async def check_written_once(node: Node) -> None:
    """A blob is immutable; to put the same again is no error."""
    await node().put("a", b"one")
    await node().put("a", b"one")
    with pytest.raises(Exists):
        await node().put("a", b"two")
    blobs = node()
    assert await insist(lambda: blobs.get("a")) == b"one"


async def check_missing(node: Node) -> None:
    """A missing blob is an error; deleting it is none."""
    blobs = node()
    for start, length in ((0, None), (0, 5)):
        with pytest.raises(NotFound):
            await insist(lambda: blobs.get("none", start, length))  # noqa: B023
    await insist(lambda: blobs.delete("none"))
    with pytest.raises(Invalid):
        await insist(lambda: blobs.get("../none"))


async def check_names(node: Node) -> None:
    """Blobs are listed by prefix, and gone when they are deleted."""
    blobs = node()
    for name in ("g1/a", "g1/b", "g2/a"):
        await blobs.put(name, b"x")
    assert await insist(lambda: node().names("g1/")) == ["g1/a", "g1/b"]
    await insist(lambda: blobs.delete("g1/a"))
    assert await insist(lambda: node().names("g")) == ["g1/b", "g2/a"]


CHECKS = (check_put_and_get, check_written_once, check_missing, check_names)


async def check_blobs(make: Callable[[], Awaitable[Node]]) -> None:
    """Run all checks, each with a new store."""
    for check in CHECKS:
        await check(await make())
