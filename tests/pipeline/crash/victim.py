"""Processes that are there to be killed: drivers with all that they start, and a server."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from millrace import Settings, sync
from tests.server.server_process import Process
from tests.services.leash import family, parents
from tests.services.service import free_port, wait_until
from tests.support.timeouts import scaled

ROOT = Path(__file__).resolve().parents[3]

HANGS_SECONDS = scaled(300)
"""Whoever says nothing for so long will not, however busy the machine."""

SEGMENT_BYTES = 4 * 1024 * 1024

JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Java that is killed soon need not get fast: it starts sooner so."""


class Driver:
    """A program of these tests in a process of its own, which is dead at the end."""

    def __init__(self, module: str, arguments: Sequence[object], log: Path) -> None:
        self._log = log
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", module, *map(str, arguments)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": paths, "JDK_JAVA_OPTIONS": JAVA},
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._said = b""
        self._left: list[int] = []

    def line(self) -> str:
        """What it says next; empty: it has ended."""
        assert self._process.stdout is not None
        while b"\n" not in self._said:
            if not select.select([self._process.stdout], [], [], HANGS_SECONDS)[0]:
                raise AssertionError(f"it hangs; the end of its log:\n{self.log()}")
            found = os.read(self._process.stdout.fileno(), 4096)
            if not found:
                return ""
            self._said += found
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Its exit code."""
        return self._process.wait(HANGS_SECONDS)

    def run_for(self, seconds: float) -> None:
        """Let it run for a moment, into the midst of something."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def family(self) -> list[int]:
        """Its pid, and those of all that it has started."""
        return family(self._process.pid)

    def workers(self) -> list[int]:
        """The pids of Spark's Python workers below it."""
        return [pid for pid in self.family()[1:] if b"pyspark.daemon" in _command(pid)]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of them."""
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, *, alone: bool = False) -> None:
        """Kill it, with all that it has started, or without; they end some time later then."""
        self._left = self.family()
        if alone:
            self._process.kill()
        else:
            self.signal(signal.SIGKILL)
        self._process.wait()

    def await_family(self) -> None:
        """Return when all that it had started have ended."""
        wait_until(lambda: not set(self._left) & parents().keys())

    def log(self) -> str:
        """The end of what it and those before it have complained of, without Java's frames."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("\tat "))[-12_000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Folder:
    """Queues in a folder, which this process has and shares."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self.m = sync.open(folder, settings=Settings(segment_bytes=SEGMENT_BYTES))
        self._shared = sync.share(self.m)
        self._shared.__enter__()

    def setting(self) -> str:
        """As a sink is told of it."""
        return f'path = "{self.place}"'

    def close(self) -> None:
        """Nobody has the folder from then on."""
        self._shared.__exit__(None, None, None)
        self.m.close()


class Served:
    """Queues of a server, which is killed and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.place = f"http://127.0.0.1:{self._port}"
        self._begin()
        # Those who are started here find it there.
        os.environ["MILLRACE_TOKEN"] = self._process.token
        os.environ["MILLRACE_TOKEN_FILE"] = str(self._process.token_file)

    def _begin(self) -> None:
        with self._folder.with_suffix(".log").open("ab") as errors:
            options = ("--listen", f"127.0.0.1:{self._port}", "--segment-bytes", SEGMENT_BYTES)
            self._process = Process(self._folder, *options, errors=errors)
            self._process.__enter__()
        self.m = sync.connect(self.place, token=self._process.token)

    def setting(self) -> str:
        """As a sink is told of it."""
        return f'url = "{self.place}"\ntoken_file = "{self._process.token_file}"'

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.m.close()
        self._process.close()
        self._begin()

    def close(self) -> None:
        """Nobody serves from then on."""
        self.m.close()
        self._process.close()
        for name in ("MILLRACE_TOKEN", "MILLRACE_TOKEN_FILE"):
            os.environ.pop(name, None)
