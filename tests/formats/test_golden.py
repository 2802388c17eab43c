"""What an earlier version wrote is opened by this one, and gives the same rows, cells and counters.

A test that fails here says that a format has changed: then it needs another number, a page in
docs/adr, and a way to read the old one. The golden folders are not written anew.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millrace
from millrace import errors
from millrace.core.spec import QueueSpec
from tests.crash.small_folder import SETTINGS, find_fault, read_everything, shown
from tests.formats.make_golden import PACKED_BYTES_MAX, open_at, served, unpack

GOLDEN = sorted(Path(__file__).parent.glob("folder-*.tar.xz"))


@pytest.fixture(params=GOLDEN, ids=lambda path: path.name.partition(".")[0])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """A folder as it was written, and what must be read from it."""
    packed: Path = request.param
    folder = tmp_path / "data"
    unpack(packed.read_bytes(), folder)
    name = packed.name.removesuffix(".tar.xz")
    expected = json.loads((packed.parent / f"{name}.json").read_text(encoding="utf-8"))
    return folder, expected


def test_there_is_one_and_it_is_small() -> None:
    assert GOLDEN
    assert all(path.stat().st_size < PACKED_BYTES_MAX for path in GOLDEN)


def test_the_store_reads_the_same(golden: tuple[Path, Any]) -> None:
    folder, expected = golden
    stored = expected["stored"]
    for name in stored:
        if name.endswith(" meta"):
            # Nobody weighed rows then.
            stored[name].setdefault("weight", 0)
    assert _plain(read_everything(folder)) == stored


def test_the_index_is_in_order(golden: tuple[Path, Any]) -> None:
    assert find_fault(golden[0]) == []


def test_the_engine_serves_the_same(golden: tuple[Path, Any]) -> None:
    folder, expected = golden

    async def serve() -> dict[str, object]:
        async with open_at(folder, expected["now_ms"], fork=True) as opened:
            return await served(opened)

    first = asyncio.run(serve())
    found = _plain(first)
    for name, queue_was in expected["served"].items():
        # Settings that came later have their defaults.
        now, then = found[name]["spec"], queue_was["spec"]
        assert now == _plain(msgspec.structs.asdict(QueueSpec(**then)))
        found[name]["spec"] = then
    assert found == expected["served"]
    # The fork has a history of its own, and goes on from here.
    again = asyncio.run(serve())
    assert again == first


def test_it_can_be_worked_on(golden: tuple[Path, Any]) -> None:
    folder, expected = golden

    async def work() -> None:
        async with open_at(folder, expected["now_ms"], fork=True) as opened:
            for name, queue_was in expected["served"].items():
                queue = await opened.find(name)
                seq = await queue.publish(b"new", key="new")
                assert seq == queue_was["counters"]["published"] + 1
                leases = await queue.lease(1_000)
                assert await queue.settle(leases) == {}
                assert seq in [lease.seq for lease in leases]

    asyncio.run(work())


def test_a_copy_is_refused(golden: tuple[Path, Any]) -> None:
    folder, _ = golden

    async def copied() -> None:
        async with millrace.open(folder, settings=SETTINGS):
            pass

    with pytest.raises(errors.Copied):
        asyncio.run(copied())


def _plain(found: dict[str, object]) -> Any:
    """As it comes out of JSON."""
    return json.loads(json.dumps(shown(found)))
