"""Contract of object stores: run it over your own implementation of `millrace.backend.objects`.

Each check takes a function that returns a client of the store; all clients share one store, which
is new. A client may raise `BackendUnavailable` only if the store is really out of reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace.backend.objects import ObjectEntry, ObjectStore
from millrace.errors import Invalid

Client = Callable[[], ObjectStore]

RACERS = 16


async def check_create(client: Client) -> None:
    """An object is created once, whatever it contains."""
    one, two = client(), client()
    version = await one.create("a/b", b"first")
    assert version
    assert await two.create("a/b", b"second") is None
    assert await two.create("a/b", b"first") is None
    assert await two.read("a/b") == (b"first", version)
    assert await one.create("a/empty", b"")
    assert await two.create("a/empty", b"x") is None
    found = await two.read("a/empty")
    assert found is not None
    assert found[0] == b""
    assert await one.read("a/missing") is None
    # A name may begin with the name of another object.
    assert await one.create("a/b/c", b"below")
    assert await one.read("a/b") == (b"first", version)


async def check_replace(client: Client) -> None:
    """An object is replaced only in the version that is named."""
    one, two = client(), client()
    first = await one.create("k", b"1")
    assert first is not None
    second = await two.replace("k", b"2", first)
    assert second is not None
    assert second != first
    assert await one.replace("k", b"3", first) is None
    assert await one.read("k") == (b"2", second)
    assert await one.replace("missing", b"3", first) is None
    assert await one.read("missing") is None


async def check_races(client: Client) -> None:
    """Of many writers at once, one wins, and all read what it wrote."""
    clients = [client() for _ in range(RACERS)]
    created = await asyncio.gather(
        *(one.create("raced", b"%d" % at) for at, one in enumerate(clients))
    )
    [winner] = [at for at, version in enumerate(created) if version is not None]
    for one in clients:
        assert await one.read("raced") == (b"%d" % winner, created[winner])
    version = created[winner]
    assert version is not None
    replaced = await asyncio.gather(
        *(one.replace("raced", b"r%d" % at, version) for at, one in enumerate(clients))
    )
    [winner] = [at for at, version in enumerate(replaced) if version is not None]
    assert await client().read("raced") == (b"r%d" % winner, replaced[winner])


async def check_ranges(client: Client) -> None:
    """Parts of objects are read, up to their end."""
    one = client()
    data = bytes(range(256)) * 100
    await one.create("range", data)
    for start, length in ((0, 10), (1_000, 5_000), (25_599, 1), (25_000, 10_000), (30_000, 5)):
        assert await one.read_range("range", start, length) == data[start : start + length]
    assert await one.read_range("none", 0, 1) is None


async def check_entries(client: Client) -> None:
    """Objects are listed by prefix, sorted, with their sizes."""
    one = client()
    for name, size in (("l/2", 2), ("l/10", 0), ("l/1", 1), ("m", 5), ("l/1/deep", 3), ("la", 9)):
        await one.create(name, bytes(size))
    found = await client().entries("l/")
    assert found == [
        ObjectEntry("l/1", 1),
        ObjectEntry("l/1/deep", 3),
        ObjectEntry("l/10", 0),
        ObjectEntry("l/2", 2),
    ]
    assert await one.entries("l/1") == found[:3]
    assert await one.entries("none/") == []
    assert [entry.name for entry in await one.entries("l")] == [
        *(entry.name for entry in found),
        "la",
    ]


async def check_delete(client: Client) -> None:
    """A deleted object is gone; deleting it again is no error."""
    one, two = client(), client()
    await one.create("gone", b"x")
    await two.delete("gone")
    await two.delete("gone")
    assert await one.read("gone") is None
    assert await one.entries("gone") == []


async def check_names(client: Client) -> None:
    """Names that could leave the store are refused."""
    one = client()
    for name in ("", "/a", "a/", "a//b", "../a", "a/..", ".", "a\0b", "a b", "x" * 600):
        with pytest.raises(Invalid):
            await one.create(name, b"x")
        with pytest.raises(Invalid):
            await one.read(name)


CHECKS = (
    check_create,
    check_replace,
    check_races,
    check_ranges,
    check_entries,
    check_delete,
    check_names,
)


async def check_objects(make: Callable[[], Awaitable[Client]]) -> None:
    """Run all checks, each with a new store."""
    for check in CHECKS:
        await check(await make())
