"""Kills the engine again and again, and compares what is left with a ledger outside it.

`python -m tests.crash.loop --cycles 300 [--seed 7]`. In every cycle a process opens the folder,
shows all queues to the ledger, works, and is killed at a random moment, sometimes while it still
opens. At the end everything is drained, closed, opened and looked at once more.

The seed fixes what is done and when a process is killed, but not what the machine makes of it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import secrets
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.crash.events import AnyEvent, Closed, Duty, Serving, events_in, frame, whole_bytes
from tests.crash.ledger import Ledger
from tests.crash.scene import QUEUES
from tests.support.timeouts import scaled

ROOT = Path(__file__).resolve().parents[2]

OPEN_SECONDS_MAX = scaled(30)
"""An engine that does not serve by then is taken to hang."""

LAST_SECONDS_MAX = scaled(60)
"""The last lives drain everything."""

WORK_SECONDS = 1.5
"""A process works for up to this time before it is killed; most are killed much sooner."""

OPENING_SECONDS = 0.12
"""A process that is to be killed while it opens is killed within this time."""

OPENING_PER_CENT = 12
"""So many of a hundred are killed while they open."""

PIPE_BYTES = 1 << 20
"""The ledger may fall behind by this much before the program has to wait for it."""

PROGRESS_SECONDS = 10.0


class Broken(Exception):
    """The engine did not do what it must: it ended by itself, or hung."""


@dataclass(slots=True)
class Plan:
    """When a process is to be killed: so long after it began, or after it serves; or never."""

    opening: float | None = None
    serving: float | None = None


class Process:
    """One process of the program: started ahead, so that it has imported what it needs."""

    def __init__(self, folder: Path, errors: IO[bytes]) -> None:
        self._errors = errors
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.program", os.fspath(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        fcntl.fcntl(self._stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._rest = b""

    def live(self, duty: Duty, plan: Plan, ledger: Ledger) -> bool:
        """Let it live, and the ledger hear it, until it is killed or closes by itself.

        Returns whether it was killed.

        Raises:
            Broken: it ended by itself in another way, or did not serve in time.
        """
        self._stdin.write(frame(duty))
        self._stdin.close()
        began = time.monotonic()
        kill_at = None if plan.opening is None else began + plan.opening
        limit = began + (LAST_SECONDS_MAX if duty.is_last else OPEN_SECONDS_MAX)
        is_closed = is_serving = False
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while True:
                until = limit if kill_at is None else kill_at
                if not selector.select(max(until - time.monotonic(), 0)):
                    break
                data = os.read(self._stdout.fileno(), PIPE_BYTES)
                if not data:
                    self._check_end(is_closed=is_closed)
                    return False
                for event in self._events(data):
                    is_closed = is_closed or isinstance(event, Closed)
                    if isinstance(event, Serving) and not is_serving:
                        is_serving = True
                        if plan.serving is not None:
                            kill_at = time.monotonic() + plan.serving
                    ledger.hear(event)
        self.kill()
        while data := os.read(self._stdout.fileno(), PIPE_BYTES):
            for event in self._events(data):
                ledger.hear(event)
        if kill_at is None:
            raise Broken(f"it did not serve, or did not end, in time\n{self._said()}")
        return True

    def _events(self, data: bytes) -> Iterator[AnyEvent]:
        self._rest += data
        whole = whole_bytes(self._rest)
        ready, self._rest = self._rest[:whole], self._rest[whole:]
        return events_in(ready)

    def kill(self) -> None:
        """End it at once, whatever it does; when this returns, it is no more."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill it, if it lives, and close its pipes."""
        self.kill()
        self._stdin.close()
        self._stdout.close()

    def _check_end(self, *, is_closed: bool) -> None:
        code = self._process.wait()
        if code != 0 or not is_closed:
            raise Broken(f"the program ended with {code}\n{self._said()}")

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-8_000:]


def run(
    cycles: int,
    seed: int,
    folder: Path,
    say: Callable[[str], None] = lambda line: None,
    *,
    work_seconds: float = WORK_SECONDS,
) -> Ledger:
    """Kill the engine so often; the ledger says what it found.

    A process works for up to `work_seconds` before it is killed.

    Raises:
        Broken: the engine ended by itself, or hung.
    """
    chance = random.Random(seed)
    ledger = Ledger(QUEUES)
    duty = Duty(0, seed, [], [], [], [], {})
    told = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        following = Process(folder, errors)
        try:
            for cycle in range(1, cycles + 3):
                process, following = following, Process(folder, errors)
                plan = Plan()
                if cycle <= cycles:
                    plan = _plan(chance, work_seconds)
                else:
                    # One drains and closes; another looks at what a clean end has left.
                    duty.is_last = True
                try:
                    is_killed = process.live(duty, plan, ledger)
                finally:
                    process.close()
                ledger.counts["killed"] += is_killed
                duty = ledger.end_life(seed=seed)
                if time.monotonic() - told > PROGRESS_SECONDS or ledger.findings:
                    told = time.monotonic()
                    say(f"cycle {cycle} of {cycles}: {summary(ledger)}")
                if ledger.findings:
                    break
        finally:
            following.close()
    return ledger


def _plan(chance: random.Random, work_seconds: float) -> Plan:
    if chance.random() * 100 < OPENING_PER_CENT:
        return Plan(opening=chance.random() * OPENING_SECONDS)
    return Plan(serving=chance.random() ** 2 * work_seconds)


def summary(ledger: Ledger) -> str:
    """The counts of the ledger, in one line."""
    counts = ledger.counts
    return (
        f"{counts['attempted']:,} attempted, {counts['acknowledged']:,} acknowledged, "
        f"{counts['settled']:,} settled, {counts['transactions']:,} transactions, "
        f"{counts['shown']:,} followed, {counts['dead letters']:,} dead letters, "
        f"{counts['forwarded']:,} forwarded, {counts['drawn']:,} drawn from pools, "
        f"{counts['unknown']:,} calls unknown, {counts['refused']:,} refused; "
        f"{ledger.findings.line()}"
    )


def main() -> int:
    """Run as the command line says; print the counts of the ledger at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=300)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--folder", type=Path, help="a folder on the disk to be tested; not kept")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="millrace-crash-", dir=arguments.folder))
    print(f"seed {arguments.seed}, folder {folder}", flush=True)
    began = time.monotonic()
    try:
        ledger = run(arguments.cycles, arguments.seed, folder, lambda line: print(line, flush=True))
    except Broken as error:
        print(f"{error}\nthe folder was kept: {folder}")
        return 1
    seconds = time.monotonic() - began
    if ledger.findings:
        print("\n".join(ledger.findings.told))
        print(f"the folder was kept: {folder}")
    else:
        shutil.rmtree(folder)
    print(f"{arguments.cycles} cycles in {seconds:.0f} s: {summary(ledger)}")
    return 1 if ledger.findings else 0


if __name__ == "__main__":
    sys.exit(main())
