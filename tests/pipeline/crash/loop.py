"""Kill what carries rows at random moments, delete what it would go on from, and count.

Three pipelines run in one driver: `orders`, a keyed queue with deletes, in small spans; `events`, a
log whose rows are only added; `pairs`, a keyed queue whose messages come two at a time, in one
transaction, over two shards. Each round publishes, starts a driver, kills something, and mostly
deletes the cursors. After each round no sink may show half a pair; in the end every sink must have
every row once, and `verify` must say so.

What is killed: the driver, after some spans or in the midst of one; the server, while the driver
goes on; a Python worker of Spark's, or an executor of a cluster. A zombie is a driver that is
stopped, overtaken by one that finishes, and woken up: it must change nothing.

    python -m tests.pipeline.crash.loop --rounds 50 --seed 1 [--sinks all] [--server] [--spark]
        [--cluster] [--kills driver,zombie]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from millrace import Message, sync
from millrace.pipeline import Setting, Where, read_pipeline, run_pipeline, verify_pipeline
from tests.pipeline.crash.driver import STALE
from tests.pipeline.crash.places import (
    EARLY,
    KINDS,
    LIGHT,
    STEP,
    Pair,
    declare,
    make_empty,
    rows_of,
    serving,
)
from tests.pipeline.crash.victim import ROOT, Driver, Folder, Served
from tests.services.service import wait_until
from tests.services.spark_cluster import Cluster

KEYS = 20
NAMES = ("orders", "events", "pairs")

STEPS = """
[steps.same]
sql = "SELECT {columns} FROM source"
[spark]
"spark.driver.memory" = "1g"
"spark.driver.host" = "127.0.0.1"
"spark.log.level" = "OFF"
"spark.sql.shuffle.partitions" = "2"
"spark.master" = "{master}"
"""

ON_CLUSTER = """
"spark.executor.memory" = "512m"
"spark.executor.cores" = "1"
"spark.cores.max" = "2"
"spark.executorEnv.MILLRACE_TOKEN_FILE" = "{token_file}"
"spark.executorEnv.PYTHONPATH" = "{paths}"
"""

_BESIDE = ("worker", "executor")
"""Kills of what Spark has started."""

Contents = dict[tuple[str, str], list[Pair]]
"""What is in each sink of each pipeline."""


class Scene:
    """Queues, sinks, and what should be in them."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        home: Folder | Served,
        *,
        kinds: Sequence[str] = LIGHT,
        servers: Mapping[str, str] = {},
        spark: bool = False,
        cluster: Cluster | None = None,
        kills: Sequence[str] = ("driver",),
    ) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._home = home
        self._spark = spark
        self._cluster = cluster
        self._kills = kills
        self._live: dict[str, str] = {}
        self._events = 0
        self._pairs: dict[str, str] = {}
        self._files = {name: folder / f"{name}.toml" for name in NAMES}
        # A span through Spark takes much longer.
        limits = {"orders": 20, "events": 25, "pairs": 0} if spark else {"orders": 5, "events": 7}
        for name, path in self._files.items():
            limit = limits.get(name, 0)
            source = f'[source]\nqueue = "{name}"\nlimit = {{ rows = {limit} }}'
            head = f'name = "{name}"\n{source}\n{self._steps()}'
            view = "same" if spark else "source"
            keyed = name != "events"
            declare(path, kinds, home, servers, head=head, view=view, keyed=keyed)
            make_empty(path, steps=spark)
        m = home.m
        m.queue("orders", keyed=True, retention="log", shards=2, keep_deletes=3600)
        m.queue("events", retention="log")
        m.queue("pairs", keyed=True, retention="log", shards=2, keep_deletes=3600)

    def _steps(self) -> str:
        if not self._spark:
            return ""
        if self._cluster is None:
            return STEPS.format(master="local[2,4]", columns=", ".join(STEP))
        words = {
            "token_file": os.environ["MILLRACE_TOKEN_FILE"],
            "paths": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        }
        steps = STEPS.format(master=self._cluster.url, columns=", ".join(STEP))
        return steps + ON_CLUSTER.format(**words)

    def run(self, rounds: int) -> Counter[str]:
        """All rounds, and the judgement; returns how many there were of each kind."""
        done: Counter[str] = Counter()
        for number in range(rounds):
            kill = self._kills[number % len(self._kills)]
            self._publish()
            told = self._zombie() if kill == "zombie" else self._kill(kill)
            self._see_whole_pairs()
            deleted = self._delete()
            done[kill] += 1
            print(f"round {number}: {kill}: {told}, deleted {deleted}", flush=True)
        self._publish()
        self._judge()
        return done

    # --- What is published ------------------------------------------------------------------------

    def _publish(self) -> None:
        m, orders = self._home.m, list[Message]()
        for _ in range(self._chance.randint(30, 60)):
            key = f"k{self._chance.randrange(KEYS)}"
            body = None if self._chance.random() < 0.2 else str(self._chance.getrandbits(60))
            orders.append(Message(encoded(body), key))
            if body is None:
                self._live.pop(key, None)
            else:
                self._live[key] = body
        m.find("orders").publish_many(orders)
        count = self._chance.randint(40, 70)
        m.find("events").publish_many([b"%d" % (self._events + at) for at in range(count)])
        self._events += count
        for _ in range(self._chance.randint(3, 6)):
            self._publish_pair(m)

    def _publish_pair(self, m: sync.Millrace) -> None:
        name = f"p{self._chance.randrange(KEYS)}"
        body = None if self._chance.random() < 0.2 else str(self._chance.getrandbits(60))
        with m.transaction() as transaction:
            for half in "ab":
                transaction.publish("pairs", encoded(body), key=f"{name}{half}")
        if body is None:
            self._pairs.pop(name, None)
        else:
            self._pairs[name] = body

    def _delete(self) -> list[str]:
        """Delete cursors: what a run goes on from beside its sinks."""
        deleted: list[str] = []
        for name in NAMES:
            queue = self._home.m.find(name)
            if self._chance.random() < 0.5 and name in queue.cursors():
                queue.cursor(name, retain=True).delete()
                deleted.append(name)
        return deleted

    # --- What is killed ---------------------------------------------------------------------------

    def _driver(self, *options: str, kind: str = "") -> Driver:
        # Few rows go through no worker of Python's: there would be none to kill.
        if self._spark and (self._chance.random() < 0.7 or kind in _BESIDE):
            options = (*options, "--executors")
        arguments = [self._home.place, *self._files.values(), *options]
        return Driver("tests.pipeline.crash.driver", arguments, self._folder / "driver.log")

    def _spans(self, driver: Driver, count: int) -> None:
        """Wait for so many spans."""
        for _ in range(count):
            line = driver.line()
            if line not in NAMES:
                said = line or "it ended by itself"
                raise AssertionError(f"a driver: {said}; the end of its log:\n{driver.log()}")

    def _kill(self, kind: str) -> str:
        """Start a driver, kill something beside it, and the driver in the end.

        There are always more spans to come than it is let do.
        """
        most = 3 if self._spark else 9
        # Who starts Spark's workers is never started again where it dies before it is ready.
        spans = self._chance.randint(1 if kind in _BESIDE else 0, most)
        with self._driver(kind=kind) as driver:
            self._spans(driver, spans)
            told = f"the driver after {spans} spans"
            if kind != "driver":
                count = self._chance.randint(1, 3)
                told = f"{count} times after {spans} spans"
                for _ in range(count):
                    driver.run_for(self._chance.random() * (3 if self._spark else 0.3))
                    self._kill_beside(kind, driver)
                    self._publish()
                    self._spans(driver, self._chance.randint(1, most))
            if self._chance.random() < 0.5:
                # Into the midst of what comes next; how far it is then does not matter.
                driver.run_for(self._chance.random() * (2 if self._spark else 0.05))
            driver.kill(alone=self._chance.random() < 0.5)
        return told

    def _kill_beside(self, kind: str, driver: Driver) -> None:
        if kind == "server":
            assert isinstance(self._home, Served)
            self._home.restart()
        elif kind == "worker":
            wait_until(lambda: bool(driver.workers()) or not driver.is_alive)
            assert driver.is_alive, driver.log()
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(driver.workers()), signal.SIGKILL)
        elif kind == "executor":
            cluster = self._cluster
            assert cluster is not None
            wait_until(lambda: bool(cluster.executors()))
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(cluster.executors()), signal.SIGKILL)
        else:
            raise AssertionError(f"there is no kill {kind!r}")

    def _zombie(self) -> str:
        """Stop a driver, have another one finish, wake it up: it changes nothing, and ends."""
        with self._driver() as zombie:
            seen: set[str] = set()
            while seen != set(NAMES):
                line = zombie.line()
                assert line in NAMES, f"a driver: {line}; the end of its log:\n{zombie.log()}"
                seen.add(line)
            self._publish()
            self._stop(zombie)
            self._delete()
            self._publish()
            with self._driver("--once") as successor:
                while line := successor.line():
                    assert line in NAMES, line
                assert successor.wait() == 0, successor.log()
            before = self._contents()
            zombie.signal(signal.SIGCONT)
            # So that all of its pipelines have something to do, wherever they were.
            self._publish()
            ended: list[str] = []
            while line := zombie.line():
                if line.startswith(STALE):
                    ended.append(line.split()[1])
            assert sorted(ended) == sorted(NAMES), f"it went on: {ended}\n{zombie.log()}"
            assert zombie.wait() == 0, zombie.log()
        after = self._contents()
        for place, rows in before.items():
            assert after[place] == rows, f"a zombie has changed {place}"
        return f"woken after {len(before)} sinks were filled by another"

    def _stop(self, driver: Driver) -> None:
        """Stop it at some moment, but not where it has locked a file of SQLite: nobody could take
        over then, before it was dead."""
        while True:
            driver.run_for(self._chance.random() * (2 if self._spark else 0.3))
            driver.signal(signal.SIGSTOP)
            files = [*self._folder.glob("*.db"), *self._folder.glob("*/catalog.db")]
            if not any(is_locked(file) for file in files):
                return
            driver.signal(signal.SIGCONT)

    # --- What is in the sinks ---------------------------------------------------------------------

    def _contents(self) -> Contents:
        return {
            (name, kind): rows for name, file in self._files.items() for kind, rows in rows_of(file)
        }

    def _see_whole_pairs(self) -> None:
        """No sink shows the one half of a transaction without the other."""
        for kind, rows in rows_of(self._files["pairs"]):
            if kind not in EARLY:
                firsts = [(key[:-1], value) for key, value in rows if key.endswith("a")]
                seconds = [(key[:-1], value) for key, value in rows if key.endswith("b")]
                assert firsts == seconds, f"{kind} shows half a transaction"

    def _judge(self) -> None:
        where = Where(path=self._home.place)
        if isinstance(self._home, Served):
            where = Where(url=self._home.place, token=os.environ["MILLRACE_TOKEN"])
        setting = Setting(millrace=self._home.m, where=where)
        for file in self._files.values():
            pipeline = read_pipeline(file, os.environ)
            run_pipeline(pipeline, setting, once=True)
            for found in verify_pipeline(pipeline, setting):
                assert found.is_right, found
                assert found.method == "rows", found
        orders: list[Pair] = sorted(self._live.items(), key=str)
        events: list[Pair] = sorted((("", str(at)) for at in range(self._events)), key=str)
        halves = [(f"{name}{half}", body) for name, body in self._pairs.items() for half in "ab"]
        pairs: list[Pair] = sorted(halves, key=str)
        expected = {"orders": orders, "events": events, "pairs": pairs}
        for (name, kind), rows in self._contents().items():
            assert rows == expected[name], f"{name} in {kind}: {len(rows)} rows"
            assert len(rows) == len(set(rows)), f"{name} in {kind} has rows twice"


def encoded(body: str | None) -> bytes | None:
    """A body; none is a delete."""
    return None if body is None else body.encode()


def is_locked(file: Path) -> bool:
    """Whether nobody can write to a database now."""
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as db:
        try:
            db.execute("begin exclusive")
        except sqlite3.OperationalError:
            return True
        db.execute("rollback")
        return False


def options() -> argparse.Namespace:
    """As the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--sinks", default=",".join(LIGHT), help=f"of {', '.join(KINDS)}, or all")
    parser.add_argument("--kills", default="", help="driver, zombie, server, worker, executor")
    parser.add_argument("--server", action="store_true", help="read from a server, and kill it")
    parser.add_argument("--spark", action="store_true", help="with a step, on Spark")
    parser.add_argument("--cluster", action="store_true", help="on a cluster, from a server")
    return parser.parse_args()


def main() -> None:
    """Run it, and say how often what was killed."""
    told = options()
    seed = random.SystemRandom().getrandbits(32) if told.seed is None else told.seed
    kinds = KINDS if told.sinks == "all" else tuple(told.sinks.split(","))
    is_served, is_sparked = told.server or told.cluster, told.spark or told.cluster
    kills = ["driver", "zombie"]
    kills += ["server"] if is_served else []
    kills += ["worker"] if told.spark and not told.cluster else []
    kills += ["executor"] if told.cluster else []
    if told.kills:
        kills = told.kills.split(",")
    print(f"seed {seed}: sinks {', '.join(kinds)}; kills {', '.join(kills)}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        home = Served(folder / "data") if is_served else Folder(folder / "data")
        stack.callback(home.close)
        servers = stack.enter_context(serving(kinds))
        # A driver that is stopped keeps its executors: the one that overtakes it needs some, too.
        cluster = stack.enter_context(Cluster(cores=2)) if told.cluster else None
        scene = Scene(
            folder,
            seed,
            home,
            kinds=kinds,
            servers=servers,
            spark=is_sparked,
            cluster=cluster,
            kills=kills,
        )
        done = scene.run(told.rounds)
    counts = ", ".join(f"{count} of {kind}" for kind, count in done.items())
    print(f"{told.rounds} rounds ({counts}): every sink has every row once")


if __name__ == "__main__":
    main()
