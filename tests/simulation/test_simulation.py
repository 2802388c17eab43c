"""The short form of the simulator, and its own promises: it replays, and it finds.

`make sim` runs more seeds. What a seed has found is kept as a script in `test_found.py`: a seed
finds something else as soon as the engine or the clients change.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.simulator.__main__ import main, run_seed
from tests.support.simulator.machine import Fault, draw_plan
from tests.support.simulator.run import Run
from tests.support.timeouts import scaled

SEEDS = range(1, 19)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_doubled_or_torn(seed: int) -> None:
    report = run_seed(seed)
    assert report.violations == [], "\n".join([*report.lines[-40:], *report.violations])
    assert report.calls > 100


def test_the_seeds_draw_every_fault() -> None:
    drawn = {fault for seed in SEEDS for fault in draw_plan(seed).faults}
    assert drawn == set(Fault)


@pytest.mark.process
def test_the_same_seed_gives_the_same_run_whatever_the_hash_seed() -> None:
    # In this seed lanes are stepped, clocks jump, and machines crash.
    assert {Fault.INTERLEAVE, Fault.CLOCK, Fault.CRASH} <= draw_plan(HASHED_SEED).faults
    command = [sys.executable, "-m", "tests.support.simulator", "--digest", "--steps", "200"]
    command += ["--seed", str(HASHED_SEED)]
    told = {
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
            timeout=scaled(120),
        ).stdout.partition("\n")[0]
        # A slow run also says how far it is.
        for hash_seed in ("0", "4711")
    }
    assert len(told) == 1, told
    assert run_seed(HASHED_SEED, 200).digest in told.pop()


HASHED_SEED = next(
    seed for seed in SEEDS if {Fault.INTERLEAVE, Fault.CLOCK, Fault.CRASH} <= draw_plan(seed).faults
)


@pytest.mark.slow
def test_a_run_crashes_and_recovers() -> None:
    seeds = [seed for seed in range(100) if Fault.CRASH in draw_plan(seed).faults]
    often = [seed for seed in seeds if draw_plan(seed).effects_per_life < 100][:3]
    reports = [run_seed(seed, 100) for seed in often]
    assert sum(report.crashes for report in reports) > 3
    assert len({report.digest for report in reports}) == 3


def test_an_engine_that_forgets_is_found() -> None:
    """Damage that no engine could survive: the ledger's own memory is changed."""
    run = Run(1, 100)
    take = run.machine.ledger.synced
    count = 0

    def forget(name: str) -> None:
        nonlocal count
        count += 1
        if count != 40:
            take(name)

    run.machine.ledger.synced = forget  # type: ignore[method-assign]
    assert any(violation.startswith("I") for violation in run.play().violations)


@pytest.mark.slow
def test_the_command_line_ends_with_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--steps", "40", "--first", "5"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("2 seeds, ")
    assert out.splitlines()[-1].endswith(", 0 violations")
    assert main(["--seeds", "9", "--seed", "5", "--steps", "40", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("1 seeds, ")
    assert "seed 5: " in out
