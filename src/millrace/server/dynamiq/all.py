"""Every route, in the table: whoever serves imports this."""

from __future__ import annotations

from millrace.server.dynamiq import messages, queues, status, topics
from millrace.server.dynamiq.table import ROUTES

MODULES = (queues, messages, topics, status)

__all__ = ["MODULES", "ROUTES"]
