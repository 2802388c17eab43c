"""`make bench-compare BASE=rev ONLY=id,…`: compare revisions of this repository with HEAD.

All revisions are checked out into worktrees and measured in turns, each by its own `bench/`. A turn
measures the bases and then the head, and the next turn the other way round, so that a machine that
grows slower or faster does not favour one of them. Each figure is judged by the median over turns
of (head / base), taken so that more is better. `BASE=rev,rev` compares the head with several bases
and measures it once in each turn.

Absolute figures of this repository's measurements differ by a factor of two between hours on a
shared machine; two runs in a row, repeated, differ far less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.report import machine  # noqa: E402 the path is set first
from bench.run import NOTHING_FITS, choose, list_measurements  # noqa: E402

ROUNDS = 5

NO_REGRESSION = 0.95
"""A head that reaches this share of its base counts as no slower."""

MEASUREMENT_SECONDS_MAX = 1_800


Measured = dict[str, tuple[float, str]]
"""Value and unit of each figure, by its id."""


@dataclass(slots=True)
class Figure:
    """The values of one figure, by turn."""

    unit: str
    base: list[float] = field(default_factory=list)
    head: list[float] = field(default_factory=list)

    @property
    def is_rate(self) -> bool:
        """Whether more is better: rates are given per second, all other figures are costs."""
        return self.unit.endswith("/s")

    def ratios(self) -> list[float]:
        """Return head / base of each turn; above 1 the head is better."""
        pairs = zip(self.base, self.head, strict=True)
        return [_share(head, base) if self.is_rate else _share(base, head) for base, head in pairs]

    def is_kept(self, bound: float) -> bool:
        """Return whether the head is no slower than `bound` times the base."""
        return statistics.median(self.ratios()) >= bound

    def row(self, name: str, bound: float) -> str:
        """Return the line of the table."""
        ratios = self.ratios()
        ok = "yes" if self.is_kept(bound) else "NO"
        return (
            f"{name:<24} {statistics.median(self.base):>14,.3f} "
            f"{statistics.median(self.head):>14,.3f} {self.unit:<12} "
            f"{statistics.median(ratios):>6.2f}  {min(ratios):.2f}-{max(ratios):<6.2f} "
            f"{_spread(self.base):>5.0%} {_spread(self.head):>5.0%}  {ok}"
        )


def _share(value: float, of: float) -> float:
    """Return value / of, where 0 / 0 counts as equal."""
    if of == 0:
        return 1.0 if value == 0 else float("inf")
    return value / of


def _spread(values: list[float]) -> float:
    """Return how far the values lie apart, as a share of their median."""
    return _share(max(values) - min(values), statistics.median(values)) if any(values) else 0.0


@dataclass(slots=True)
class Comparison:
    """What was measured of both revisions, and what could not be."""

    figures: dict[str, Figure] = field(default_factory=dict)
    alone: dict[str, str] = field(default_factory=dict)
    """Figures that one revision has, by id: "base" or "head"."""
    failed: dict[str, str] = field(default_factory=dict)
    """Measurements that ended in an error, and the end of what they printed."""

    def add(self, base: Measured, head: Measured) -> list[str]:
        """Add a turn's figures of one measurement; return the ids of those that both have."""
        self.alone |= dict.fromkeys(base.keys() - head.keys(), "base")
        self.alone |= dict.fromkeys(head.keys() - base.keys(), "head")
        shared = sorted(base.keys() & head.keys())
        for identity in shared:
            figure = self.figures.setdefault(identity, Figure(head[identity][1]))
            figure.base.append(base[identity][0])
            figure.head.append(head[identity][0])
        return shared

    def fell(self, bound: float) -> list[str]:
        """Return the figures of the head that are slower than `bound` times the base."""
        return [name for name, figure in self.figures.items() if not figure.is_kept(bound)]

    def is_kept(self, bound: float) -> bool:
        """Return whether something was compared, nothing fell, and nothing was lost or failed."""
        lost = "base" in self.alone.values()
        return bool(self.figures) and not (self.fell(bound) or lost or self.failed)


class Unmeasured(Exception):
    """A measurement ended in an error."""


@contextlib.contextmanager
def checked_out(revision: str, folder: Path) -> Iterator[Path]:
    """A worktree of `revision`, removed when it is left."""
    _git("worktree", "add", "--quiet", "--detach", str(folder), revision)
    try:
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder))


def _git(*arguments: str) -> str:
    run = subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return run.stdout.strip()


def measure(tree: Path, name: str) -> Measured:
    """Run one measurement of the revision in `tree`; it may be too old to have it.

    Raises:
        Unmeasured: it failed.
    """
    out = tree / "build" / "compare.json"
    out.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
    proof = "import millrace, sys; sys.exit(not millrace.__file__.startswith(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", proof, str(tree)], env=environment, check=True, cwd=tree)
    run = subprocess.run(
        [sys.executable, "bench/run.py", "--only", name, "--out", str(out)],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=MEASUREMENT_SECONDS_MAX,
    )
    if run.returncode == NOTHING_FITS:
        return {}
    if run.returncode:
        raise Unmeasured(f"{run.stdout[-2000:]}{run.stderr[-4000:]}")
    return by_id(json.loads(line) for line in out.read_text().splitlines())


def by_id(results: Iterable[dict[str, Any]]) -> Measured:
    """Return the figures by their ids; groups may use the same id, and keep both figures."""
    found: Measured = {}
    for result in results:
        name, number = result["id"], 1
        while name in found:
            number += 1
            name = f"{result['id']} ({number})"
        found[name] = (result["value"], result["unit"])
    return found


def compare(
    bases: list[Path],
    head: Path,
    names: list[str],
    rounds: int,
    run: Callable[[Path, str], Measured] = measure,
) -> list[Comparison]:
    """Measure all trees in turns; return the comparison of the head with each base.

    A measurement that failed once is not tried again.
    """
    results = [Comparison() for _ in bases]
    for turn in range(rounds):
        for name in names:
            if any(name in result.failed for result in results):
                continue
            trees = [*bases, head] if turn % 2 == 0 else [head, *reversed(bases)]
            try:
                measured = {tree: run(tree, name) for tree in trees}
            except Unmeasured as error:
                for result in results:
                    result.failed[name] = str(error)
                print(f"turn {turn + 1} of {rounds}, {name}: failed\n{error}", flush=True)
                continue
            for base, result in zip(bases, results, strict=True):
                shared = result.add(measured[base], measured[head])
                ratios = ", ".join(
                    f"{one} {result.figures[one].ratios()[-1]:.2f}" for one in shared
                )
                print(f"turn {turn + 1} of {rounds}, {base.name}, {name}: {ratios}", flush=True)
    return results


def main() -> None:
    """Compare as the command line says, and exit with 1 if a figure fell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", required=True, help="revisions to compare with, by commas")
    parser.add_argument("--head", default="HEAD", help="the revision that is judged")
    parser.add_argument("--only", required=True, help="measurements, groups or ids, by commas")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--bound", type=float, default=NO_REGRESSION)
    arguments = parser.parse_args()
    chosen = choose(arguments.only)
    if not chosen:
        list_measurements(arguments.only)
        sys.exit(NOTHING_FITS)
    names = list(dict.fromkeys(name for _, name in chosen))
    *bases, head = (
        _git("rev-parse", "--short", one) for one in (*arguments.base.split(","), arguments.head)
    )
    if _git("status", "--porcelain", "--untracked-files=no"):
        print("changes that are not committed are not measured", file=sys.stderr)
    (ROOT / "build").mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="compare-", dir=ROOT / "build") as folder,
        contextlib.ExitStack() as trees,
    ):
        head_tree = trees.enter_context(checked_out(head, Path(folder) / "head"))
        base_trees = [trees.enter_context(checked_out(base, Path(folder) / base)) for base in bases]
        results = compare(base_trees, head_tree, names, arguments.rounds)
    for base, result in zip(bases, results, strict=True):
        print(f"\n{machine()}; {arguments.rounds} turns; base {base}, head {head}\n")
        print_comparison(result, arguments.bound)
    sys.exit(0 if all(result.is_kept(arguments.bound) for result in results) else 1)


def print_comparison(result: Comparison, bound: float) -> None:
    """Print the table of a comparison, and what could not be compared."""
    print(
        f"{'id':<24} {'base':>14} {'head':>14} {'unit':<12} {'ratio':>6}  {'range':<11} "
        f"{'spread of both':>11}  >= {bound:g}"
    )
    for identity, figure in result.figures.items():
        print(figure.row(identity, bound))
    fell = result.fell(bound)
    print(f"\n{len(result.figures)} figures, {len(fell)} below {bound:g}: {', '.join(fell)}")
    for identity, side in result.alone.items():
        print(f"{identity}: measured of {side} alone")
    for name in result.failed:
        print(f"{name}: failed, see above")


if __name__ == "__main__":
    main()
