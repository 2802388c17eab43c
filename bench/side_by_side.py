"""`make bench-side-by-side BASE=rev`: servers of several revisions, loaded in short turns.

All servers run at the same time, each on a folder of its own, and get the same load in turns of
seconds. `bench-compare` starts a server for each run, minutes apart, in which a shared machine may
become twice as fast or slow; here it has no time to. The ratio is the median over turns of
(head / base), where each turn measures all revisions, in rotating order.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.compare import NO_REGRESSION, _git, checked_out  # noqa: E402 the path is set first
from bench.report import machine  # noqa: E402
from bench.served import CONNECTIONS, Served, served  # noqa: E402
from bench.sqs import WIDE  # noqa: E402
from bench.sqs_client import Target  # noqa: E402
from tests.server.aws.site import make_key  # noqa: E402

TURNS = 12
SECONDS = 4.0


@dataclass
class Revision:
    """A running server of one revision, and what it came to."""

    name: str
    served: Served
    target: Target
    rates: dict[str, list[float]] = field(default_factory=dict)


@contextlib.contextmanager
def running(name: str, tree: Path, folder: Path, options: tuple[str, ...]) -> Iterator[Revision]:
    """A server of the revision that is checked out in `tree`."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{tree / 'src'}{os.pathsep}{tree}"
    try:
        with served(folder / "data", *options) as server:
            key = make_key(folder / "data", "ada", "allow * */*")
            target = Target(name, server.port, server.process.pid, key, server.token)
            yield Revision(name, server, target)
    finally:
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before


def sqs(kind: str) -> Callable[[Revision], float]:
    """Return a load of SQS: messages a second."""
    return lambda one: one.target.load(kind, seconds=SECONDS).rate


def rest(kind: str) -> Callable[[Revision], float]:
    """Return a load of REST: rounds a second."""

    def load(one: Revision) -> float:
        told = one.served.load(kind, CONNECTIONS)
        return told.rounds / told.seconds

    return load


LOADS: dict[str, tuple[tuple[str, ...], Callable[[Revision], float]]] = {
    "sqs_single": (WIDE, sqs("single")),
    "sqs_batch": (WIDE, sqs("batch")),
    "rest_single": ((), rest("triples")),
}
"""Options of the server, and the load, by name."""


def measure(name: str, trees: dict[str, Path], turns: int) -> list[Revision]:
    """Load servers of all revisions in turns; the first turn only warms them up."""
    options, load = LOADS[name]
    with tempfile.TemporaryDirectory(prefix="side-", dir=ROOT / "build") as folder:
        with contextlib.ExitStack() as stack:
            revisions = [
                stack.enter_context(running(revision, tree, Path(folder) / revision, options))
                for revision, tree in trees.items()
            ]
            for turn in range(turns + 1):
                first = turn % len(revisions)
                for one in (*revisions[first:], *revisions[:first]):
                    rate = load(one)
                    if turn:
                        one.rates.setdefault(name, []).append(rate)
        return revisions


def main() -> None:
    """Compare as the command line says, and exit with 1 if the head is slower than a base."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", required=True, help="revisions to compare with, by commas")
    parser.add_argument("--head", default="HEAD", help="the revision that is judged")
    parser.add_argument("--only", help="loads, by commas")
    parser.add_argument("--turns", type=int, default=TURNS)
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(LOADS)
    *bases, head = (
        _git("rev-parse", "--short", one) for one in (*arguments.base.split(","), arguments.head)
    )
    (ROOT / "build").mkdir(exist_ok=True)
    print(f"{machine()}; {arguments.turns} turns of {SECONDS:g} s side by side; head {head}")
    is_kept = True
    with (
        tempfile.TemporaryDirectory(prefix="side-by-side-", dir=ROOT / "build") as folder,
        contextlib.ExitStack() as stack,
    ):
        trees = {
            revision: stack.enter_context(checked_out(revision, Path(folder) / revision))
            for revision in (*bases, head)
        }
        for name in names:
            *measured, judged = measure(name, trees, arguments.turns)
            rates = judged.rates[name]
            for one in measured:
                pairs = zip(rates, one.rates[name], strict=True)
                ratios = [mine / its for mine, its in pairs]
                ratio = statistics.median(ratios)
                is_kept = is_kept and ratio >= NO_REGRESSION
                print(
                    f"{name:<12} {one.name}: {statistics.median(one.rates[name]):>9,.0f}/s, head "
                    f"{statistics.median(rates):>9,.0f}/s, ratio {ratio:.3f} "
                    f"({min(ratios):.2f}-{max(ratios):.2f})",
                    flush=True,
                )
    sys.exit(0 if is_kept else 1)


if __name__ == "__main__":
    main()
