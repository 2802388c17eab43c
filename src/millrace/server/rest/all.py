"""Every route, in the table: whoever serves imports this."""

from __future__ import annotations

from millrace.server.rest import publish, status, work
from millrace.server.rest.table import ROUTES

MODULES = (publish, status, work)

__all__ = ["MODULES", "ROUTES"]
