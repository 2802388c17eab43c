"""The simulator: the shipped engine over a simulated machine, from a seed.

`python -m tests.support.simulator --seeds 200` runs many seeds, `--seed 17` replays one. The
same seed gives the same run on the same commit, whatever PYTHONHASHSEED is.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.support.simulator.run import Report, Run

STEPS = 400
"""Calls that the clients of a run make, about."""

SHOWN_LINES = 60
"""Lines of a failed run's history that are shown."""

PROGRESS_SECONDS = 10.0


def run_seed(seed: int, steps: int = STEPS) -> Report:
    """Run one seed."""
    return Run(seed, steps).play()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds, from --first on")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="replay this one alone")
    parser.add_argument("--steps", type=int, default=STEPS, help="calls per run, about")
    parser.add_argument("--verbose", action="store_true", help="tell the whole story")
    parser.add_argument("--digest", action="store_true", help="print a digest of each run")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    events = crashes = violations = 0
    began = told = time.monotonic()
    for count, seed in enumerate(seeds, 1):
        report = run_seed(seed, options.steps)
        events += report.events
        crashes += report.crashes
        violations += len(report.violations)
        if report.violations or options.verbose:
            tell(report, verbose=options.verbose)
        if options.digest:
            print(f"seed {seed}: {report.digest}")
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            rate = count / (told - began)
            print(f"… {count} of {len(seeds)} seeds, {rate:.1f} per second", flush=True)
    print(f"{len(seeds)} seeds, {events} events, {crashes} crashes, {violations} violations")
    return 1 if violations else 0


def tell(report: Report, *, verbose: bool) -> None:
    """Print what happened, and how to see it again."""
    lines = report.lines if verbose else report.lines[-SHOWN_LINES:]
    print(*lines, sep="\n")
    for violation in report.violations:
        print(f"seed {report.seed}, step {report.step}: {violation}")
    if report.violations:
        print(f"replay it: make sim SEED={report.seed}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
