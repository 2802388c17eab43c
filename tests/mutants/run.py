"""`make mutants`: bring known bugs back, one at a time, and see that the tests catch each.

A mutant is a patch of the source, listed in `mutants.toml` with the disaster that it brings back
and the tests that must fail. The repository is copied, patched and tested, and not touched itself.
A mutant whose tests pass has survived: a test is missing. A mutant whose text is no longer found is
an error: the list must follow the source.

Rule 1: caught means that a test failed, hung, or was crashed with its process. A source that cannot
be imported or that names what is not there, tests that cannot be collected, or a run of another
source than the copy (`guard`) prove nothing and are errors. The tests are copied, too: programs
that they start find the source there.
Rule 2: the same tests pass on the same copy without a mutant, or their failures say nothing.
Rule 3: a run leaves nothing behind, neither caches nor examples that Hypothesis found.

The source is compiled once, and each copy has that bytecode for all but the patched file: to
compile it anew took longer than most tests.
"""

from __future__ import annotations

import argparse
import compileall
import concurrent.futures
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# This is a program, too: Python would look beside it.
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.support.timeouts import scaled  # noqa: E402

LIST = Path(__file__).parent / "mutants.toml"

PARTS = ["src", "tests", "examples", "pyproject.toml"]
"""What is copied of the repository."""

TEST_SECONDS_MAX = 60
"""A mutant that hangs a test is caught, too. The conftest of the copy scales it."""

RUN_SECONDS_MAX = scaled(300)
"""Of all the tests of one mutant."""

CONTROL_SECONDS_MAX = scaled(1_800)
"""Of the tests of all mutants together, without any."""

SLIPS = ("NameError", "UnboundLocalError", "ImportError", "AttributeError", "SyntaxError")
"""What a patch that was badly written fails with: no test had to look for it."""

ABORTED = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS)
"""What a process ends with that a mutant has crashed: no test can fail any more."""

PASSED, FAILED = 0, 1
"""What pytest ends with where all tests were run, or where one of them failed."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug, and who must notice."""

    name: str
    why: str
    file: str
    """Below `src/millrace`."""
    old: str
    new: str
    tests: list[str]
    """As pytest takes them; the fewest that catch it."""
    slow: bool = False
    """Its tests take long: it is not part of a sample."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said."""

    failed: bool
    what: str
    """The test that failed, or the last line."""


class Unfit(Exception):
    """The run proves nothing: the list or the tests must be mended first."""


def load() -> list[Mutant]:
    """Every mutant of the list."""
    with LIST.open("rb") as file:
        return [Mutant(**entry) for entry in tomllib.load(file)["mutant"]]


def patched(mutant: Mutant, text: str) -> str:
    """The text of its file with the bug in it."""
    count = text.count(mutant.old)
    if count != 1:
        raise Unfit(
            f"{mutant.name}: its text stands {count} times in {mutant.file}; "
            "bring mutants.toml up to the source"
        )
    return text.replace(mutant.old, mutant.new)


def copy_tree(source: Path, target: Path, *, is_compiled: bool = False) -> None:
    """Copy what tests may need of a repository.

    `is_compiled`: the source is such a copy, with its bytecode. Its files are linked: copying
    thousands of them took longer than most tests.
    """
    bytecode = () if is_compiled else ("__pycache__",)
    copy = os.link if is_compiled else shutil.copy2
    ignored = shutil.ignore_patterns(*bytecode, ".git", ".venv", ".hypothesis", "*_cache")
    for name in PARTS:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=ignored, copy_function=copy)
        elif (source / name).exists():
            target.mkdir(parents=True, exist_ok=True)
            copy(source / name, target / name)


def try_tests(source: Path, mutant: Mutant | None, tests: list[str]) -> Verdict:
    """Run tests on a copy of the repository `source`, with the mutant in it if one is given.

    Raises:
        Unfit: no test has said anything.
    """
    name = mutant.name if mutant else "without any mutant"
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / "repository"
        copy_tree(source, copy, is_compiled=True)
        if mutant is not None:
            path = copy / "src" / "millrace" / mutant.file
            text = patched(mutant, path.read_text())
            # Written anew: other copies have the same file.
            path.unlink()
            path.write_text(text)
            # Bytecode is judged by time and size of its source alone: a patch might keep both.
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                compiled.unlink()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(copy / "src"), str(copy)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            # So that the summary of a failure is not cut off.
            "COLUMNS": "240",
            "MUTANT_SOURCE": str(copy / "src"),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(Path(folder) / "hypothesis"),
        }
        command = [
            *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "tests.mutants.guard"),
            # The bytecode of tests whose asserts pytest rewrites is another: it would compile them.
            "--assert=plain",
            *("-o", f"cache_dir={folder}/cache"),
            *(("-o", f"timeout={TEST_SECONDS_MAX}") if mutant is not None else ()),
            *("--basetemp", f"{folder}/tests", "--hypothesis-seed=0", *tests),
        ]
        try:
            run = subprocess.run(
                command,
                cwd=copy,
                env=environment,
                capture_output=True,
                text=True,
                timeout=CONTROL_SECONDS_MAX if mutant is None else RUN_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            if mutant is None:
                raise Unfit(f"{name}: its tests take too long") from None
            return Verdict(failed=True, what="hung")
    lines = [line for line in run.stdout.splitlines() if line.strip()]
    if mutant is not None and run.returncode in ABORTED:
        return Verdict(failed=True, what=f"the process was ended by signal {-run.returncode}")
    if run.returncode not in (PASSED, FAILED):
        raise Unfit("\n".join([f"{name}: its tests say nothing", *lines[-8:], run.stderr.strip()]))
    found = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    what = (found or lines)[0 if found else -1]
    if any(f" - {slip}" in what for slip in SLIPS):
        raise Unfit(f"{name}: it is not wrong, it does not work: {what}")
    return Verdict(run.returncode == FAILED, what)


def select(mutants: list[Mutant], only: str | None, sample: int | None, seed: int) -> list[Mutant]:
    """Those that are asked for."""
    found = [mutant for mutant in mutants if only is None or only in mutant.name]
    if sample is not None:
        quick = [mutant for mutant in found if not mutant.slow]
        found = random.Random(seed).sample(quick, min(sample, len(quick)))
    if not found:
        raise Unfit("no mutant has such a name")
    return found


def part_of(mutants: list[Mutant], part: str) -> list[Mutant]:
    """Those of the list from the first to the last number, as in "385:461"; it begins with 1."""
    first, _, last = part.partition(":")
    try:
        return mutants[int(first or 1) - 1 : int(last) if last else None]
    except ValueError:
        raise Unfit(f"{part!r} is no part of the list; write it as 1:100") from None


def hunt(mutants: list[Mutant], jobs: int) -> int:
    """Try each mutant, and tell; returns how many were caught."""
    caught = 0
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        concurrent.futures.ThreadPoolExecutor(jobs) as pool,
    ):
        # One copy for all: whoever goes on working meanwhile does not change what is tested.
        source = Path(folder) / "repository"
        copy_tree(ROOT, source)
        for part in ("src", "tests"):
            compileall.compile_dir(source / part, quiet=2)
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        control = pool.submit(try_tests, source, None, tests)
        runs = {pool.submit(try_tests, source, mutant, mutant.tests): mutant for mutant in mutants}
        try:
            for run in concurrent.futures.as_completed([control, *runs]):
                took = time.monotonic() - began
                if run is control:
                    if run.result().failed:
                        raise Unfit(f"the tests fail without any mutant: {run.result().what}")
                    print(f"{took:5.0f} s  {len(tests)} tests pass without a mutant", flush=True)
                    continue
                mutant, verdict = runs[run], run.result()
                caught += verdict.failed
                state = "caught" if verdict.failed else "SURVIVED"
                print(f"{took:5.0f} s  {state:<8} {mutant.name}: {mutant.why}")
                print(f"         {verdict.what[:240]}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    return caught


def main() -> None:
    parser = argparse.ArgumentParser(description="Bring known bugs back; the tests must notice.")
    parser.add_argument("--only", help="mutants whose name contains this")
    parser.add_argument("--part", default=":", help="only these of the list, as in 1:100")
    parser.add_argument("--sample", type=int, help="only so many of them, with quick tests")
    parser.add_argument("--seed", type=int, default=0, help="which ones those are")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    try:
        mutants = part_of(load(), arguments.part)
        mutants = select(mutants, arguments.only, arguments.sample, arguments.seed)
        caught = hunt(mutants, arguments.jobs)
    except Unfit as error:
        raise SystemExit(str(error)) from None
    print(f"{caught} of {len(mutants)} mutants caught")
    if caught != len(mutants):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
