"""Turns over bits of a small folder, one at a time: the same data, or a refusal; never other data.

`python -m tests.crash.flips [--count 2000] [--seed 7]`; without a count, all of them. After each
flip the index, the log and the sealed files are opened as the engine opens them, and everything is
read. Of LMDB's own pages, which it trusts, more may come: it may end the process, and what it reads
may be other data, if then a full walk (`LmdbCells.check`) finds fault.

All flips are: every bit of every sector in which something was ever written, and one bit in every
64 bytes of the others, which hold nothing but zeros.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millrace import errors
from millrace.core.model import ShardId
from millrace.lazy_pandas import spare_pandas
from millrace.store.row_location import RELATIVE
from millrace.store.sealed import FOLDER, file_number, read_footer
from millrace.wal.disk import RealDisk
from tests.crash.small_folder import Everything, build, find_fault, read_everything

SECTOR_BYTES = 512

ZEROS_STEP_BYTES = 64
"""Of sectors without anything in them, one bit in so many bytes is turned over."""

BEGINNING_BYTES = {"index": 2 * 4096, "log": 4096}
"""LMDB's two pages that name the last commit, and the header of a segment."""

SHARES = {
    "identity": 0.01,
    "index": 0.3,
    "beginning of index": 0.1,
    "log": 0.35,
    "beginning of log": 0.1,
    "sealed": 0.14,
}
"""What share of sampled flips hits what."""

FLIP_SECONDS_MAX = 30
"""Whoever takes longer over one flip is taken to hang."""

WORKERS = 2

PROGRESS_SECONDS = 10.0

INDEX = "index/data.mdb"


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit of one file."""

    name: str
    offset: int
    bit: int

    def __str__(self) -> str:
        return f"bit {self.bit} at {self.offset} of {self.name}"


OUTCOMES = {
    "same": "the same data: what was hit means nothing",
    "refused": "opening or reading was refused",
    "refused for others": "more was refused than the rows of the sealed file that was hit",
    "found": "other data, and the full walk over the index finds fault",
    "crashed": "LMDB ended the process",
    "other": "other data, and nobody noticed",
    "escaped": "an exception that is not ours",
}

ALLOWED = {True: {"same", "refused", "found", "crashed"}, False: {"same", "refused"}}
"""By whether it is the index that was hit."""


@dataclass(slots=True)
class Report:
    """What came of all flips."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By kind of file and outcome."""
    wrong: list[str] = field(default_factory=list)

    def add(self, flip: Flip, outcome: str) -> None:
        kind = flip.name.partition("/")[0]
        self.counts[kind, outcome] += 1
        if outcome not in ALLOWED[flip.name == INDEX]:
            self.wrong.append(f"{outcome}: {flip}")

    def line(self) -> str:
        """All of it, in one line."""
        kinds = sorted({kind for kind, _ in self.counts})
        parts = [
            f"{kind}: "
            + ", ".join(
                f"{self.counts[kind, outcome]:,} {outcome}"
                for outcome in OUTCOMES
                if self.counts[kind, outcome]
            )
            for kind in kinds
        ]
        return f"{self.counts.total():,} flips; {'; '.join(parts)}; {len(self.wrong)} wrong"


# --- What is turned over -------------------------------------------------------------------------


def all_flips(files: dict[str, bytes]) -> Iterator[Flip]:
    """Every flip there is, in order."""
    for name, content in sorted(files.items()):
        for begin in range(0, len(content), SECTOR_BYTES):
            sector = content[begin : begin + SECTOR_BYTES]
            is_empty = not sector.strip(b"\0")
            for offset in range(0, len(sector), ZEROS_STEP_BYTES if is_empty else 1):
                for bit in range(1 if is_empty else 8):
                    yield Flip(name, begin + offset, bit)


def sampled(files: dict[str, bytes], count: int, chance: random.Random) -> list[Flip]:
    """So many of them, more from where more depends on it."""
    flips: dict[str, list[Flip]] = {name: [] for name in SHARES}
    for flip in all_flips(files):
        flips[_group(flip)].append(flip)
    found: list[Flip] = []
    for name, share in SHARES.items():
        found += chance.sample(flips[name], min(round(count * share), len(flips[name])))
    if len(found) < count:
        taken = set(found)
        others = [flip for group in flips.values() for flip in group if flip not in taken]
        found += chance.sample(others, count - len(found))
    chance.shuffle(found)
    return found


def _group(flip: Flip) -> str:
    kind = flip.name.partition("/")[0]
    beginning = BEGINNING_BYTES.get(kind, 0)
    return f"beginning of {kind}" if flip.offset < beginning else kind


# --- Trying --------------------------------------------------------------------------------------


def outcome_of(flip: Flip, folder: Path, files: dict[str, bytes], expected: Everything) -> str:
    """Turn the bit over in `folder`, which is as it was written, and say what comes of it."""
    damaged = _damaged_by(flip, folder)
    _turn(folder, flip)
    refused: set[ShardId] = set()
    try:
        found = read_everything(folder, None if damaged is None else refused)
    except errors.Fatal:
        # Mostly `Corrupt`; a map size that was hit is one that the system has no room for.
        return "refused" if damaged is None else "refused for others"
    if refused:
        kept = {
            name: value
            for name, value in expected.items()
            if not any(name.startswith(f"{shard} ") for shard in refused)
        }
        if found != kept:
            return "other"
        return "refused" if damaged is not None and refused <= damaged else "refused for others"
    if found == expected:
        return "same"
    if flip.name != INDEX:
        return "other"
    restore(folder, files)
    _turn(folder, flip)
    return "found" if find_fault(folder) else "other"


def _damaged_by(flip: Flip, folder: Path) -> set[ShardId] | None:
    """Whose rows lie there in a sealed file; None if all of the folder may depend on it."""
    kind, _, name = flip.name.partition("/")
    number = file_number(name)
    if kind != FOLDER or number is None:
        return None
    found: set[ShardId] = set()
    for line in read_footer(RealDisk(folder), number):
        if line.offset <= flip.offset < line.offset + line.length:
            if line.flags & RELATIVE:
                # Staged rows: if they were published since, replay needs their keys.
                return None
            found.add(ShardId(line.shard))
    return found


def _turn(folder: Path, flip: Flip) -> None:
    with (folder / flip.name).open("r+b") as file:
        file.seek(flip.offset)
        [byte] = file.read(1)
        file.seek(flip.offset)
        file.write(bytes([byte ^ 1 << flip.bit]))


def restore(folder: Path, files: dict[str, bytes]) -> None:
    """Make the folder be as it was written."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in files:
            path.unlink()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class Worker:
    """A child that tries one flip after another and says what came of each; it may die of one."""

    def __init__(
        self, folder: Path, files: dict[str, bytes], expected: Everything, flips: Sequence[Flip]
    ) -> None:
        self._folder = folder
        self._files = files
        self._expected = expected
        self.flips = flips
        self.done = 0
        self._rest = b""
        self.descriptor = -1
        self._child = 0

    def start(self) -> None:
        """Begin with the first flip that was not tried."""
        self.descriptor, its = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self.descriptor)
            self._work(its)
        os.close(its)

    def _work(self, out: int) -> None:
        """In the child: what it says survives it; it never returns."""
        try:
            for flip in self.flips[self.done :]:
                signal.alarm(FLIP_SECONDS_MAX)
                restore(self._folder, self._files)
                outcome = "escaped"
                try:
                    outcome = outcome_of(flip, self._folder, self._files, self._expected)
                finally:
                    os.write(out, outcome.encode() + b"\n")
        finally:
            os._exit(1)

    def hear(self, report: Report) -> bool:
        """Take in what it says; whether anything is left to do."""
        data = os.read(self.descriptor, 1 << 16)
        self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self._add(report, line.decode())
        if data:
            return True
        os.close(self.descriptor)
        _, status = os.waitpid(self._child, 0)
        if os.WIFSIGNALED(status) and self.done < len(self.flips):
            self._add(report, "crashed")
        if self.done == len(self.flips):
            return False
        self.start()
        return True

    def _add(self, report: Report, outcome: str) -> None:
        report.add(self.flips[self.done], outcome)
        self.done += 1


def run(folder: Path, count: int | None, seed: int, *, is_told: bool = False) -> Report:
    """Try so many flips, or all of them."""
    chance = random.Random(seed)
    files = build(folder / "original")
    flips = list(all_flips(files)) if count is None else sampled(files, count, chance)
    scratch = folder / "scratch"
    restore(scratch, files)
    expected = read_everything(scratch)
    report = Report()
    workers: dict[int, Worker] = {}
    for number in range(WORKERS):
        share = flips[number::WORKERS]
        worker = Worker(folder / f"worker-{number}", files, expected, share)
        worker.start()
        workers[worker.descriptor] = worker
    told = time.monotonic()
    while workers:
        for descriptor in select.select(list(workers), [], [], FLIP_SECONDS_MAX * 2)[0]:
            worker = workers.pop(descriptor)
            if worker.hear(report):
                workers[worker.descriptor] = worker
        if is_told and time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            print(f"{report.counts.total():,} of {len(flips):,}: {report.line()}", flush=True)
    return report


def main() -> int:
    """Run as the command line says; print what was found at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, help="so many, instead of all")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--folder", type=Path, help="where to work; not kept")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="millrace-flips-", dir=arguments.folder))
    print(f"seed {arguments.seed}", flush=True)
    began = time.monotonic()
    try:
        report = run(folder, arguments.count, arguments.seed, is_told=True)
    finally:
        shutil.rmtree(folder)
    print("\n".join(report.wrong[:40]))
    print(f"in {time.monotonic() - began:.0f} s: {report.line()}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    spare_pandas()
    sys.exit(main())
