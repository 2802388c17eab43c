"""`millrace serve` in a process of its own, and requests to it."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.server.rest.harness import Answer


class Process:
    """A server that was started here, and is ended here."""

    def __init__(self, folder: Path, *options: object) -> None:
        command = [sys.executable, "-m", "millrace.cli", "serve", "--json"]
        if "--listen" not in options:
            command += ["--listen", "127.0.0.1:0"]
        self._process = subprocess.Popen(
            [*command, "--data", str(folder), *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.token = ""

    def __enter__(self) -> Process:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            raise AssertionError(self._process.stderr.read())
        told = json.loads(line)
        self.is_first: bool = told["first"]
        self.token = Path(told["token_file"]).read_text().strip()
        self.address: str = told["address"]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(
        self, method: str, path: str, body: object = None, *, token: str | None = None
    ) -> Answer:
        """Ask once."""
        connection = self.connect()
        headers = {"authorization": f"Bearer {token or self.token}"}
        if body is not None:
            headers["content-type"] = "application/json"
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
        return self._process.wait(60)

    def kill(self) -> None:
        """End it without a word."""
        self._process.kill()
        self._process.wait(60)
