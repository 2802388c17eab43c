"""The clients of a server, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import IO, Literal, Protocol

import msgspec

from tests.crash.loop import ROOT, Broken
from tests.crash.served.client import Post
from tests.crash.served.events import Order
from tests.crash.served.hearing import Hearing
from tests.server.server_process import Process
from tests.support.timeouts import scaled

REST_SECONDS_MAX = scaled(120)
"""A client that does not come to rest by then is taken to hang."""


class Where(Protocol):
    """What has a server."""

    @property
    def server(self) -> Process:
        """The one that runs."""
        ...


class Crowd:
    """Starts clients, tells them what to do, and sees to it that none ends by itself."""

    def __init__(
        self, count: int, seed: int, where: Where, hearing: Hearing, errors: IO[bytes]
    ) -> None:
        self._hearing = hearing
        self._errors = errors
        server, mouth = where.server, hearing.mouth.fileno()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(1, count + 1):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.served.client"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stderr=self._errors,
                pass_fds=[mouth],
            )
            self._processes[number] = process
            self._write(number, Post(number, seed, server.port, server.token, mouth))

    def __enter__(self) -> Crowd:
        # All of them are there, and what the first ones make.
        self.rest("rest", (1, 2))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes.values():
            # They rest, or something went wrong.
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def _write(self, number: int, value: Post | Order) -> None:
        stdin = self._processes[number].stdin
        assert stdin is not None
        try:
            stdin.write(msgspec.json.encode(value) + b"\n")
            stdin.flush()
        except BrokenPipeError:
            self.check()
            raise

    def tell(self, order: Order, numbers: Iterable[int] = ()) -> None:
        """Tell all of them, or these, what to do."""
        for number in numbers or self._processes:
            self._write(number, order)

    def check(self) -> None:
        """See that all of them are there.

        Raises:
            Broken: one has ended.
        """
        for number, process in self._processes.items():
            if process.poll() is not None:
                self._errors.seek(0)
                said = self._errors.read().decode(errors="replace")[-6_000:]
                raise Broken(f"client {number} ended with {process.returncode}\n{said}")

    def rest(self, do: Literal["rest", "drain"] = "rest", numbers: Iterable[int] = ()) -> None:
        """Have them rest; the first one drains everything, if it is told to.

        Raises:
            Broken: one does not come to rest, or has ended.
        """
        self.tell(Order("rest"), numbers)
        self._wait(set(numbers or self._processes))
        if do == "drain":
            self.tell(Order("drain"), [1])
            self._wait({1})

    def look(self, seed: int) -> None:
        """Have them rest, and the first one look at everything."""
        self.rest()
        self.tell(Order("look", self._hearing.end_life(seed)), [1])
        self._wait({1})

    def _wait(self, numbers: set[int]) -> None:
        try:
            self._hearing.until_rested(numbers, REST_SECONDS_MAX, self.check)
        except TimeoutError as error:
            raise Broken(str(error)) from error
