"""Group `server`: what is left to the engine's process when others speak HTTP for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.report import Result, at_most, median
from bench.scratch import scratch
from bench.served import CONNECTIONS, TURNS, served

FRONTENDS = 2


async def frontend_engine_cpu() -> list[Result]:
    """CPU of the engine's process for a message, with front ends against without, in turns.

    A message is published, leased and settled by itself. CPU time is compared, not speed: on a
    machine with few cores the client and the front ends share them with the engine.
    """
    alone: list[float] = []
    behind: list[float] = []
    rates: list[tuple[float, float]] = []
    busy = 0.0
    with scratch() as folder:
        for turn in range(TURNS):
            one = await _measure(folder / f"alone{turn}")
            two = await _measure(folder / f"behind{turn}", "--frontends", str(FRONTENDS))
            alone.append(one[0])
            behind.append(two[0])
            rates.append((one[1], two[1]))
            busy = max(busy, one[2], two[2])
    ratio = median([b / a for a, b in zip(alone, behind, strict=True)])
    reach, judge = at_most(0.5)
    speeds = [median(list(of)) for of in zip(*rates, strict=True)]
    return [
        Result(
            "frontend_engine_cpu",
            f"CPU of the engine's process, {FRONTENDS} front ends, {CONNECTIONS} connections",
            median(behind) * 1e6,
            "us/message",
            f"one process: {median(alone) * 1e6:,.0f} us",
            ratio,
            reach,
            judge(ratio),
            f"{speeds[1]:,.0f} messages/s, one process {speeds[0]:,.0f}/s; the client was busy for "
            f"{busy:.0%} of its time at most",
        )
    ]


async def _measure(folder: Path, *options: str) -> tuple[float, float, float]:
    """CPU seconds of a message, messages a second, and how busy the client was."""
    with served(folder, *options) as server:
        told = await asyncio.to_thread(server.load, "triples", CONNECTIONS)
    each = told.server_cpu / told.rounds
    return each, told.rounds / told.seconds, told.client_cpu / told.seconds
