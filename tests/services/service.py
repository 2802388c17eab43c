"""A server that tests start, kill and start again."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.services.leash import kill_family, parents
from tests.support.timeouts import scaled

LEASH = Path(__file__).with_name("leash.py")

START_SECONDS_MAX = scaled(120)
"""A server that does not answer by then will not, however busy the machine."""

ASK_AGAIN_SECONDS = 0.02


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def wait_until(holds: Callable[[], bool]) -> None:
    """Ask again and again; the time that a test has is the bound."""
    while not holds():
        time.sleep(ASK_AGAIN_SECONDS)


class Service(ABC):
    """A program with a folder, which is its own and goes with it."""

    name: str

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"millrace-{self.name}-"))
        # Some run as another user, who has to get to the folders below.
        self.folder.chmod(0o711)
        self._leash: subprocess.Popen[str] | None = None
        self._pid = 0

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """What to run; it stays in the foreground."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it answers; asked again and again while it starts."""

    def environment(self) -> Mapping[str, str] | None:
        """What it finds in its environment, by default what the tests do."""
        return None

    @property
    def log(self) -> Path:
        """All that it has said."""
        return self.folder / "log"

    @property
    def pid(self) -> int:
        """Its pid; of one that is down, the last."""
        return self._pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended since."""
        return self._leash is not None and self._leash.poll() is None

    def start(self) -> None:
        """Start it, again on the same port and folder; it answers when this returns."""
        self.begin()
        self.await_ready()

    def begin(self) -> None:
        """Start it without waiting until it answers."""
        assert not self.is_running, f"{self.name} runs already"
        self._drop_leash()
        with self.log.open("ab") as log:
            self._leash = subprocess.Popen(
                [sys.executable, "-I", LEASH, self.folder, *self.command()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment(),
                start_new_session=True,
                text=True,
            )
        assert self._leash.stdout is not None
        self._pid = int(self._leash.stdout.readline() or 0)

    def await_ready(self) -> None:
        """Return when it answers."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.is_ready():
            assert self.is_running, f"{self.name} has ended:\n{self.said()}"
            assert time.monotonic() < deadline, f"{self.name} does not answer:\n{self.said()}"
            time.sleep(ASK_AGAIN_SECONDS)

    def kill(self) -> None:
        """End it and all that it has started by SIGKILL; none is there when this returns."""
        if self._leash is None:
            return
        pids = set(kill_family(self._pid)) if self.is_running else set()
        self._leash.wait()
        wait_until(lambda: not pids & parents().keys())
        self._drop_leash()

    def revive(self) -> None:
        """Start it if it is down."""
        if not self.is_running:
            self.start()

    def close(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _drop_leash(self) -> None:
        if self._leash is not None:
            for stream in (self._leash.stdin, self._leash.stdout):
                assert stream is not None
                stream.close()
            self._leash.wait()
            self._leash = None
