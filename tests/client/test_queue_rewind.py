"""Rewinding: workers process a log again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from millrace import errors
from millrace.client.millrace import Millrace
from tests.client.harness import Clock, embedded, timed


@timed
async def test_a_log_is_worked_again_from_a_seq_or_a_time(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("events", retention="log")
    await queue.publish_many([b"1", b"2"])
    clock.forward(seconds=10)
    noon = datetime.fromtimestamp(clock() / 1000, UTC)
    await queue.publish(b"3")
    leases = await queue.lease(3)
    await queue.settle(leases[:2])
    assert await queue.lease(3) == []

    assert await queue.rewind(2) == 2
    assert [lease.body for lease in await queue.lease(9)] == [b"2", b"3"]
    with pytest.raises(errors.Gone):
        await leases[2].settle()
    assert await queue.rewind(noon) == 3
    assert [lease.body for lease in await queue.lease(9)] == [b"3"]
    assert await queue.rewind("beginning") == 1
    assert [lease.deliveries for lease in await queue.lease(9)] == [1, 1, 1]
    assert await queue.rewind("end") == 4
    assert await queue.lease(9) == []


@embedded
async def test_what_cannot_be_rewound(m: Millrace) -> None:
    work = await m.queue("work")
    with pytest.raises(errors.Invalid) as refused:
        await work.rewind("beginning")
    assert refused.value.field == "retention"
    log = await m.queue("log", retention="log")
    with pytest.raises(errors.Invalid) as nowhere:
        await log.rewind(2)
    assert (nowhere.value.field, nowhere.value.limit) == ("start", 1)
