"""Kill the driver of a query that writes into a queue, right after its commits, and count.

Spark has not noted yet that a batch is done which the queue has: it does the batch again, or, where
the checkpoint was deleted too, begins anew. After each round the rows must be the first ones of the
source, each once; in the end all of them.

    python -m tests.pipeline.crash.stream --rounds 10 --seed 1
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

from millrace import sync
from tests.pipeline.crash.alone import alone
from tests.pipeline.crash.stream_driver import ROWS
from tests.pipeline.crash.victim import Driver, Folder

_MODULE = "tests.pipeline.crash.stream_driver"


class Stream:
    """Two queues, and the query between them."""

    def __init__(self, folder: Path, seed: int, home: Folder) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._home = home
        self._source = home.m.queue("in", retention="log")
        self._target = home.m.queue("out")
        self._checkpoint = folder / "checkpoint"
        self._count = 0

    def run(self, rounds: int) -> Counter[str]:
        """All rounds, and the judgement; returns how many there were of each kind."""
        done: Counter[str] = Counter()
        for number in range(rounds):
            self._publish(self._chance.randint(5, 8) * ROWS)
            commits = self._chance.randint(1, 3)
            moment = self._chance.choice([0.0, 0.0, self._chance.random() * 0.5])
            self._kill(commits, moment)
            kind = "right after a commit" if not moment else "some time after a commit"
            seen = self._see_first_ones()
            is_deleted = self._chance.random() < 0.5
            if is_deleted:
                shutil.rmtree(self._checkpoint)
            done[kind] += 1
            what = "deleted" if is_deleted else "kept"
            print(
                f"round {number}: killed {kind} ({commits}), {seen} rows, checkpoint {what}",
                flush=True,
            )
        with self._driver("once") as driver:
            driver.line()
            assert driver.line() == ""
            assert driver.wait() == 0, driver.log()
        assert self._see_first_ones() == self._count
        assert not self._target.stages()
        return done

    def _publish(self, count: int) -> None:
        self._source.publish_many([b"%d" % (self._count + at) for at in range(count)])
        self._count += count

    def _driver(self, *options: str) -> Driver:
        arguments = [self._home.place, self._checkpoint, *options]
        return Driver(_MODULE, arguments, self._folder / "driver.log")

    def _kill(self, commits: int, moment: float) -> None:
        """Kill it as soon as so many commits were seen; more are to come."""
        cursor = self._target.cursor("watch")
        with self._driver() as driver:
            assert driver.line() == "begun", driver.log()
            for _ in range(commits):
                self._await_commit(cursor, driver)
            if moment:
                driver.run_for(moment)
            driver.kill(alone=self._chance.random() < 0.5)
            # Whoever is left may write to the checkpoint still.
            driver.await_family()

    def _await_commit(self, cursor: sync.Cursor, driver: Driver) -> None:
        while True:
            snapshot = cursor.next(wait=5)
            if snapshot is not None:
                assert (snapshot.boundary - snapshot.after) % ROWS == 0, "half a batch is seen"
                snapshot.commit()
                return
            assert driver.is_alive, f"it ended by itself:\n{driver.log()}"

    def _see_first_ones(self) -> int:
        """The rows are the first ones of the source, each once; returns how many."""
        with self._target.snapshot() as snapshot:
            values = [int(row.body or b"") for row in snapshot.rows()]
        assert sorted(values) == list(range(len(values)))
        return len(values)


def play(folder: Path, seed: int, home: Folder, rounds: int) -> str:
    """All rounds, and what was seen."""
    done = Stream(folder, seed, home).run(rounds)
    counts = ", ".join(f"{count} {kind}" for kind, count in done.items())
    return f" ({counts}): the queue has every row once"


if __name__ == "__main__":
    alone(__doc__, play)
