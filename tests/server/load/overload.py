"""Three times what a server can do: it says so, holds what it promised, and recovers.

`python -m tests.server.load.overload [--seconds 20]` finds out what a server takes when each client
waits for its answers, once alone and once with two front ends, then offers three times as much,
from many connections, whether it is answered or not. Meanwhile it is asked how it is, and works.
Afterwards a plain request must be answered within half a minute, and all that was acknowledged be
there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import msgspec

from millrace import limits, sync
from tests.server.load.gauge import holding
from tests.server.load.offer import Job, Told
from tests.server.server_process import Process, children

QUEUE = "/v1/spaces/default/queues/load"
WORK = "/v1/spaces/default/queues/work"

TIMES = 3

RECOVERY_SECONDS_MAX = 30.0

AMPLIFIED = 5
"""A body of small messages is held as it came, as JSON objects, as messages, and on its way out."""

PROMPT_SECONDS = 1.0
"""A plain request that takes less is answered promptly."""


@dataclass(slots=True)
class Watch:
    """What was seen while the load went on."""

    memory_bytes: dict[str, int] = field(default_factory=dict)
    """The most that each process held."""
    asked: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def look(self, server: Process, line: HTTPConnection) -> None:
        """Ask once how it is, and have something done, on a connection that is there."""
        for name, pid in [("engine", server.pid), *_frontends(server)]:
            try:
                held = holding(pid).memory_bytes
            except FileNotFoundError:
                continue
            self.memory_bytes[name] = max(self.memory_bytes.get(name, 0), held)
        headers = {"authorization": f"Bearer {server.token}", "content-type": "application/json"}
        self._ask(line, headers, "healthz", "GET", "/healthz", (200,))
        self._ask(line, headers, "readyz", "GET", "/readyz", (200, 503))
        self._ask(line, headers, "work", "POST", f"{WORK}/leases", (200, 429, 503))

    def _ask(
        self,
        line: HTTPConnection,
        headers: dict[str, str],
        name: str,
        method: str,
        path: str,
        allowed: tuple[int, ...],
    ) -> None:
        began = time.monotonic()
        line.request(method, path, "{}" if method == "POST" else None, headers)
        answer = line.getresponse()
        body = answer.read()
        took = time.monotonic() - began
        self.asked[f"{name} {answer.status}"] += 1
        self.slowest[name] = max(self.slowest.get(name, 0), took)
        if answer.status not in allowed:
            self.wrong.append(f"{path}: {answer.status} {body!r}")
        elif answer.status in (429, 503) and answer.getheader("retry-after") is None:
            self.wrong.append(f"{path}: {answer.status} does not say when to come again")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an overload."""

    capacity: float
    """Messages a second that were taken when everybody waited for answers."""
    told: list[Told]
    watch: Watch
    recovery_seconds: float
    lost: int
    """Requests that were acknowledged, and whose messages are not there, or not once each."""
    there: int
    """Messages that are there."""
    memory_bytes_max: dict[str, int]
    """What each process was allowed to hold."""

    def faults(self) -> list[str]:
        """What is not as it should be."""
        found = [*self.watch.wrong]
        for told in self.told:
            found += told.unheard[:3]
            if told.hung:
                found.append(f"{told.hung} requests were never answered")
        if self.lost:
            found.append(f"{self.lost} acknowledged requests are not there, or not once")
        if self.recovery_seconds > RECOVERY_SECONDS_MAX:
            found.append(f"it took {self.recovery_seconds:.1f} s to recover")
        for name, held in self.watch.memory_bytes.items():
            most = self.memory_bytes_max[name]
            if held > most:
                found.append(f"{name} held {held / 1e6:.0f} MB, and {most / 1e6:.0f} were allowed")
        return found

    def report(self) -> str:
        """In words."""
        statuses = sum((Counter(told.statuses) for told in self.told), Counter[int]())
        taken = sum(len(told.acknowledged) for told in self.told)
        memory = ", ".join(
            f"{name} {held / 1e6:.0f} of {self.memory_bytes_max[name] / 1e6:.0f} MB"
            for name, held in self.watch.memory_bytes.items()
        )
        slowest = ", ".join(f"{name} {took:.2f} s" for name, took in self.watch.slowest.items())
        return (
            f"capacity {self.capacity:,.0f} messages/s; {TIMES} times that was offered: {taken:,} "
            f"requests taken, statuses {dict(statuses)}, "
            f"{sum(told.lost for told in self.told):,} cut off, "
            f"{sum(told.unsent for told in self.told):,} never sent; memory {memory}; asked "
            f"meanwhile {dict(self.watch.asked)}, slowest {slowest}; recovered in "
            f"{self.recovery_seconds:.2f} s; {self.there:,} messages there, {self.lost} lost"
        )


def run(
    folder: Path,
    *,
    frontends: int = 0,
    seconds: float = 20.0,
    measure_seconds: float = 4.0,
    clients: int = 2,
    connections: int = 300,
    rows: int = 500,
    row_bytes: int = 1_000,
    connections_max: int = 400,
) -> Outcome:
    """Overload a server of its own, which takes fewer connections in than are offered."""
    most_connections = connections_max // max(frontends, 1)
    options = ("--frontends", frontends, "--set", f"connections_max={most_connections}")
    with Process(folder / "data", *options) as server:
        for queue in (QUEUE, WORK):
            assert server.ask("PUT", queue, {}).status == 201
        for number in range(100):
            server.ask("POST", f"{WORK}/messages", {"body": str(number)})

        def begin(rate: float, lasts: float, first: int, at_once: int) -> Callable[[], list[Told]]:
            return offer(
                [
                    Job(
                        first + number,
                        server.port,
                        server.token,
                        f"{QUEUE}/messages",
                        rate / clients,
                        lasts,
                        rows,
                        row_bytes,
                        at_once,
                    )
                    for number in range(clients)
                ]
            )

        calm = begin(0, measure_seconds, 0, 8)()
        taken = sum(len(told.acknowledged) for told in calm)
        capacity = taken / measure_seconds
        idle = {"engine": holding(server.pid).memory_bytes}
        idle |= {name: holding(pid).memory_bytes for name, pid in _frontends(server)}
        watch, line = Watch(), server.connect()
        # It has to be there before there are too many.
        watch.look(server, line)
        finish = begin(capacity * TIMES, seconds, clients, connections)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            watch.look(server, line)
            threading.Event().wait(0.2)
        line.close()
        ended = time.monotonic()
        recovery = _recovery(server, ended)
        told = finish()
        assert server.stop() == 0
    acknowledged = {
        (number, one) for number, found in enumerate([*calm, *told]) for one in found.acknowledged
    }
    lost, there = look_at(folder / "data", acknowledged, rows)
    requests = connections_max * rows * (row_bytes + 40)
    bodies = min(requests, limits.HTTP_BODIES_BYTES_MAX)
    allowed = AMPLIFIED * bodies + limits.INBOX_BYTES_MAX
    most = {name: held + allowed for name, held in idle.items()}
    return Outcome(capacity * rows, told, watch, recovery, lost, there, most)


def _frontends(server: Process) -> list[tuple[str, int]]:
    return [(f"front end {at}", pid) for at, pid in enumerate(sorted(children(server.pid)))]


def offer(jobs: list[Job]) -> Callable[[], list[Told]]:
    """Begin to offer, each job in a process of its own; what is returned waits for the end."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.server.load.offer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in jobs
    ]
    for job, process in zip(jobs, processes, strict=True):
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(job))
        process.stdin.close()

    def finish() -> list[Told]:
        found: list[Told] = []
        for process in processes:
            assert process.stdout is not None
            with process.stdout:
                found.append(msgspec.json.decode(process.stdout.read(), type=Told))
            process.wait()
        return found

    return finish


def _recovery(server: Process, since: float) -> float:
    """Seconds until a message can be published, leased and settled promptly."""
    while True:
        began = time.monotonic()
        try:
            published = server.ask("POST", f"{WORK}/messages", {"body": "after"})
            leased = server.ask("POST", f"{WORK}/leases", {"count": 1})
        except (OSError, HTTPException):
            # There were too many connections.
            is_done = False
        else:
            is_done = published.status == 201 and leased.status == 200
        if is_done and time.monotonic() - began < PROMPT_SECONDS:
            return time.monotonic() - since
        if time.monotonic() - since > 4 * RECOVERY_SECONDS_MAX:
            return time.monotonic() - since
        threading.Event().wait(0.1)


def look_at(folder: Path, acknowledged: set[tuple[int, int]], rows: int) -> tuple[int, int]:
    """How many requests are not there whole and once, and how many messages there are."""
    seen: Counter[tuple[int, int]] = Counter()
    distinct: set[tuple[int, int, int]] = set()
    there = 0
    with sync.open(folder) as m, m.find("load").snapshot() as snapshot:
        for batch in snapshot.arrow():
            for value in batch.column("value").to_pylist():
                assert value is not None
                client, number, row, _ = value.split(b"/", 3)
                there += 1
                seen[int(client), int(number)] += 1
                distinct.add((int(client), int(number), int(row)))
    doubled = there - len(distinct)
    torn = sum(count != rows for count in seen.values())
    return sum(seen[one] != rows for one in acknowledged) + doubled + torn, there


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--folder", type=Path, help="on the disk to be tested; not kept")
    arguments = parser.parse_args()
    bad = 0
    for name, frontends in (("one process", 0), ("two front ends", 2)):
        with tempfile.TemporaryDirectory(prefix="millrace-load-", dir=arguments.folder) as folder:
            outcome = run(Path(folder), frontends=frontends, seconds=arguments.seconds)
        print(f"{name}: {outcome.report()}", flush=True)
        for fault in outcome.faults():
            bad = 1
            print(f"  {fault}")
    return bad


if __name__ == "__main__":
    sys.exit(main())
