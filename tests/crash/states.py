"""Rebuilds what a loss of power may leave behind, from recorded system calls, and opens it.

`python -m tests.crash.states --states 400 [--seed 7]`. The program of the crash loop runs once, for
some hundred operations, under strace. At sampled moments between its system calls the model of the
disk (`disk_model.py`) gives a state that a loss of power could leave. The state is written to the
folder, opened by the engine in a child process, and judged by the ledger, which knows exactly what
had been acknowledged by then. The child also does again what was unknown, works on for a while, and
shows everything once more.

Some moments are taken twice: the process is killed there (all that it wrote can be read, synced or
not), another one opens the folder and serves, recorded as well, and then the power goes. What the
second process has shown to anyone must have survived.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

from millrace.lazy_pandas import spare_pandas
from tests.crash.child import Failed, check, live
from tests.crash.disk_model import DiskModel, State, chooser
from tests.crash.events import Duty, events_in, frame
from tests.crash.findings import Findings
from tests.crash.ledger import Ledger
from tests.crash.scene import QUEUES
from tests.crash.trace import Call, Moment, NoTrace, record

ROOT = Path(__file__).resolve().parents[2]

OPERATIONS = 1_000
"""Attempts of the recorded program."""

OPERATIONS_AFTER = 40
"""Attempts of a program that opens a rebuilt state."""

STATES_PER_RECORDING = 100
"""More would last so long that leases are forgotten by age, which the ledger does not know of."""

KILLED_PER_STATES = 20
"""For so many states there is one moment at which the process is killed and another recorded."""

STATES_AFTER_KILL = 8
"""States that are rebuilt from the calls of the second process."""

OPENING_SHARE = 6
"""One in so many states is one of the opening, before anything was shown or acknowledged."""

RECORDS = "of log/*.seg"
"""Calls on the segments of the log."""

PROGRESS_SECONDS = 10.0

SILENT = ("lseek", "close")
"""Calls that change nothing on the disk."""


@dataclass(slots=True)
class Report:
    """What came of all states."""

    states: int = 0
    states_after_kill: int = 0
    calls: int = 0
    choices: Counter[str] = field(default_factory=Counter)
    findings: Findings = field(default_factory=Findings)
    broken: list[str] = field(default_factory=list)
    """States that could not be opened, or not be worked on."""

    def line(self) -> str:
        """All of it, in one line."""
        return (
            f"{self.states:,} states from {self.calls:,} system calls, {self.states_after_kill:,} "
            f"of them after a kill: {len(self.broken):,} not opened; {self.findings.line()}"
        )


class Explorer:
    """Rebuilds states in a folder of its own."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._root = folder / "data"
        self._root.mkdir()
        self._identity = folder
        """The identity file of the program that was recorded."""
        self._chance = random.Random(seed)
        self._seed = seed
        self._say = say
        self._told = time.monotonic()
        self.report = Report()

    def explore(self, states: int) -> Report:
        """Try so many states, from as many recordings as it takes."""
        while self.report.states < states:
            self._explore(min(states - self.report.states, STATES_PER_RECORDING))
        return self.report

    def _explore(self, states: int) -> None:
        """Record the program, and try so many states."""
        shutil.rmtree(self._root)
        self._root.mkdir()
        model, ledger = DiskModel(os.fspath(self._root)), Ledger(QUEUES)
        seed = self._seed + self.report.states
        duty = Duty(0, seed, [], [], [], [], {}, operations=OPERATIONS)
        moments = self._record(duty)
        killed = states // KILLED_PER_STATES
        self._try(moments, model, ledger, states - killed * STATES_AFTER_KILL, killed)

    def _record(self, duty: Duty) -> list[Moment]:
        command = [sys.executable, "-m", "tests.crash.program", os.fspath(self._root)]
        moments = record(command, frame(duty), self._folder / "calls", ROOT)
        self.report.calls += len(moments) // 2
        # A link has the same inode as the file, so that the folder never counts as copied.
        self._identity = self._folder / f"identity-{self.report.calls}"
        os.link(self._root / "identity", self._identity)
        return moments

    def _try(
        self, moments: list[Moment], model: DiskModel, ledger: Ledger, states: int, killed: int
    ) -> None:
        """Walk over the calls, and stop here and there."""
        groups = _groups(moments, copy.deepcopy(model))
        said = next(place for place, moment in enumerate(moments) if _is_saying(moment))
        opening = states // OPENING_SHARE
        stops = Counter(_sample(_within(groups, 0, said), opening, self._chance))
        serving = _within(groups, said, len(moments))
        stops.update(_sample(serving, states - opening, self._chance))
        kills = self._kills(groups, killed)
        killed_at: list[tuple[DiskModel, Ledger]] = []
        for place, moment in enumerate(moments):
            if _is_saying(moment):
                # What is being said has been answered before.
                for event in events_in(b"".join(moment.call.strings)):
                    ledger.hear(event)
            model.take(moment)
            for _ in range(stops[place]):
                kind, choice = chooser(self._chance)
                label = f"call {place // 2}, {_shown(moment)}; {kind}, {model.pending()} pending"
                self.report.choices[kind] += 1
                self._check(model.state(choice), copy.deepcopy(ledger), label)
            for _ in range(kills[place]):
                killed_at.append((copy.deepcopy(model), copy.deepcopy(ledger)))
        for model_then, ledger_then in killed_at:
            self._kill(model_then, ledger_then)

    def _kills(self, groups: dict[str, list[int]], killed: int) -> Counter[int]:
        """Where something was written and not synced; a record of the log is the first choice."""
        writing = ("after write", "after pwrite", "after rename")
        unsynced = {name: places for name, places in groups.items() if name.startswith(writing)}
        records = {name: places for name, places in unsynced.items() if name.endswith(RECORDS)}
        half = killed - killed // 2
        kills = Counter(_sample(records, half, self._chance))
        kills.update(_sample(unsynced, killed // 2, self._chance))
        return kills

    def _kill(self, model: DiskModel, ledger: Ledger) -> None:
        """The process is killed here; another one opens the folder, and then the power goes."""
        duty = ledger.end_life(seed=self._seed)
        duty.operations = OPERATIONS_AFTER
        model.forget_process()
        self._write(model.cached())
        before, identity = self.report.states, self._identity
        moments = self._record(duty)
        self._try(moments, model, ledger, STATES_AFTER_KILL, 0)
        self._identity = identity
        self.report.states_after_kill += self.report.states - before

    def _check(self, state: State, ledger: Ledger, label: str) -> None:
        """Open a state, do again what is unknown, work on, close, and look once more.

        Before and after, `millrace check` must find nothing.
        """
        self.report.states += 1
        if time.monotonic() - self._told > PROGRESS_SECONDS:
            self._told = time.monotonic()
            self._say(f"{self.report.states} states: {label}")
        self._write(state)
        told = len(ledger.findings.told)
        try:
            if "index/data.mdb" in state:
                # What a crash leaves is not damage.
                self._must_be_in_order()
            for operations in (OPERATIONS_AFTER, 1):
                duty = ledger.end_life(seed=self._seed + self.report.states)
                duty.operations = operations
                live(self._root, duty, ledger)
            self._must_be_in_order()
        except Failed as error:
            self.report.broken.append(f"{label}: {error}")
            self._say(self.report.broken[-1])
            self._keep(state)
        for text in ledger.findings.told[told:]:
            self._say(f"{label}: {text}")
        if ledger.findings:
            self._keep(state)
        self.report.findings.counts += ledger.findings.counts
        self.report.findings.told += ledger.findings.told

    def _must_be_in_order(self) -> None:
        if findings := check(self._root):
            raise Failed(f"millrace check: {findings}")

    def _write(self, state: State) -> None:
        """Make the folder be as the state says."""
        for path in self._root.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        _put(self._root, state, self._identity)

    def _keep(self, state: State) -> None:
        kept = self._folder / f"state-{self.report.states}"
        kept.mkdir()
        _put(kept, state, self._identity)


def _put(root: Path, state: State, identity: Path) -> None:
    for name, content in state.items():
        path = root / name
        if content is None:
            path.mkdir()
        elif name == "identity":
            os.link(identity, path)
        else:
            path.write_bytes(content)


def _groups(moments: list[Moment], model: DiskModel) -> dict[str, list[int]]:
    """Places between calls, by what happens there: which call, of which kind of file."""
    groups: dict[str, list[int]] = defaultdict(list)
    for place, moment in enumerate(moments):
        call = moment.call
        path = model.touched(call)
        model.take(moment)
        if path and call.name not in SILENT:
            end = "after" if moment.is_end else "in"
            groups[f"{end} {call.name} of {_kind(path)}"].append(place)
    return groups


def _within(groups: dict[str, list[int]], low: int, high: int) -> dict[str, list[int]]:
    """Those places that lie within these."""
    found = {
        name: [place for place in places if low <= place < high] for name, places in groups.items()
    }
    return {name: places for name, places in found.items() if places}


def _is_saying(moment: Moment) -> bool:
    """Whether the program begins to tell the ledger something."""
    call = moment.call
    return not moment.is_end and call.name == "write" and call.numbers[0] == "1"


def _kind(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/*{Path(name).suffix}" if folder else name


def _sample(groups: dict[str, list[int]], count: int, chance: random.Random) -> list[int]:
    """So many places, from every group in turn."""
    turns = [places for _, places in sorted(groups.items())]
    chance.shuffle(turns)
    return [chance.choice(places) for places in islice(cycle(turns), count)]


def _shown(moment: Moment) -> str:
    call: Call = moment.call
    return f"{'after' if moment.is_end else 'in'} {call.name}"


def main() -> int:
    """Run as the command line says; print what was found at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=400)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--folder", type=Path, help="where to work; not kept")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="millrace-states-", dir=arguments.folder))
    print(f"seed {arguments.seed}, folder {folder}", flush=True)
    began = time.monotonic()
    explorer = Explorer(folder, arguments.seed, lambda text: print(text, flush=True))
    try:
        report = explorer.explore(arguments.states)
    except NoTrace as error:
        print(f"skipped: {error}")
        return 0
    is_bad = bool(report.broken or report.findings)
    if is_bad:
        print(f"the folder was kept: {folder}")
    else:
        shutil.rmtree(folder)
    print(f"in {time.monotonic() - began:.0f} s: {report.line()}")
    return 1 if is_bad else 0


if __name__ == "__main__":
    spare_pandas()
    sys.exit(main())
