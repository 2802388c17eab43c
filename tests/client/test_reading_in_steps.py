"""Reading many messages in steps: the same result as in one step, and other tasks run between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

import millrace
from millrace import Message, limits
from millrace.client.reading import read_in_steps
from millrace.core.model import Row
from tests.support.stall import ATTEMPTS, STEP_CPU_SECONDS_MAX, StallMonitor

STEP = limits.ROWS_READ_STEP
HEADERS = {f"header-{at}": f"value-{at}" for at in range(limits.HEADERS_MAX)}


def _read(sizes: dict[int, int], seqs: BitMap64, size: int) -> list[Row]:
    """Read like a store: skip messages that have ended, stop at the first that does not fit."""
    rows: list[Row] = []
    for seq in seqs:
        if seq in sizes:
            size -= sizes[seq]
            if size < 0 and rows:
                break
            rows.append(Row(seq, 0, bytes(sizes[seq]), None, ()))
    return rows


@given(
    sizes=st.dictionaries(st.integers(1, 4 * STEP), st.sampled_from([0, 1, 10, 100]), max_size=40),
    size=st.integers(0, 400),
    is_full=st.booleans(),
)
def test_steps_read_what_one_step_reads(*, sizes: dict[int, int], size: int, is_full: bool) -> None:
    if is_full:
        sizes = {seq: sizes.get(seq, 0) for seq in range(1, 4 * STEP + 1)}
    seqs = BitMap64(range(1, 4 * STEP + 1))
    asked: list[int] = []

    async def read(part: BitMap64, room: int) -> list[Row]:
        asked.append(len(part))
        return _read(sizes, part, room)

    found = asyncio.run(read_in_steps(read, seqs, size))
    assert found == _read(sizes, seqs, size)
    assert max(asked) <= STEP


@pytest.mark.slow
def test_sec_08_a_lease_of_many_headers_stops_nobody(tmp_path: Path) -> None:
    count = limits.LEASE_MESSAGES_MAX

    async def main() -> None:
        async with millrace.open(tmp_path) as m:
            queue = await m.queue("q")
            rows = [
                Message(b"", headers={**HEADERS, "header-0": str(at)}) for at in range(count // 10)
            ]
            for _ in range(10):
                await queue.publish_many(rows)
            steps: list[float] = []
            while len(steps) < ATTEMPTS and (not steps or steps[-1] > STEP_CPU_SECONDS_MAX):
                async with StallMonitor() as monitor:
                    leases = await queue.lease(count)
                steps.append(monitor.longest_cpu_seconds)
                assert [one.seq for one in leases] == list(range(1, count + 1))
                assert dict(leases[-1].headers)["header-0"] == str(count // 10 - 1).encode()
                await queue.release(leases)
            assert min(steps) < STEP_CPU_SECONDS_MAX, steps

    asyncio.run(main())


def test_what_has_no_room_in_a_large_lease_is_left_for_the_next(tmp_path: Path) -> None:
    """After the first step; otherwise it would not be delivered before the lease expires."""

    async def main() -> None:
        async with millrace.open(tmp_path) as m:
            queue = await m.queue("q", keyed=True)
            await queue.publish_many([Message(b"", key=str(at)) for at in range(STEP + 10)])
            for at in range(5):
                await queue.publish(b"x" * limits.BODY_BYTES_MAX, key=f"large-{at}")
            await queue.publish_many([Message(b"", key=f"last-{at}") for at in range(10)])
            # These are superseded, and come again behind all others.
            await queue.publish_many([Message(b"y", key=str(STEP - 1 + at)) for at in range(3)])
            first = await queue.lease(limits.LEASE_MESSAGES_MAX)
            # Their keys leave no room for a fourth.
            assert sum(len(one.body) for one in first) == 3 * limits.BODY_BYTES_MAX
            second = await queue.lease(limits.LEASE_MESSAGES_MAX)
            assert second[0].key == b"large-3"
            keys = [one.key for one in (*first, *second)]
            assert len(keys) == len(set(keys)) == STEP + 10 + 5 + 10

    asyncio.run(main())
