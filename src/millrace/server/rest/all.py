"""Every route, in the table: whoever serves imports this."""

from __future__ import annotations

from millrace.server.rest import (
    cursors,
    look,
    publish,
    queues,
    root,
    snapshots,
    stages,
    status,
    work,
)
from millrace.server.rest.table import ROUTES

MODULES = (root, queues, publish, look, stages, work, cursors, snapshots, status)

__all__ = ["MODULES", "ROUTES"]
