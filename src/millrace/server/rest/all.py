"""Every route, in the table: whoever serves imports this."""

from __future__ import annotations

from millrace.server.rest import (
    calls,
    care,
    cursors,
    events,
    look,
    pipelines,
    publish,
    queues,
    redrive,
    root,
    sessions,
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
    sessions,
    transactions,
    topics,
    cursors,
    snapshots,
    events,
    redrive,
    care,
    pipelines,
    calls,
    status,
)

__all__ = ["MODULES", "ROUTES"]
