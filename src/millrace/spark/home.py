"""Location of the queues that Spark reads and writes, and the connection cache of each process.

Rule 1: a home is plain data that is pickled to executors; connections stay in their process.
Spark's processes live for many tasks, so that each caches its connections.

Rule 2: a token is never part of it. Each process reads it from a file or its environment: options
are shown in plans, logs and checkpoints.

Rule 3: a folder is read on its machine. Its owner shares it, or a process is started that does; a
task on a cluster is refused.
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
from millrace.client.millrace import Millrace, engine_of
from millrace.client.portal import Portal
from millrace.client.shared_folder import join
from millrace.errors import Closed, Invalid, Retry
from millrace.rpc.secret_file import check_private
from millrace.spark.owner import start_owner

TOKEN, TOKEN_FILE, CERTIFICATES = "MILLRACE_TOKEN", "MILLRACE_TOKEN_FILE", "MILLRACE_CERTIFICATES"
"""Environment variables that are used if the options are missing."""

_CLUSTER = "SPARK_EXECUTOR_DIRS"
"""Environment variable of executors in a cluster."""

T = TypeVar("T")


class QueueEndpoint(msgspec.Struct, frozen=True):
    """A server, or a folder on this machine; exactly one of both."""

    url: str = ""
    path: str = ""
    token_file: str = ""
    certificates: str = ""
    patience: float = limits.WIRE_PATIENCE_SECONDS
    """Retry timeout in seconds for an unresponsive server."""
    host: str = ""
    """The machine that has the folder."""

    def token(self) -> str | None:
        """Return the token with which this process authenticates.

        Raises:
            Invalid: the file cannot be read, or is readable by others.
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
        """Return the certificate authorities that this process trusts; None: those of the
        system.
        """
        return self.certificates or os.environ.get(CERTIFICATES) or None


class EndpointConnection:
    """A connection of this process: an engine, on a thread of its own."""

    def __init__(self, portal: Portal, millrace: Millrace) -> None:
        self._portal = portal
        self._millrace = millrace
        self._process = os.getpid()

    @property
    def engine(self) -> Engine:
        """The engine, for reads on the caller's thread."""
        return engine_of(self._millrace)

    @property
    def is_usable(self) -> bool:
        """True if it belongs to this process, and is open."""
        return self._process == os.getpid() and not self.engine.is_closed

    def run(self, make: Callable[[Millrace], Coroutine[object, object, T]]) -> T:
        """Run a coroutine on the engine's thread; return its result."""
        return self._portal.run(partial(make, self._millrace))

    def blocking(self) -> sync.Millrace:
        """Return the blocking API of the connection."""
        return sync.Millrace(self._portal, self._millrace)


_reached: dict[QueueEndpoint, EndpointConnection] = {}


def reach(home: QueueEndpoint) -> EndpointConnection:
    """Return the cached connection of this process to a home, opening it if necessary.

    Raises:
        Closed: the server did not respond within the home's timeout (`patience`).
        Unauthenticated: the server does not accept the token.
        Invalid: the folder is on another machine, or does not exist.
        InUse: another process has the folder open, and does not share it.
    """
    found = _reached.get(home)
    if found is not None and found.is_usable:
        return found
    made = _joined(home) if home.path else _connected(home)
    _reached[home] = made
    return made


def _connected(home: QueueEndpoint) -> EndpointConnection:
    connecting = connect(
        home.url,
        token=home.token(),
        certificates=home.certificate_file(),
        patience=home.patience,
    )
    portal = Portal()
    return EndpointConnection(portal, portal.begin(connecting))


def _joined(home: QueueEndpoint) -> EndpointConnection:
    _check_here(home)
    path = Path(home.path)
    for _ in range(limits.OWNER_STARTS_MAX):
        portal = Portal()
        try:
            return EndpointConnection(portal, portal.begin(join(path)))
        except Closed:
            # No process shares the folder, or the owner has just ended.
            start_owner(path)
    raise Retry(f"{path} is shared, and nobody answers there", field="path")


def _check_here(home: QueueEndpoint) -> None:
    if home.host != socket.gethostname() or _CLUSTER in os.environ:
        raise Invalid(
            f"path is {home.path}, a folder on {home.host}, and the tasks run on a cluster; serve "
            "the folder with `millrace serve` and use its url",
            field="path",
        )
