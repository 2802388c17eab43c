"""Kill the driver of a pipeline that keeps a state, and count.

Its batches are logged in Spark's checkpoint, and its sinks have them before Spark has noted that
they are done: a driver says so right after its sinks have a batch, and is killed then, or at any
other moment. In the end every total must be of every row once.

    python -m tests.pipeline.crash.totals --rounds 10 --seed 1
"""

from __future__ import annotations

import random
from pathlib import Path

from millrace.sinks.delta import Delta
from tests.pipeline.crash.alone import alone
from tests.pipeline.crash.victim import Driver, Folder
from tests.pipeline.ledger import Ledger
from tests.pipeline.scene import KIND

BUCKETS = 7

DECLARATION = """
name = "totals"
[source]
queue = "events"
limit = {{ rows = 25 }}
[run]
checkpoint = "{folder}/checkpoint"
[steps.totals]
sql = '''
SELECT cast(cast(value AS string) AS bigint) % {buckets} AS bucket, count(*) AS n,
  sum(cast(cast(value AS string) AS bigint)) AS total
FROM source GROUP BY 1
'''
[sinks.ledger]
from = "totals"
kind = "{ledger}"
path = "{folder}/totals.db"
key = ["bucket"]
[sinks.lake]
from = "totals"
kind = "delta"
path = "{folder}/totals.delta"
mode = "upsert"
key = ["bucket"]
lanes = 1
[spark]
"spark.master" = "local[2,4]"
"spark.driver.memory" = "1g"
"spark.driver.host" = "127.0.0.1"
"spark.log.level" = "OFF"
"spark.sql.shuffle.partitions" = "1"
"""


class Totals:
    """A queue, and the totals of its numbers."""

    def __init__(self, folder: Path, seed: int, home: Folder) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._home = home
        self._queue = home.m.queue("events", retention="log")
        self._count = 0
        self._file = folder / "totals.toml"
        self._file.write_text(DECLARATION.format(folder=folder, ledger=KIND, buckets=BUCKETS))

    def run(self, rounds: int) -> None:
        """All rounds, and the judgement."""
        for number in range(rounds):
            # More batches than it is let do.
            self._publish(150)
            batches = self._chance.randint(0, 3)
            moment = self._chance.choice([0.0, self._chance.random() * 2])
            with self._driver() as driver:
                for _ in range(batches):
                    assert driver.line() == "totals", driver.log()
                if moment or not batches:
                    driver.run_for(moment)
                driver.kill(alone=self._chance.random() < 0.5)
                # Spark's checkpoint is for one at a time.
                driver.await_family()
            print(f"round {number}: killed {moment:.1f} s after {batches} batches", flush=True)
        with self._driver("--once") as driver:
            while driver.line():
                pass
            assert driver.wait() == 0, driver.log()
        self._judge()

    def _publish(self, count: int) -> None:
        self._queue.publish_many([b"%d" % (self._count + at) for at in range(count)])
        self._count += count

    def _driver(self, *options: str) -> Driver:
        arguments = [self._home.place, self._file, *options]
        return Driver("tests.pipeline.crash.driver", arguments, self._folder / "driver.log")

    def _judge(self) -> None:
        expected = []
        for bucket in range(BUCKETS):
            numbers = range(bucket, self._count, BUCKETS)
            expected.append({"bucket": bucket, "n": len(numbers), "total": sum(numbers)})
        columns = ["bucket", "n", "total"]
        lines = Ledger(path=f"{self._folder}/totals.db", key=("bucket",)).lines()
        assert sorted(lines, key=str) == sorted(expected, key=str)
        lake = Delta(path=f"{self._folder}/totals.delta", mode="upsert", key=("bucket",), lanes=1)
        rows = [row for batch in lake.rows(columns) for row in batch.to_pylist()]
        assert sorted(rows, key=str) == sorted(expected, key=str)


def play(folder: Path, seed: int, home: Folder, rounds: int) -> str:
    """All rounds, and what was seen."""
    Totals(folder, seed, home).run(rounds)
    return ": every total is of every row once"


if __name__ == "__main__":
    alone(__doc__, play)
