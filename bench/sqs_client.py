"""The load client of SQS, in Go (`sqs_load`), and the servers that it is aimed at."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.served import CONNECTIONS, SECONDS
from tests.server.aws.site import REGION, Aws, Key
from tests.services.cache import cached
from tests.services.missing import Missing
from tests.services.packages import have_program

SIZE = 1024
SOURCE = Path(__file__).with_name("sqs_load")
NAME = "sqs"
"""Of the queue that is measured."""

WARM_SECONDS_MAX = 90.0
STEADY = 0.05
STEADY_ROUNDS = 3
"""A server is warm when so many rounds in a row make it faster by less than this; one alone may be
slow for other reasons, and a JVM compiles by and by."""


class Job(msgspec.Struct, kw_only=True):
    """What is to be asked; as the client has it."""

    kind: str
    port: int
    pids: list[int]
    connections: int = CONNECTIONS
    seconds: float = SECONDS
    warm: float = 1.0
    messages: int = 0
    size: int = SIZE
    queues: list[str] = []
    key: str = ""
    secret: str = ""
    region: str = REGION
    token: str = ""


class Told(msgspec.Struct):
    """What came of it."""

    messages: int
    requests: int
    empty: int
    seconds: float
    client_cpu: float
    server_cpu: float

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    def costs(self) -> str:
        """The CPU time of both sides, as text."""
        server, client = self.server_cpu, self.client_cpu
        return (
            f"{server / self.requests * 1e6:.0f} us of CPU a request"
            f" ({server / self.seconds:.0%} of a core; the client {client / self.seconds:.0%})"
        )


@dataclass(slots=True)
class Target:
    """A server of SQS."""

    name: str
    port: int
    pid: int
    key: Key
    token: str = ""
    queue: str = ""

    @property
    def aws(self) -> Aws:
        return Aws(f"http://127.0.0.1:{self.port}", self.key)

    def make_queue(self, name: str = NAME) -> str:
        """The address of a new queue."""
        return self.aws.sqs.create_queue(QueueName=name)["QueueUrl"]

    def make_queues(self, count: int) -> list[str]:
        """The addresses of new queues."""
        sqs = self.aws.sqs
        return [sqs.create_queue(QueueName=f"idle-{n}")["QueueUrl"] for n in range(count)]

    def load(self, kind: str, *, connections: int = CONNECTIONS, seconds: float = SECONDS) -> Told:
        """What the client comes to with one queue, for some time."""
        if not self.queue:
            self.queue = self.make_queue()
        return self.run(self.job(kind, [self.queue], connections=connections, seconds=seconds))

    def job(
        self,
        kind: str,
        queues: list[str],
        *,
        connections: int = CONNECTIONS,
        seconds: float = SECONDS,
        warm: float = 1.0,
        messages: int = 0,
    ) -> Job:
        return Job(
            kind=kind,
            port=self.port,
            pids=[self.pid, *children_of(self.pid)],
            connections=connections,
            seconds=seconds,
            warm=warm,
            messages=messages,
            queues=queues,
            key=self.key.id,
            secret=self.key.secret,
            token=self.token,
        )

    def run(self, job: Job) -> Told:
        """What the client comes to.

        Raises:
            CalledProcessError: something was refused; the client has said what.
        """
        done = subprocess.run(
            [have_client()], input=msgspec.json.encode(job), stdout=subprocess.PIPE, check=True
        )
        return msgspec.json.decode(done.stdout, type=Told)

    def warm_up(self, kind: str) -> None:
        """Load it until it does not become faster any more."""
        best, spent, steady = 0.0, 0.0, 0
        while spent < WARM_SECONDS_MAX and steady < STEADY_ROUNDS:
            told = self.load(kind)
            spent += told.seconds
            steady = steady + 1 if told.rate < best * (1 + STEADY) else 0
            best = max(best, told.rate)


def children_of(pid: int) -> list[int]:
    """The processes that a process has begun: front ends."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def have_client() -> Path:
    """The program, built once.

    Raises:
        Missing: there is no Go; no other client here is known not to be the bottleneck.
    """
    files = sorted(SOURCE.iterdir())
    mark = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]

    def build(folder: Path) -> None:
        command = [
            str(have_program("go", "golang-go")),
            "build",
            "-o",
            str(folder / "sqs_load"),
            ".",
        ]
        ended = subprocess.run(
            command,
            cwd=SOURCE,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise Missing(f"the load client was not built:\n{ended.stderr[-2000:]}")

    return cached(f"sqs-load-{mark}", build) / "sqs_load"
