"""No request, however hostile, stalls the loop, fills the memory or loses what others have."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import millrace
from tests.server.hostile.inputs import ATTACKS, Target, prepare
from tests.server.hostile.run import run
from tests.server.rest.harness import Served, served
from tests.support.stall import ATTEMPTS, STEP_CPU_SECONDS_MAX, StallMonitor

pytestmark = pytest.mark.process

RSS_GROWTH_BYTES_MAX = 256 << 20
"""Of one attack of a tenth of the size: bodies of 64 MiB may be held four times over."""

SCALE = 0.1

SLOWDOWN_MAX = 200.0
"""The short run shares two cores with other tests: it shows loss and memory. `make hostile` holds
others to a factor of ten."""

MALLORY = ("allow * mallory/*",)


async def _attack(server: Served, name: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.server.hostile.attack", str(server.port), str(SCALE), name),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate(b"mallory")
    assert output.decode().startswith(name)
    assert process.returncode == 0


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_neither_stalls_the_loop_nor_takes_the_memory(name: str, tmp_path: Path) -> None:
    async def main() -> None:
        # Segments as servers have them: records that smaller ones refuse are part of the attacks.
        async with served(tmp_path, settings=millrace.Settings()) as server:
            server.door.know("mallory", MALLORY)
            await asyncio.to_thread(prepare, Target(server.port, "mallory"))
            orders = await server.millrace.find("orders")
            await orders.publish(b"before")
            longest: list[float] = []
            while len(longest) < ATTEMPTS and (not longest or longest[-1] > STEP_CPU_SECONDS_MAX):
                async with StallMonitor() as monitor:
                    await _attack(server, name)
                assert monitor.rss_growth_bytes < RSS_GROWTH_BYTES_MAX
                longest.append(monitor.longest_cpu_seconds)
            assert min(longest) < STEP_CPU_SECONDS_MAX, longest
            await orders.publish(b"after")
            bodies = [lease.body for lease in await orders.lease(2)]
            assert bodies == [b"before", b"after"]
            assert (await server.ask("GET", "/readyz")).status == 200

    asyncio.run(main())


def test_others_lose_nothing_and_memory_stays_bounded(tmp_path: Path) -> None:
    outcome = run(tmp_path, 4, scale=SCALE)
    assert not outcome.faults(SLOWDOWN_MAX), (outcome.faults(SLOWDOWN_MAX), outcome.report())
    assert outcome.acknowledged > 0
