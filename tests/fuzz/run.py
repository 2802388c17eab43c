"""`make fuzz HOURS=…`: run every fuzz target in a process of its own, with bounded memory.

A target is a function `fuzz_<name>(rng)` in a module `tests/fuzz/targets_*.py`. One call is one
case: it draws an input from `rng`, gives it to the code under test and raises if that does anything
but accept the input or refuse it with the error that is meant for it.

A process that runs a target fails the run if it raises, ends by a signal, takes more than
`CASE_SECONDS_MAX` for a case, or holds more memory than `RSS_BYTES_MAX` or than it did after its
first cases. A case is named by target, seed and number and can be repeated alone:

    python -m tests.fuzz.run --target arrow --seed 1234 --case 567
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]

Target = Callable[[Random], None]

RSS_BYTES_MAX = 768 << 20
"""A process with everything imported takes about 150 MiB, Arrow and a server in it 300."""

RSS_GROWTH_BYTES_MAX = 192 << 20
"""After the first cases nothing is kept from case to case but what allocators hold back."""

WARM_CASES = 50

CASE_SECONDS_MAX = 60
"""On a loaded machine; a case takes milliseconds."""

SLICE_SECONDS = 120.0
"""A long run gives each target so much in turn, always with another seed."""

CASE_FAILED = 3
"""The exit code of a child whose target raised."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one process."""

    target: str
    seed: str
    cases: int
    peak_rss_bytes: int
    failure: str
    """Empty where there is none."""

    @property
    def repeat(self) -> str:
        """Return the command that runs the last case alone."""
        return f"python -m tests.fuzz.run --target {self.target} --seed {self.seed} " + (
            f"--case {self.cases}"
        )


def find_targets() -> dict[str, Target]:
    """Return all targets by name."""
    targets: dict[str, Target] = {}
    for path in sorted(Path(__file__).parent.glob("targets_*.py")):
        module = importlib.import_module(f"tests.fuzz.{path.stem}")
        for name, value in vars(module).items():
            if name.startswith("fuzz_") and callable(value):
                targets[name.removeprefix("fuzz_")] = value
    return targets


def run_case(target: Target, name: str, seed: str, case: int) -> None:
    """Run one case; the same arguments give the same input."""
    target(Random(f"{seed}/{name}/{case}"))


# --- The child: one target ------------------------------------------------------------------------


def run_cases(name: str, target: Target, seed: str, seconds: float, progress: Path) -> int:
    """Run cases for so long, and return the exit code.

    The number of each case is written to `progress` before it begins, so that it is known even if
    the process is ended by a signal.
    """
    end = time.monotonic() + seconds
    case = 0
    warm_bytes = 0
    with progress.open("r+b", buffering=0) as file:
        while True:
            file.seek(0)
            file.write(b"%20d" % case)
            faulthandler.dump_traceback_later(CASE_SECONDS_MAX, exit=True)
            run_case(target, name, seed, case)
            faulthandler.cancel_dump_traceback_later()
            if case == WARM_CASES:
                gc.collect()
                warm_bytes = rss_bytes()
            # However slow the machine is, at least two cases are run.
            if case and time.monotonic() > end:
                break
            case += 1
    gc.collect()
    grown = rss_bytes() - warm_bytes if warm_bytes else 0
    if grown > RSS_GROWTH_BYTES_MAX:
        print(f"memory grew by {grown >> 20} MiB in {case} cases", file=sys.stderr)
        return CASE_FAILED
    return 0


# --- The parent -----------------------------------------------------------------------------------


def run_target(name: str, seed: str, seconds: float, module: str = "tests.fuzz.run") -> Outcome:
    """Run a target in a process of its own for so long, and watch its memory."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        progress = Path(folder) / "case"
        progress.write_bytes(b"%20d" % 0)
        errors = Path(folder) / "stderr"
        command = [sys.executable, "-m", module, "--target", name, "--seed", seed]
        command += ["--seconds", str(seconds), "--progress", str(progress)]
        with errors.open("wb") as stderr:
            process = subprocess.Popen(command, cwd=ROOT, stderr=stderr, stdout=stderr)
        failure, peak = _watch(process)
        text = errors.read_text(errors="replace")
        if not failure and process.returncode:
            failure = f"{_ended(process.returncode)}\n{text[-4000:]}"
        return Outcome(name, seed, int(progress.read_bytes()), peak, failure)


def _watch(process: subprocess.Popen[bytes]) -> tuple[str, int]:
    """Wait for the end of the process, or end it when it holds too much memory."""
    peak = 0
    while True:
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            peak = max(peak, rss_bytes(process.pid))
            if peak > RSS_BYTES_MAX:
                process.kill()
                process.wait()
                return f"it held {peak >> 20} MiB, up to {RSS_BYTES_MAX >> 20} are allowed", peak
        else:
            return "", peak


def _ended(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def rss_bytes(pid: int | None = None) -> int:
    """Return what a process holds now; 0 once it has ended."""
    try:
        status = Path(f"/proc/{'self' if pid is None else pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in status.splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def run_all(names: list[str], hours: float, seed: str) -> list[Outcome]:
    """Run the targets in turn until the time is over; return the failures."""
    end = time.monotonic() + hours * 3600
    slice_seconds = min(SLICE_SECONDS, hours * 3600 / len(names))
    failures: list[Outcome] = []
    turn = 0
    while turn == 0 or time.monotonic() < end:
        for name in names:
            outcome = run_target(name, f"{seed}.{turn}", slice_seconds)
            state = "FAILED" if outcome.failure else "ok"
            print(
                f"{name:<12} {outcome.cases:>9,} cases, {outcome.peak_rss_bytes >> 20:>4} MiB, "
                f"seed {outcome.seed}: {state}",
                flush=True,
            )
            if outcome.failure:
                print(f"{outcome.failure}\nagain: {outcome.repeat}", flush=True)
                failures.append(outcome)
        turn += 1
    return failures


def main(targets: dict[str, Target] | None = None) -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", help="one target only, by name")
    parser.add_argument("--hours", type=float, default=0.1)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--case", type=int, help="repeat this case of the target, in this process")
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--progress", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    faulthandler.enable()
    known = find_targets() if targets is None else targets
    if arguments.target is not None and arguments.target not in known:
        parser.error(f"no target {arguments.target!r}; there is: {', '.join(known)}")
    if arguments.case is not None:
        run_case(known[arguments.target], arguments.target, arguments.seed, arguments.case)
        return 0
    if arguments.seconds is not None:
        target = known[arguments.target]
        return run_cases(
            arguments.target, target, arguments.seed, arguments.seconds, arguments.progress
        )
    names = list(known) if arguments.target is None else [arguments.target]
    failures = run_all(names, arguments.hours, arguments.seed)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
