"""Every route, in the table: whoever serves imports this."""

from __future__ import annotations

from millrace.server.rest import publish, work
from millrace.server.rest.table import ROUTES

MODULES = (publish, work)

__all__ = ["MODULES", "ROUTES"]
