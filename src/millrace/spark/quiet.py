"""Workers of Spark that say nothing of a reader who has had enough.

Java hangs up on a worker whose rows it needs no more: a LIMIT is reached, a worker was idle for a
minute, the session ends. The worker fails to flush what is left, and Spark's daemon prints the
traceback of a BrokenPipeError beside a job that has succeeded. What goes wrong in a task itself is
told to Java, and raised at the driver: that is not touched.

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
"""Does the tasks that come by a socket; what it returns is the code that the process ends with."""

DAEMON = "pyspark.daemon"


def quietly(work: Work) -> Work:
    """The same; where nobody listens any more, the process ends as it would, without a word."""

    def worker(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001
        try:
            return work(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)

    return worker


def hush(main: ModuleType | None = None) -> None:
    """Have this process be quiet from its next task on, if Spark's own daemon has forked it.

    The workers that plan are always of that daemon, whatever is set.
    """
    main = main or sys.modules["__main__"]
    spec = main.__spec__
    work = vars(main).get("worker")
    if spec is not None and spec.name == DAEMON and work is not None:
        vars(main)["worker"] = quietly(work)
