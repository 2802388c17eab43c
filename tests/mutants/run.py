"""`make mutants`: bring known bugs back, one at a time, and see that the tests catch each.

A mutant is a patch of the source, listed in `mutants.toml` with the disaster that it brings back
and the tests that must fail. The source is copied, patched and tested; the repository is not
touched. A mutant whose tests pass has survived: a test is missing. A mutant whose text is no longer
found is an error: the list must follow the source.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS_MAX = 300
"""A mutant that hangs its tests is caught, too."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug, and who must notice."""

    name: str
    why: str
    file: str
    old: str
    new: str
    tests: list[str]


def load() -> list[Mutant]:
    with (Path(__file__).parent / "mutants.toml").open("rb") as file:
        return [Mutant(**entry) for entry in tomllib.load(file)["mutant"]]


def patch(mutant: Mutant, source: Path) -> None:
    path = source / "millrace" / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(
            f"{mutant.name}: its text stands {text.count(mutant.old)} times in {mutant.file}; "
            "bring mutants.toml up to the source"
        )
    path.write_text(text.replace(mutant.old, mutant.new))


def is_caught(mutant: Mutant | None, tests: list[str]) -> tuple[bool, str]:
    """Whether the tests fail with the mutant; without one, whether they fail at all."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            patch(mutant, source)
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        try:
            run = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True, "hung"
        lines = run.stdout.strip().splitlines() or [run.stderr.strip()]
        if run.returncode not in (0, 1, 2):
            raise SystemExit(f"{mutant.name if mutant else 'control'}: {lines[-1]}")
        return run.returncode != 0, lines[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="mutants whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    mutants = [m for m in load() if arguments.only is None or arguments.only in m.name]
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    failing, last = is_caught(None, tests)
    if failing:
        raise SystemExit(f"the tests fail without any mutant: {last}")
    caught = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        began = time.monotonic()
        runs = {pool.submit(is_caught, m, m.tests): m for m in mutants}
        for run in concurrent.futures.as_completed(runs):
            mutant = runs[run]
            found, last = run.result()
            caught += found
            took = time.monotonic() - began
            state = "caught" if found else "SURVIVED"
            print(f"{took:5.0f} s  {state:<8} {mutant.name}: {mutant.why}", flush=True)
            if not found:
                print(f"         {last}", flush=True)
    print(f"{caught} of {len(mutants)} mutants caught")
    if caught != len(mutants):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
