"""Settings that could not work are refused, and the refusal names the field and the limit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import millrace
from millrace import limits
from millrace.errors import Invalid
from millrace.settings import Settings


@pytest.mark.parametrize(
    ("given", "field", "limit"),
    [
        ({"segment_bytes": limits.SEGMENT_BYTES_MIN + 1}, "segment_bytes", 4096),
        ({"segment_bytes": 128 * 1024}, "segment_bytes", limits.SEGMENT_BYTES_MIN),
        ({"segment_bytes": 1 << 31}, "segment_bytes", limits.SEGMENT_BYTES_MAX),
        ({"segment_bytes": 1e6}, "segment_bytes", None),
        ({"segment_bytes": "1048576"}, "segment_bytes", None),
        ({"log_segments_max": float("inf")}, "log_segments_max", None),
        ({"log_segments_free": None}, "log_segments_free", None),
        ({"log_segments_free": True}, "log_segments_free", None),
        ({"log_segments_unsealed": 1.5}, "log_segments_unsealed", None),
        ({"checkpoint_log_bytes": float("nan")}, "checkpoint_log_bytes", None),
        ({"checkpoint_seconds": float("inf")}, "checkpoint_seconds", None),
        ({"checkpoint_seconds": None}, "checkpoint_seconds", None),
        ({"switch_interval_seconds": "soon"}, "switch_interval_seconds", None),
        ({"fork": 1}, "fork", None),
        ({"log_segments_free": 0}, "log_segments_free", 1),
        ({"log_segments_unsealed": -1}, "log_segments_unsealed", 0),
        ({"log_segments_max": 8, "log_segments_unsealed": 5}, "log_segments_max", 9),
        ({"checkpoint_seconds": -1.0}, "checkpoint_seconds", 0),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds", None),
        ({"checkpoint_log_bytes": -1}, "checkpoint_log_bytes", 0),
        ({"switch_interval_seconds": 0.0}, "switch_interval_seconds", 0),
    ],
)
def test_settings_that_cannot_work_are_refused(
    given: dict[str, Any], field: str, limit: int | None
) -> None:
    with pytest.raises(Invalid) as caught:
        Settings(**given)
    assert (caught.value.field, caught.value.limit) == (field, limit)
    assert field in str(caught.value)


def test_the_least_that_works(tmp_path: Path) -> None:
    """A lease call hands out as many as fit into a record."""
    least = Settings(
        log_segments_max=4,
        log_segments_unsealed=0,
        log_segments_free=1,
        segment_bytes=limits.SEGMENT_BYTES_MIN,
    )

    async def main() -> None:
        async with millrace.open(tmp_path, settings=least) as m:
            queue = await m.queue("orders")
            for _ in range(10):
                await queue.publish_many([b"x"] * (limits.LEASE_MESSAGES_MAX // 10))
            done = 0
            while leases := await queue.lease(limits.LEASE_MESSAGES_MAX):
                assert await queue.settle(leases) == {}
                done += len(leases)
            assert done == limits.LEASE_MESSAGES_MAX

    asyncio.run(asyncio.wait_for(main(), 60))
