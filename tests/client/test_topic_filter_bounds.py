"""Filters on bodies never block the event loop, whatever is published, even after a restart."""

from __future__ import annotations

import importlib
import json
from contextlib import suppress
from pathlib import Path

import pytest

from millrace import limits
from millrace.client.millrace import Millrace
from millrace.errors import TooLarge
from tests.client.harness import LARGE, opened, run
from tests.support.stall import StallMonitor

with suppress(ImportError):
    # Arrow loads it when it first meets an array, where a server does without (`thrift.py`).
    importlib.import_module("pandas")

STARS = [{"wildcard": f"x*{number}*y"} for number in range(200)]
HOSTILE = b'{"a":["b"' + b',"b"' * 90_000 + b"]}"
"""As many values as a body may have, none of which a filter is sure of."""


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (b'{"a":["b"' + b',"b"' * 200_000 + b"]}", limits.FILTER_BODY_VALUES_MAX),
        (b"[" * 150_000, limits.FILTER_BODY_VALUES_MAX),
        (b'{"a":[' + b"{}," * 150_000 + b"{}]}", limits.FILTER_BODY_VALUES_MAX),
        (b"x" * (limits.FILTER_BODY_BYTES_MAX + 1), limits.FILTER_BODY_BYTES_MAX),
    ],
    ids=["values", "arrays", "objects", "bytes"],
)
def test_sec_03_a_body_that_filters_cannot_read_is_refused(
    tmp_path: Path, body: bytes, limit: int
) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=LARGE) as m:
            topic, free = await m.topic("news"), await m.topic("free")
            await m.queue("orders")
            await topic.subscribe("orders", name="plain", filter={"kind": "$body"})
            await free.subscribe("orders", filter={"kind": "x"})
            # Nobody looks into bodies yet.
            await topic.publish(body)
            await topic.subscribe(
                "orders", name="deep", filter={"$or": [{"$body": {"a": ["x"]}}] * 2}
            )
            for attempt in (topic.publish(body), topic.publish_many([b"fine", body])):
                with pytest.raises(TooLarge) as refused:
                    await attempt
                assert (refused.value.field, refused.value.limit) == ("body", limit)
            await free.publish(body)
            most = b'{"a":["' + b"x" * (limits.FILTER_BODY_BYTES_MAX - 10) + b'"]}'
            await topic.publish(most)
            assert (await topic.describe()).published == 2

    run(main())


def test_sec_03_filters_hold_nobody_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=LARGE) as m:
            topic, other = await m.topic("news"), await m.queue("other")
            for number in range(8):
                await m.queue(f"q{number}")
                tests = [*STARS, f"{number}"]
                await topic.subscribe(f"q{number}", filter={"$body": {"a": tests}})
            async with StallMonitor() as monitor:
                await topic.publish(HOSTILE)
                await topic.publish(json.dumps({"a": ["x7y"]}).encode())
                await topic.publish(json.dumps({"a": ["b"]}).encode())
                for number in range(8):
                    # What nobody can be sure of is brought, and never lost.
                    bodies: list[bytes] = []
                    while len(bodies) < 2:
                        leases = await (await m.find(f"q{number}")).lease(2, wait=30)
                        bodies += [lease.body for lease in leases]
                        await other.publish(b"as ever")
                    assert bodies[0] == HOSTILE
                await topic.publish(b'{"a":["0"]}', until_arrived=True)
            monitor.assert_responsive()
            state = await topic.describe()
            assert {one.filtered for one in state.subscriptions} == {1, 2}

    run(main())


@pytest.mark.parametrize("is_restarted", [False, True])
def test_sec_03_what_waited_when_the_filter_came_is_judged_within_bounds(
    tmp_path: Path, *, is_restarted: bool
) -> None:
    """Also for a body that was published when there was no limit."""
    large = b'{"a":["b"' + b',"b"' * 400_000 + b"]}"

    async def prepare() -> None:
        async with opened(tmp_path, settings=LARGE) as m:
            topic, queue = await m.topic("news"), await m.queue("orders", max_messages=1)
            await topic.subscribe(queue, name="s")
            await queue.publish(b"in the way")
            await topic.publish(large)
            await topic.publish(HOSTILE)
            await topic.publish(b'{"a":["b"]}')
            await topic.configure_subscription("s", filter={"$body": {"a": STARS}})
            if not is_restarted:
                await judge(m)

    async def judge(m: Millrace) -> None:
        queue = await m.find("orders")
        async with StallMonitor() as monitor:
            await queue.configure(max_messages=0)
            found: list[bytes] = []
            while len(found) < 3:
                found += [lease.body for lease in await queue.lease(3, wait=30)]
        monitor.assert_responsive()
        assert found == [b"in the way", large, HOSTILE]
        topic = await m.find_topic("news")
        assert (await topic.publish(b"{}", until_arrived=True)).queues is not None
        [state] = (await topic.describe()).subscriptions
        assert (state.forwarded, state.filtered) == (2, 2)

    async def restarted() -> None:
        async with opened(tmp_path, settings=LARGE) as m:
            await judge(m)

    run(prepare())
    if is_restarted:
        run(restarted())
