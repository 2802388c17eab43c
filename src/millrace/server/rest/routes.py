"""All routes of the native API: importing this module fills the table."""

from __future__ import annotations

from millrace.server.rest import (
    api_root,
    calls,
    cursors,
    events,
    leases,
    maintenance,
    peek,
    pipelines,
    publish,
    queues,
    redrive,
    sessions,
    snapshots,
    stages,
    status,
    topics,
    transactions,
)
from millrace.server.rest.route_table import ROUTES

MODULES = (
    api_root,
    queues,
    publish,
    peek,
    stages,
    leases,
    sessions,
    transactions,
    topics,
    cursors,
    snapshots,
    events,
    redrive,
    maintenance,
    pipelines,
    calls,
    status,
)

__all__ = ["MODULES", "ROUTES"]
