"""Suppresses tracebacks of Spark workers whose reader has closed the connection.

Java closes the connection to a worker whose rows it no longer needs: a LIMIT is reached, a worker
was idle for a minute, the session ends. The worker fails to flush its output, and Spark's daemon
prints the traceback of a BrokenPipeError although the job has succeeded. Errors of a task itself
are sent to Java, and raised at the driver: they are not affected.

Rule: this is imported before the daemon forks, and starts no thread: it needs the standard library
alone.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from types import ModuleType

Work = Callable[[socket.socket, bool], int]
"""Runs the tasks that arrive on a socket; returns the exit code of the process."""

DAEMON = "pyspark.daemon"


def quietly(work: Work) -> Work:
    """Wrap a worker function; if the connection is closed, the process exits without a
    traceback.
    """

    def worker(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001
        try:
            return work(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)

    return worker


def hush(main: ModuleType | None = None) -> None:
    """Suppress these tracebacks in this process from its next task on, if Spark's own daemon has
    forked it.

    The workers that plan always belong to that daemon, regardless of the settings.
    """
    main = main or sys.modules["__main__"]
    spec = main.__spec__
    work = vars(main).get("worker")
    if spec is not None and spec.name == DAEMON and work is not None:
        vars(main)["worker"] = quietly(work)
