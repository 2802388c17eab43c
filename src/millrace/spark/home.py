"""Where the queues are that Spark reads and writes, and the connection of each process to them.

Rule 1: a home is data, so that it travels to executors; what is opened stays in its process. The
processes of Spark live for many tasks, so that each keeps what it has opened.
Rule 2: a token is never part of it. Each process reads it from a file or its environment: options
are shown in plans, logs and checkpoints.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from millrace import limits
from millrace.client.connecting import connect
from millrace.client.engine import Engine
from millrace.client.millrace import Millrace, engine_of
from millrace.client.opening import join
from millrace.client.portal import Portal
from millrace.errors import Invalid

TOKEN = "MILLRACE_TOKEN"
"""The variable that holds a token where no file is named."""

_CLUSTER = "SPARK_EXECUTOR_DIRS"
"""What executors of a cluster have in their environment."""

T = TypeVar("T")


class Home(msgspec.Struct, frozen=True):
    """A server, or a folder on this machine; exactly one of both."""

    url: str = ""
    path: str = ""
    token_file: str = ""
    certificates: str = ""
    patience: float = limits.WIRE_PATIENCE_SECONDS
    """For so many seconds a server that does not answer is waited for."""
    host: str = ""
    """The machine that the folder is on."""

    @property
    def where(self) -> str:
        """For people to read."""
        return self.url or self.path

    def token(self) -> str | None:
        """What this process shows the server.

        Raises:
            Invalid: the file cannot be read.
        """
        if not self.token_file:
            return os.environ.get(TOKEN)
        try:
            return Path(self.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise Invalid(
                f"tokenFile {self.token_file} cannot be read here: {error.strerror}; executors "
                f"need it, too, at the same path, or the variable {TOKEN}",
                field="tokenFile",
            ) from error


class Reached:
    """What this process has opened of a home: its engine, on a thread of its own."""

    def __init__(self, portal: Portal, millrace: Millrace) -> None:
        self._portal = portal
        self.millrace = millrace
        self._process = os.getpid()

    @property
    def engine(self) -> Engine:
        """For reads that a thread pulls itself."""
        return engine_of(self.millrace)

    @property
    def is_usable(self) -> bool:
        """Whether it is this process's, and open."""
        return self._process == os.getpid() and not self.engine.is_closed

    def run(self, make: Callable[[Millrace], Coroutine[object, object, T]]) -> T:
        """What the coroutine comes to, which runs beside the engine."""
        return self._portal.run(partial(make, self.millrace))


_reached: dict[Home, Reached] = {}


def reach(home: Home) -> Reached:
    """The connection of this process to a home, made if there is none.

    Raises:
        Closed: nobody answers there.
        Unauthenticated: the server does not know the token.
    """
    found = _reached.get(home)
    if found is not None and found.is_usable:
        return found
    portal = Portal()
    made = Reached(portal, portal.begin(_opening(home)))
    _reached[home] = made
    return made


async def _opening(home: Home) -> Millrace:
    if home.path:
        return await join(Path(home.path))
    certificates = home.certificates or None
    token = home.token()
    return await connect(home.url, token=token, certificates=certificates, patience=home.patience)


def check_here(home: Home) -> None:
    """See that the folder is on this machine, and this process no part of a cluster.

    Raises:
        Invalid: it is elsewhere.
    """
    if home.path and (home.host != socket.gethostname() or _CLUSTER in os.environ):
        raise Invalid(
            f"path is {home.path}, a folder on {home.host}, and the tasks run on a cluster; serve "
            "the folder with `millrace serve` and read it by its url",
            field="path",
        )
