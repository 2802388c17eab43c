"""Progress reports of restore and verification."""

from __future__ import annotations

from pathlib import Path

import pytest

import millrace
from millrace.settings import Settings
from tests.client.harness import opened, run

SEGMENT = 256 * 1024
SETTINGS = Settings(segment_bytes=SEGMENT, log_segments_free=1, log_segments_unsealed=0)


@pytest.mark.parametrize("follow", [False, True])
def test_progress_goes_up_to_what_there_is(tmp_path: Path, *, follow: bool) -> None:
    data, vault = tmp_path / "data", tmp_path / "vault"

    async def main() -> None:
        async with opened(data, settings=SETTINGS) as m:
            queue = await m.queue("orders")
            for _ in range(20):
                await queue.publish_many([bytes(2_000)] * 50)
            await m.backup(vault, follow=follow)
            if follow:
                await queue.publish_many([bytes(2_000)] * 50)
        told: list[tuple[int, int]] = []
        await millrace.restore(
            vault, tmp_path / "again", progress=lambda done, total: told.append((done, total))
        )
        check(told)
        told.clear()
        await millrace.verify(
            vault, against=data, progress=lambda done, total: told.append((done, total))
        )
        check(told)

    run(main())


def check(told: list[tuple[int, int]]) -> None:
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    [total] = {total for _, total in told}
    assert told[0][0] < total // 2
    assert total * 0.95 <= told[-1][0] <= total
