"""`millrace serve` in a process of its own, to be measured."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import msgspec

from bench.rest_load import Job, Told
from millrace.settings import Settings

CONNECTIONS = 64
SECONDS = 5.0
TURNS = 3
QUEUE = "/v1/spaces/default/queues/bench"


class Served:
    """`millrace serve` in a process of its own."""

    def __init__(self, folder: Path, *options: str, settings: Settings | None = None) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "millrace.cli", "serve", "--json"),
                *("--listen", "127.0.0.1:0", "--data", str(folder), *options),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **_environment(settings)},
        )
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.readline())
        self.token_file: str = told["token_file"]
        self.token = Path(self.token_file).read_text().strip()
        self.port = int(told["address"].rpartition(":")[2])
        self.ask("PUT", QUEUE, "{}")

    def ask(self, method: str, path: str, body: str | None = None) -> bytes:
        """Ask once."""
        connection = self.connect()
        connection.request(method, path, body, self.headers())
        answer = connection.getresponse()
        data = answer.read()
        assert answer.status < 300, data
        connection.close()
        return data

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)

    def headers(self) -> dict[str, str]:
        known = {"authorization": f"Bearer {self.token}"}
        return {**known, "content-type": "application/json"}

    def load(self, kind: str, connections: int, body: str = "", rounds: int = 0) -> Told:
        """What a client in a process of its own comes to, for some time, or for so many rounds."""
        pid = self.process.pid
        job = Job(kind, self.port, self.token, connections, SECONDS, pid, body, rounds)
        done = subprocess.run(
            [sys.executable, "-m", "bench.rest_load"],
            input=msgspec.json.encode(job),
            stdout=subprocess.PIPE,
            check=True,
        )
        return msgspec.json.decode(done.stdout, type=Told)


@contextlib.contextmanager
def served(folder: Path, *options: str, settings: Settings | None = None) -> Iterator[Served]:
    """A server that is ended in the end."""
    found = Served(folder, *options, settings=settings)
    try:
        yield found
    finally:
        found.process.send_signal(signal.SIGTERM)
        found.process.wait(60)


def _environment(settings: Settings | None) -> dict[str, str]:
    """The settings of the engine that are not the usual ones."""
    if settings is None:
        return {}
    usual, prefix = Settings(), "MILLRACE_ENGINE_"
    return {
        prefix + one.name.upper(): str(getattr(settings, one.name))
        for one in fields(Settings)
        if getattr(settings, one.name) != getattr(usual, one.name)
    }
