"""`millrace serve` in a process of its own, and requests to it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.server.rest.harness import SMALL, Answer
from tests.support.timeouts import scaled


class Process:
    """A server that was started here, and is ended here."""

    def __init__(self, folder: Path, *options: object, errors: IO[bytes] | None = None) -> None:
        """`errors`: where it writes its log; else that is shown if it does not start."""
        command = [sys.executable, "-m", "millrace.cli", "serve", "--json"]
        if "--listen" not in options:
            command += ["--listen", "127.0.0.1:0"]
        self._process = subprocess.Popen(
            [*command, "--data", str(folder), *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if errors is None else errors,
            text=True,
            env={"MILLRACE_ENGINE_SEGMENT_BYTES": str(SMALL.segment_bytes), **os.environ},
        )
        self.token = ""

    def __enter__(self) -> Process:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            stderr = self._process.stderr
            raise AssertionError("it did not start" if stderr is None else stderr.read())
        told = json.loads(line)
        self.is_first: bool = told["first"]
        # Where an administrator is declared, nobody is made.
        file = told["token_file"]
        self.token = "" if file is None else Path(file).read_text().strip()
        self.token_file = file
        self.address: str = told["address"]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it without a word, if it is there, and hear no more of it."""
        if self._process.poll() is None:
            self.kill()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def connect(self) -> http.client.HTTPConnection:
        """A connection of its own."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=scaled(60))

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        accept: str | None = None,
    ) -> Answer:
        """Ask once."""
        connection = self.connect()
        headers = {"authorization": f"Bearer {token or self.token}"}
        if body is not None:
            headers["content-type"] = "application/json"
        if accept is not None:
            headers["accept"] = accept
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def reload(self) -> dict[str, object]:
        """Have it read its settings again; returns what it says of it."""
        self._process.send_signal(signal.SIGHUP)
        assert self._process.stdout is not None
        return dict(json.loads(self._process.stdout.readline()))

    def stop(self) -> int:
        """Ask it to end; returns its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(scaled(60))

    def error(self) -> str:
        """The next line that it writes to its standard error."""
        assert self._process.stderr is not None
        return self._process.stderr.readline()

    def errors(self) -> str:
        """What it has written to its standard error, after its end."""
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def kill(self) -> None:
        """End it without a word."""
        self._process.kill()
        self._process.wait(scaled(60))


def children(pid: int) -> list[int]:
    """The processes that one has started."""
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
