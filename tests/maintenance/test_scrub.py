"""Scrubbing reads everything again at its rate, and reports the place of damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import errors, limits
from millrace.client.millrace import Millrace
from millrace.maintenance.scrub import Scrubber, ScrubSchedule
from millrace.node import Node
from millrace.settings import Settings
from tests.cli.program import flip
from tests.client.harness import Clock, eventually, opened, run

QUICK = Settings(segment_bytes=1024 * 1024, scrub_bytes_per_second=1 << 30, scrub_every=3600)
NEVER = Settings(segment_bytes=1024 * 1024, scrub_bytes_per_second=0)


def node_of(m: Millrace) -> Node:
    return m._engine._node  # type: ignore[attr-defined, no-any-return]


async def fill(m: Millrace) -> list[Path]:
    """Fill two queues, each with a sealed file of its own."""
    for name in ("orders", "mail"):
        queue = await m.queue(name)
        for _ in range(2):
            await queue.publish_many([bytes(1000)] * 500)
        await node_of(m).checkpointer.seal_all()
    return []


def sealed(folder: Path) -> list[Path]:
    return sorted((folder / "sealed").iterdir())


def test_damage_is_found_and_refuses_the_rows_in_it_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data", settings=NEVER) as m:
            await fill(m)
        first, *_ = sealed(tmp_path / "data")
        async with opened(tmp_path / "data", settings=QUICK) as m:
            orders, mail = await m.find("orders"), await m.find("mail")
            assert len(await orders.peek(10)) == 10
            flip(first, 5000)

            async def is_found() -> bool:
                return (await m.health()).damaged == (f"sealed/{first.name}",)

            await eventually(is_found)
            # It was read and verified before, and is now damaged.
            with pytest.raises(errors.Quarantined, match=first.name):
                await orders.peek(10)
            assert len(await mail.peek(10)) == 10
            with pytest.raises(errors.Quarantined, match=first.name):
                await orders.publish(b"refused")
            await mail.settle(await mail.lease(10))
        # The next engine knows the findings.
        async with opened(tmp_path / "data", settings=NEVER) as m:
            assert (await m.health()).damaged == (f"sealed/{first.name}",)

    run(main())


def test_a_whole_pass_is_told_of(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data", settings=QUICK) as m:
            assert (await m.health()).scrubbed is None
            await fill(m)

            async def is_over() -> bool:
                return (await m.health()).scrubbed is not None

            await eventually(is_over)
            assert (await m.health()).damaged == ()

    run(main())


def test_a_damaged_segment_is_told_of(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data", settings=NEVER) as m:
            await fill(m)
            queue = await m.find("orders")
            await queue.publish(bytes(20_000))
            await node_of(m).writer.roll()
            live = [one for one in node_of(m).log.segments() if one.used_bytes > 8192]
            hold = node_of(m).log.hold(live[-1].generation)
            assert hold is not None
            with hold:
                name = hold.segment().name
            flip(tmp_path / "data" / name, 4096 + 80)
            scrubber = Scrubber(
                node_of(m)._ports.disk,
                node_of(m).store,
                node_of(m).log,
                Clock(),
                ScrubSchedule(1 << 30, 1),
            )
            scrubber._asked_ms = 0
            scrubber.due_bytes()
            scrubber.step(1 << 30)
            scrubber.publish_findings()
            assert scrubber.damaged == (name,)
            # The engine goes on.
            await queue.publish(b"more")

    run(main())


def test_it_keeps_its_pace_and_its_place(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        clock.stop()
        rate = 2 * limits.CARE_STEP_BYTES
        async with opened(tmp_path / "data", settings=NEVER, clock=clock) as m:
            await fill(m)
            node = node_of(m)

            def made() -> Scrubber:
                return Scrubber(
                    node._ports.disk, node.store, node.log, clock, ScrubSchedule(rate, 3_600_000)
                )

            scrubber = made()
            assert scrubber.due_bytes() == 0
            read = seconds = 0
            while not scrubber.ended_ms:
                clock.forward(seconds=0.25)
                seconds += 1
                count = scrubber.due_bytes()
                assert count <= rate
                scrubber.step(count)
                read += count
                if seconds == 4:
                    # Another engine resumes behind the last file that was read.
                    after = scrubber._state.after
                    scrubber = made()
                    assert scrubber._state.after == after
            assert read <= rate * (seconds / 4 + 1)
            assert seconds >= 3
            # The next pass begins in time.
            clock.forward(seconds=60)
            assert scrubber.due_bytes() == made().due_bytes() == 0
            clock.forward(seconds=3600)
            scrubber.due_bytes()
            clock.forward(seconds=1)
            assert scrubber.due_bytes() > 0

    run(main())
