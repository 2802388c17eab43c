"""Rows read by programs: how many of them fit into a size."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import limits
from millrace.client.message import Message, make_block, rows_that_fit
from tests.client.harness import opened, run


def test_rows_are_counted_with_their_headers() -> None:
    rows = [Message(b"x" * 100, headers={"h": b"y" * 900}) for _ in range(10)]
    batch = make_block(rows).arrow(1, 1, 0)
    assert rows_that_fit(batch, batch.nbytes) == 10
    assert rows_that_fit(batch, batch.nbytes - 1) == 9
    assert 3 <= rows_that_fit(batch.slice(2), 4000) < 4
    assert rows_that_fit(batch, 999) == 0


@pytest.mark.parametrize("sizes", [[900] * 6, [2500, 10, 10], [10] * 50, [10, 10, 2500, 10]])
def test_a_peek_ends_where_it_has_read_enough(
    sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PEEK_BYTES_MAX", 2000)

    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders")
            for size in sizes[:2]:
                await queue.publish(b"x" * size)
            await queue.publish_many([b"x" * size for size in sizes[2:]])
            read: list[int] = []
            while rows := await queue.peek(40, after=len(read)):
                bodies = [len(row.body or b"") for row in rows]
                assert len(bodies) == 1 or sum(bodies) <= 2000
                assert [row.seq for row in rows] == [len(read) + at + 1 for at in range(len(rows))]
                read += bodies
            assert read == sizes

    run(main())


@pytest.mark.parametrize("sizes", [[900] * 6, [2500, 0, 10], [10] * 50, [10, 10, 2500, 10]])
def test_a_lease_call_ends_where_it_has_enough(
    sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEASE_BYTES_MAX", 2000)

    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders")
            for size in sizes[:2]:
                await queue.publish(b"x" * size)
            await queue.publish_many([b"x" * size for size in sizes[2:]])
            leased: list[int] = []
            while leases := await queue.lease(60, seconds=3600):
                bodies = [len(lease.body) for lease in leases]
                assert len(bodies) == 1 or sum(bodies) <= 2000
                assert [lease.seq for lease in leases] == [
                    len(leased) + at + 1 for at in range(len(leases))
                ]
                assert all(lease.failures == 0 for lease in leases)
                leased += bodies
                assert await queue.settle(leases) == {}
            assert leased == sizes
            assert (await queue.stats())["settled"] == len(sizes)

    run(main())
