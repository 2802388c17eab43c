"""Every route, in the table: whoever serves imports this."""

from __future__ import annotations

from millrace.server.rest import look, publish, queues, stages, status, work
from millrace.server.rest.table import ROUTES

MODULES = (queues, publish, look, stages, work, status)

__all__ = ["MODULES", "ROUTES"]
