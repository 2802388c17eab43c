"""Kill drivers at random moments, delete their cursors at random, and count what is in the sinks.

Each round publishes to two queues, starts a driver, kills it after some spans, and mostly deletes
something that it would go on from. In the end every sink must have every row once.

    python -m tests.pipeline.crash.loop --rounds 50 --seed 1 [--spark]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from millrace import Message, Settings, sync
from millrace.pipeline import Pipeline, Setting, Where, read_pipeline, run_pipeline, verify_pipeline
from millrace.sinks.delta import Delta
from millrace.sinks.parquet import Parquet
from tests.pipeline.ledger import Ledger
from tests.pipeline.scene import KIND

ROOT = Path(__file__).resolve().parents[3]
KEYS = 20

KEYED = """
name = "orders"
[source]
queue = "orders"
limit = {{ rows = 5 }}
{steps}
[sinks.ledger]
from = "{view}"
kind = "{kind}"
path = "{folder}/orders.db"
key = ["key"]
[sinks.lake]
from = "{view}"
kind = "delta"
path = "{folder}/orders"
mode = "upsert"
key = ["key"]
lanes = 2
"""

LOGGED = """
name = "events"
[source]
queue = "events"
limit = {{ rows = 7 }}
{steps}
[sinks.ledger]
from = "{view}"
kind = "{kind}"
path = "{folder}/events.db"
[sinks.files]
from = "{view}"
kind = "parquet"
path = "{folder}/files"
[sinks.lake]
from = "{view}"
kind = "delta"
path = "{folder}/events"
"""

STEPS = """
[steps.same]
sql = "SELECT shard, seq, key, value, op FROM source"
[spark]
"spark.master" = "local[1]"
"spark.driver.memory" = "1g"
"spark.log.level" = "OFF"
"""


class Scene:
    """Queues, sinks, and what should be in them."""

    def __init__(self, folder: Path, seed: int, *, spark: bool) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._chance = random.Random(seed)
        self._live: dict[str, bytes] = {}
        self._events = 0
        words = {"folder": folder, "kind": KIND}
        words |= {"steps": STEPS, "view": "same"} if spark else {"steps": "", "view": "source"}
        self._files = []
        for name, text in (("orders", KEYED), ("events", LOGGED)):
            path = folder / f"{name}.toml"
            path.write_text(text.format(**words))
            self._files.append(path)

    def run(self, rounds: int) -> None:
        """All rounds, and the judgement."""
        settings = Settings(segment_bytes=4 * 1024 * 1024)
        with sync.open(self._data, settings=settings) as m, sync.share(m):
            m.queue("orders", keyed=True, retention="log", shards=2, keep_deletes=3600)
            m.queue("events", retention="log")
            for number in range(rounds):
                self._publish(m)
                killed = self._kill()
                deleted = self._delete(m)
                print(f"round {number}: killed after {killed} spans, deleted {deleted}")
            self._publish(m)
            self._judge(m)

    def _publish(self, m: sync.Millrace) -> None:
        orders: list[Message] = []
        for _ in range(self._chance.randint(30, 60)):
            key = f"k{self._chance.randrange(KEYS)}"
            body = None if self._chance.random() < 0.2 else b"%d" % self._chance.getrandbits(60)
            orders.append(Message(body, key))
            if body is None:
                self._live.pop(key, None)
            else:
                self._live[key] = body
        m.find("orders").publish_many(orders)
        count = self._chance.randint(40, 70)
        m.find("events").publish_many([b"%d" % (self._events + at) for at in range(count)])
        self._events += count

    def _kill(self) -> int:
        """Start a driver and kill it after some spans, or in the midst of one.

        There are always more of them to come than it is let do.
        """
        spans = self._chance.randint(0, 9)
        with driver(self._data, self._files) as process:
            assert process.stdout is not None
            for _ in range(spans):
                if not process.stdout.readline():
                    raise AssertionError(f"a driver ended by itself: {process.wait()}")
            if self._chance.random() < 0.5:
                # Into the midst of what comes next; how far it is then does not matter.
                with_timeout(process, self._chance.random() * 0.05)
            process.kill()
        return spans

    def _delete(self, m: sync.Millrace) -> list[str]:
        deleted: list[str] = []
        for name in ("orders", "events"):
            queue = m.find(name)
            if self._chance.random() < 0.5 and name in queue.cursors():
                queue.cursor(name, retain=True).delete()
                deleted.append(name)
        return deleted

    def _judge(self, m: sync.Millrace) -> None:
        setting = Setting(millrace=m, where=Where(path=str(self._data)))
        for file in self._files:
            pipeline = read_pipeline(file, os.environ)
            run_pipeline(pipeline, setting, once=True)
            self._verify(pipeline, setting)
        folder = self._folder
        live = {key: body.decode() for key, body in self._live.items()}
        ledger = Ledger(path=f"{folder}/orders.db", key=("key",)).lines()
        assert {line["key"]: line["value"] for line in ledger} == live
        lake = Delta(path=f"{folder}/orders", mode="upsert", key=("key",), lanes=2)
        found = rows(lake.rows(["key", "value"]))
        assert len(found) == len(live)
        assert {key.decode(): value.decode() for key, value in found} == live
        expected = sorted(b"%d" % at for at in range(self._events))
        added = [line["value"] for line in Ledger(path=f"{folder}/events.db").lines()]
        assert sorted(str(value).encode() for value in added) == expected
        for sink in (Parquet(path=f"{folder}/files"), Delta(path=f"{folder}/events")):
            assert sorted(value for (value,) in rows(sink.rows(["value"]))) == expected

    def _verify(self, pipeline: Pipeline, setting: Setting) -> None:
        for found in verify_pipeline(pipeline, setting):
            assert found.is_right, found
            assert found.method == "rows", found


def rows(batches: Iterator[pa.RecordBatch]) -> list[tuple[bytes, ...]]:
    """The rows of a sink."""
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def with_timeout(process: subprocess.Popen[str], seconds: float) -> None:
    """Let it run for a moment."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


@contextmanager
def driver(data: Path, files: Sequence[Path]) -> Iterator[subprocess.Popen[str]]:
    """A driver, which is dead at the end."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "tests.pipeline.crash.driver", str(data)]
        + [str(file) for file in files],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def main() -> None:
    """As the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--spark", action="store_true", help="with a step, on Spark")
    told = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if told.seed is None else told.seed
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        Scene(Path(folder), seed, spark=told.spark).run(told.rounds)
    print(f"{told.rounds} rounds: every sink has every row once")


if __name__ == "__main__":
    main()
