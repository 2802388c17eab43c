"""A forked folder is independent: operations of the original after the copy are unknown to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millrace.errors import Gone
from millrace.settings import Settings
from tests.client.harness import SMALL, opened, run

FORKED = Settings(segment_bytes=SMALL.segment_bytes, fork=True)


def test_receipts_of_the_original_are_of_another_history(tmp_path: Path) -> None:
    """H1, H2: both lease the second message after the copy, with the same seq and lease number."""

    async def main() -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        async with opened(first) as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"shared", b"both have it"])
            [before] = await queue.lease(1, seconds=3600)
            known = before.receipt
        shutil.copytree(first, second)
        async with opened(first) as m:
            queue = await m.queue("orders")
            [lease] = await queue.lease(1, seconds=3600)
            foreign = lease.receipt
            async with queue.snapshot() as snapshot:
                history = snapshot.id[0]
        async with opened(second, settings=FORKED) as m:
            queue = await m.queue("orders")
            [lease] = await queue.lease(1, seconds=3600)
            assert lease.body == b"both have it"
            with pytest.raises(Gone):
                await queue.settle(foreign)
            async with queue.snapshot() as snapshot:
                assert snapshot.id[0] != history
            await queue.settle(known)
            await lease.settle()

    run(main())
