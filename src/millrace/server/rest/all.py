"""Every route, in the table: whoever serves imports this."""

from __future__ import annotations

from millrace.server.rest import (
    care,
    cursors,
    look,
    publish,
    queues,
    redrive,
    root,
    snapshots,
    stages,
    status,
    topics,
    transactions,
    work,
)
from millrace.server.rest.table import ROUTES

MODULES = (
    root,
    queues,
    publish,
    look,
    stages,
    work,
    transactions,
    topics,
    cursors,
    snapshots,
    redrive,
    care,
    status,
)

__all__ = ["MODULES", "ROUTES"]
