"""Where the queues are that Spark reads and writes, and the connection of each process to them.

Rule 1: a home is data, so that it travels to executors; what is opened stays in its process. The
processes of Spark live for many tasks, so that each keeps what it has opened.
Rule 2: a token is never part of it. Each process reads it from a file or its environment: options
are shown in plans, logs and checkpoints.
Rule 3: a folder is read where it is. Whoever has it open shares it, or somebody is started who
does; a task on a cluster is refused.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from millrace import limits, sync
from millrace.client.connecting import connect
from millrace.client.engine import Engine
from millrace.client.joining import join
from millrace.client.millrace import Millrace, engine_of
from millrace.client.portal import Portal
from millrace.client.secret_file import check_private
from millrace.errors import Closed, Invalid, Retry
from millrace.spark.owner import start_owner

TOKEN, TOKEN_FILE, CERTIFICATES = "MILLRACE_TOKEN", "MILLRACE_TOKEN_FILE", "MILLRACE_CERTIFICATES"
"""Variables of the environment that stand for what no option names."""

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

    def token(self) -> str | None:
        """What this process shows the server.

        Raises:
            Invalid: the file cannot be read, or others may read it, too.
        """
        file = self.token_file or os.environ.get(TOKEN_FILE, "")
        if not file:
            return os.environ.get(TOKEN)
        try:
            with open(file, encoding="utf-8") as opened:
                check_private(opened.fileno(), Path(file), "tokenFile")
                return opened.read().strip()
        except OSError as error:
            raise Invalid(
                f"tokenFile {file} cannot be read here: {error.strerror}; executors need it, too, "
                f"at the same path, or the variable {TOKEN}",
                field="tokenFile",
            ) from error

    def certificate_file(self) -> str | None:
        """The authorities that this process trusts; None: those of the system."""
        return self.certificates or os.environ.get(CERTIFICATES) or None


class Reached:
    """What this process has opened of a home: its engine, on a thread of its own."""

    def __init__(self, portal: Portal, millrace: Millrace) -> None:
        self._portal = portal
        self._millrace = millrace
        self._process = os.getpid()

    @property
    def engine(self) -> Engine:
        """For reads that a thread pulls itself."""
        return engine_of(self._millrace)

    @property
    def is_usable(self) -> bool:
        """Whether it is this process's, and open."""
        return self._process == os.getpid() and not self.engine.is_closed

    def run(self, make: Callable[[Millrace], Coroutine[object, object, T]]) -> T:
        """What the coroutine comes to, which runs beside the engine."""
        return self._portal.run(partial(make, self._millrace))

    def blocking(self) -> sync.Millrace:
        """The same for code that waits."""
        return sync.Millrace(self._portal, self._millrace)


_reached: dict[Home, Reached] = {}


def reach(home: Home) -> Reached:
    """The connection of this process to a home, made if there is none.

    Raises:
        Closed: nobody answers there, for longer than the home's patience.
        Unauthenticated: the server does not know the token.
        Invalid: the folder is on another machine, or there is none.
        InUse: somebody has the folder open, and does not share it.
    """
    found = _reached.get(home)
    if found is not None and found.is_usable:
        return found
    made = _joined(home) if home.path else _connected(home)
    _reached[home] = made
    return made


def _connected(home: Home) -> Reached:
    connecting = connect(
        home.url,
        token=home.token(),
        certificates=home.certificate_file(),
        patience=home.patience,
    )
    portal = Portal()
    return Reached(portal, portal.begin(connecting))


def _joined(home: Home) -> Reached:
    _check_here(home)
    path = Path(home.path)
    for _ in range(limits.OWNER_STARTS_MAX):
        portal = Portal()
        try:
            return Reached(portal, portal.begin(join(path)))
        except Closed:
            # Nobody shares it, or who did has just ended.
            start_owner(path)
    raise Retry(f"{path} is shared, and nobody answers there", field="path")


def _check_here(home: Home) -> None:
    if home.host != socket.gethostname() or _CLUSTER in os.environ:
        raise Invalid(
            f"path is {home.path}, a folder on {home.host}, and the tasks run on a cluster; serve "
            "the folder with `millrace serve` and use its url",
            field="path",
        )
