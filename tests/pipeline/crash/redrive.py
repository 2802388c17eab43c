"""Kill `millrace job redrive` at random moments, run it again, and count.

After each round every letter must be where it died, or where it went, changed, and in one of them
only; in the end all have gone.

    python -m tests.pipeline.crash.redrive --rounds 10 --seed 1
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from millrace import sync
from tests.pipeline.crash.alone import alone
from tests.pipeline.crash.redriver import LOT
from tests.pipeline.crash.victim import Driver, Folder
from tests.services.service import wait_until

QUERY = "SELECT shard, seq, concat('new ', cast(value AS string)) AS value FROM input"


class Letters:
    """Dead letters, and where they go."""

    def __init__(self, folder: Path, seed: int, home: Folder) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._home = home
        self._dead = home.m.queue("dead", shards=2)
        self._live = home.m.queue("live", dead_letter="dead")
        self._back = home.m.queue("back")
        self._count = 0
        os.environ["MILLRACE_DATA"] = home.place

    def run(self, rounds: int) -> Counter[str]:
        """All rounds, and the judgement; returns how many there were of each kind."""
        done: Counter[str] = Counter()
        for number in range(rounds):
            self._bury(self._chance.randint(2, 4) * LOT)
            kind = self._chance.choice(["leased", "staged", "moved"])
            self._kill(kind)
            moved, left = self._see_each_once()
            done[kind] += 1
            print(f"round {number}: killed when {kind}: {moved} moved, {left} left", flush=True)
            self._await_leases()
        with self._driver() as driver:
            while driver.line():
                pass
            assert driver.wait() == 0, driver.log()
        assert self._see_each_once() == (self._count, 0)
        assert not self._back.stages()
        return done

    def _bury(self, count: int) -> None:
        bodies = [b"%d" % (self._count + at) for at in range(count)]
        self._count += count
        self._live.publish_many(bodies)
        self._live.discard(self._live.lease(count))
        while self._dead.stats()["published"] < self._count:
            self._live.lease(1, wait=0.05)

    def _driver(self) -> Driver:
        conf = {"spark.master": "local[2,4]", "spark.driver.memory": "1g", "spark.log.level": "OFF"}
        words = [f"--conf={name}={value}" for name, value in conf.items()]
        arguments = ["job", "redrive", "dead", "--to", "back", "--sql", QUERY, *words]
        log = self._folder / "driver.log"
        return Driver("tests.pipeline.crash.redriver", arguments, log)

    def _kill(self, kind: str) -> None:
        before = self._back.stats()["published"]
        seen: dict[str, Callable[[], bool]] = {
            "leased": self._is_leased,
            "staged": lambda: bool(self._back.stages()),
            "moved": lambda: self._back.stats()["published"] > before,
        }
        with self._driver() as driver:
            wait_until(lambda: seen[kind]() or not driver.is_alive)
            assert driver.is_alive, f"it ended by itself:\n{driver.log()}"
            if self._chance.random() < 0.5:
                driver.run_for(self._chance.random())
            driver.kill(alone=self._chance.random() < 0.5)

    def _await_leases(self) -> None:
        """What the dead one held comes back when its time is over."""
        wait_until(lambda: not self._is_leased())

    def _is_leased(self) -> bool:
        with self._dead.snapshot() as snapshot:
            seqs = [row.seq for row in snapshot.rows()]
        return any(self._dead.explain(seq).state == "leased" for seq in seqs)

    def _see_each_once(self) -> tuple[int, int]:
        """Every letter is in one of the queues; returns how many in each."""
        moved = [body.removeprefix(b"new ") for body in bodies(self._back)]
        left = bodies(self._dead)
        assert all(body.startswith(b"new ") for body in bodies(self._back))
        found = sorted(int(body) for body in moved + left)
        assert found == list(range(self._count)), f"{len(found)} of {self._count} letters"
        return len(moved), len(left)


def bodies(queue: sync.Queue) -> list[bytes]:
    """What is in a queue, leased or not."""
    with queue.snapshot() as snapshot:
        return [row.body or b"" for row in snapshot.rows()]


def play(folder: Path, seed: int, home: Folder, rounds: int) -> str:
    """All rounds, and what was seen."""
    done = Letters(folder, seed, home).run(rounds)
    counts = ", ".join(f"{count} when {kind}" for kind, count in done.items())
    return f" ({counts}): every letter went once"


if __name__ == "__main__":
    alone(__doc__, play)
