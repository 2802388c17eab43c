"""Registry values: their bytes, and what is refused."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from millrace.backend.object_registry import ObjectRegistry
from millrace.backend.objects import BackendUnavailable
from millrace.backend.registry import decode_value, encode_value
from millrace.errors import Corrupt, Refused
from tests.support.memory_objects import MemoryBackend, MemoryObjects

ATTEMPT = bytes(range(16))


def test_the_bytes_of_a_value_are_frozen() -> None:
    stored = encode_value(b"data", "node-a", ATTEMPT)
    assert stored.hex() == "9401a66e6f64652d61c410000102030405060708090a0b0c0d0e0fc40464617461"
    value, attempt = decode_value("k", stored, "v")
    assert (value.data, value.version, value.writer, attempt) == (b"data", "v", "node-a", ATTEMPT)


def test_a_value_of_a_later_version_is_refused() -> None:
    later = msgspec.msgpack.encode([2, "node", ATTEMPT, b"", "more"])
    with pytest.raises(Refused, match="update this node"):
        decode_value("k", later, "v")


@pytest.mark.parametrize("stored", [b"", b"x", b"\x90", msgspec.msgpack.encode({"a": 1})])
def test_a_value_that_is_none_is_refused(stored: bytes) -> None:
    with pytest.raises(Corrupt, match="'k'"):
        decode_value("k", stored, "v")


def test_a_write_waits_for_a_backend_that_is_down() -> None:
    """It ends when the backend is back, and counts once."""

    async def main() -> None:
        backend, pauses = MemoryBackend(), list[float]()

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            backend.is_down = len(pauses) < 8
            await asyncio.sleep(0)

        backend.is_down = True
        registry = ObjectRegistry(MemoryObjects(backend), "a", random.Random(1).randbytes, sleep)
        with pytest.raises(BackendUnavailable):
            await registry.read("k")
        value = await registry.write("k", b"1", None)
        assert await registry.read("k") == value
        # The pauses double, up to two seconds.
        assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]

    asyncio.run(main())
