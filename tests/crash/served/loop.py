"""Kills a server again and again, while clients in other processes go on by themselves.

`python -m tests.crash.served.loop --kills 30 [--seed 7]`: so many kills of the engine of one
process, of the engine behind two front ends, and of the front ends. Whoever is killed is started
again at once: the engine here, as systemd would, a front end by its crew. Now and then all clients
rest, and everything is looked at; at the end it is drained and looked at once more.

The seed fixes what is done and when something is killed, but not what the machine makes of it.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.crash.loop import Broken
from tests.crash.served.crowd import Crowd
from tests.crash.served.events import Order
from tests.crash.served.hearing import Hearing
from tests.crash.served.scene import CLIENTS, CONFIG
from tests.server.server_process import Process, children
from tests.support.timeouts import scaled

ROUND_KILLS = 3
"""So many kills, and everything is looked at."""

WORK_SECONDS = 1.5
"""Between two kills there is up to this time."""

OPENING_SECONDS = 1.0
"""A server that is to be killed while it starts is killed within this time."""

OPENING_PER_CENT = 15
"""So many of a hundred are killed while they start."""

BACK_SECONDS_MAX = scaled(60)
"""A front end that was killed is there again by then."""


@dataclass(frozen=True, slots=True)
class Kills:
    """How many of each kind."""

    engine: int = 0
    frontend: int = 0


class Stage:
    """A server that is killed and started again."""

    def __init__(self, folder: Path, frontends: int) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._frontends = frontends
        (folder / "millrace.toml").write_text(CONFIG)
        self._errors = (folder / "stderr").open("ab")
        self._server: Process | None = None
        self.port = 0

    @property
    def server(self) -> Process:
        """The one that runs."""
        assert self._server is not None
        return self._server

    def begin(self) -> Process:
        """Start it; it may not serve yet."""
        options = ("--config", self._folder / "millrace.toml", "--frontends", self._frontends)
        self._server = Process(
            self._folder / "data",
            *("--listen", f"127.0.0.1:{self.port}", *options),
            errors=self._errors,
        )
        return self._server

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.begin().__enter__()
        self.port = self.server.port

    def kill_engine(self, chance: random.Random) -> int:
        """Kill the engine's process, sometimes the next ones, too, and start it; returns kills."""
        self.server.close()
        kills = 1
        while chance.random() * 100 < OPENING_PER_CENT:
            server = self.begin()
            time.sleep(chance.random() * OPENING_SECONDS)
            server.close()
            kills += 1
        self.start()
        return kills

    def kill_frontend(self, chance: random.Random) -> None:
        """Kill a front end, if it is there; its crew starts it again."""
        deadline = time.monotonic() + BACK_SECONDS_MAX
        while not (there := children(self.server.pid)):
            if time.monotonic() > deadline:
                raise Broken("no front end is started again")
            time.sleep(0.02)
        os.kill(chance.choice(there), signal.SIGKILL)

    def stop(self) -> None:
        """End it as it should be ended."""
        code = self.server.stop()
        if code:
            raise Broken(f"the server ended with {code}: {self.said()}")

    def said(self) -> str:
        """The last that it wrote."""
        return (self._folder / "stderr").read_text(errors="replace")[-4_000:]

    def close(self) -> None:
        """Kill it if it is there."""
        if self._server is not None:
            self._server.close()
        self._errors.close()


def run(
    kills: Kills,
    seed: int,
    folder: Path,
    say: Callable[[str], None] = lambda line: None,
    *,
    frontends: int = 0,
    work_seconds: float = WORK_SECONDS,
) -> Hearing:
    """Kill so often; the hearing says what the ledger found.

    Raises:
        Broken: the server hung or ended by itself, or a client did.
    """
    chance = random.Random(seed)
    plan = ["engine"] * kills.engine + ["frontend"] * kills.frontend
    chance.shuffle(plan)
    stage = Stage(folder, frontends)
    try:
        stage.start()
        with (
            tempfile.TemporaryFile() as errors,
            Hearing() as hearing,
            Crowd(CLIENTS, seed, stage, hearing, errors) as crowd,
        ):
            crowd.tell(Order("play"))
            for number, kind in enumerate(plan, 1):
                time.sleep(chance.random() * work_seconds)
                hearing.killed()
                if kind == "engine":
                    hearing.counts["engines killed"] += stage.kill_engine(chance)
                else:
                    stage.kill_frontend(chance)
                    hearing.counts["front ends killed"] += 1
                crowd.check()
                if number % ROUND_KILLS == 0:
                    # What they began before the kill, they end after it.
                    crowd.look(seed)
                    say(f"kill {number} of {len(plan)}: {hearing.summary()}")
                    if hearing.findings:
                        return hearing
                    crowd.tell(Order("play"))
            crowd.rest("drain")
            crowd.look(seed)
        stage.stop()
    except Broken as error:
        raise Broken(f"{error}\n{stage.said()}") from error
    finally:
        stage.close()
    return hearing


def main() -> int:
    """Run as the command line says; print the counts of the ledger at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="of each kind")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    arguments = parser.parse_args()
    count, bad = arguments.kills, 0
    for name, frontends, kills in (
        ("one process", 0, Kills(engine=count)),
        ("two front ends", 2, Kills(engine=count, frontend=count)),
    ):
        folder = Path(tempfile.mkdtemp(prefix="millrace-crash-"))
        print(f"{name}: seed {arguments.seed}, folder {folder}", flush=True)
        began = time.monotonic()
        try:
            hearing = run(
                kills,
                arguments.seed,
                folder,
                lambda line: print(line, flush=True),
                frontends=frontends,
            )
        except Broken as error:
            print(f"{error}\nthe folder was kept: {folder}")
            return 1
        print(f"{name}, {time.monotonic() - began:.0f} s: {hearing.summary()}")
        if hearing.findings:
            bad = 1
            print("\n".join(hearing.findings.told))
            print(f"the folder was kept: {folder}")
        else:
            shutil.rmtree(folder)
    return bad


if __name__ == "__main__":
    sys.exit(main())
