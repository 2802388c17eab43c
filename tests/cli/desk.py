"""A folder with the demo's queues, and the program at work on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner, Result

from millrace.cli.program import program

SEGMENT_BYTES = str(2 * 1024 * 1024)
"""Small ones: each test makes a folder of its own."""

SECONDS = 60
"""A program that takes longer hangs."""


class Desk:
    """Calls the program for one folder: within this process, or in processes of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "millrace-data"

    def call(self, *arguments: object, given: bytes | str = b"") -> Result:
        """The verb within this process; a defect is raised, not reported."""
        environment = {"MILLRACE_DATA": str(self.data), "MILLRACE_SEGMENT_BYTES": SEGMENT_BYTES}
        words = [str(argument) for argument in arguments]
        result = CliRunner().invoke(program, words, input=given, env=environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def text(self, *arguments: object, given: bytes | str = b"") -> str:
        """What the verb prints when all goes well."""
        result = self.call(*arguments, given=given)
        assert result.exit_code == 0, result.output
        return result.stdout

    def lines(self, *arguments: object, given: bytes | str = b"") -> list[dict[str, object]]:
        """What the verb says as JSON, line by line."""
        return [
            json.loads(line) for line in self.text(*arguments, "--json", given=given).splitlines()
        ]

    def one(self, *arguments: object, given: bytes | str = b"") -> dict[str, object]:
        """The only object that the verb says as JSON."""
        (line,) = self.lines(*arguments, given=given)
        return line

    def bodies(self, queue: str) -> list[object]:
        """The bodies that lie in a queue."""
        return [line.get("body") for line in self.lines("peek", queue, "--count", 10_000)]

    def run(
        self, *arguments: object, given: bytes = b"", **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        """The verb in a process of its own."""
        return subprocess.run(
            command(*arguments),
            input=given,
            capture_output=True,
            timeout=SECONDS,
            check=False,
            env=self.environment(**environment),
            cwd=self.home,
        )

    @contextmanager
    def start(self, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
        """The verb in a process of its own, which goes on beside the test."""
        process = subprocess.Popen(
            command(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(),
            cwd=self.home,
        )
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def environment(self, **more: str) -> dict[str, str]:
        own = {
            "MILLRACE_DATA": str(self.data),
            "MILLRACE_SEGMENT_BYTES": SEGMENT_BYTES,
            "MILLRACE_ENGINE_SEGMENT_BYTES": SEGMENT_BYTES,
        }
        return {**os.environ, **own, **more}


def command(*arguments: object) -> list[str]:
    """The command line of the program."""
    return [sys.executable, "-m", "millrace.cli", *map(str, arguments)]
