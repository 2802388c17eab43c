"""File descriptors: each connection takes one, and the engine must not be left without."""

from __future__ import annotations

import logging
import resource

from millrace import limits

_logger = logging.getLogger("millrace.server")


def room_for(connections: int) -> int:
    """Have the system give this process as many descriptors as so many connections need.

    Returns for how many there is room: where the system allows fewer, some are kept for the files
    of the engine, and that is logged.
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
