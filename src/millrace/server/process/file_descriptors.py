"""The limit of file descriptors: each connection uses one, and the engine needs some too."""

from __future__ import annotations

import logging
import resource

from millrace import limits

_logger = logging.getLogger("millrace.server")


def room_for(connections: int) -> int:
    """Raise this process's limit of file descriptors for a number of connections.

    Returns the number of connections for which the limit suffices: if the system allows fewer, some
    descriptors are reserved for the files of the engine, and a warning is logged.
    """
    wanted = connections + limits.DESCRIPTORS_KEPT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = max(1, soft - min(limits.DESCRIPTORS_KEPT, soft // 2))
    if room >= connections:
        return connections
    _logger.warning(
        "the system allows %d open files: there is room for %d connections, not for %d; raise the "
        "limit (LimitNOFILE in systemd, ulimit -n) or lower connections_max",
        *(soft, room, connections),
    )
    return room
