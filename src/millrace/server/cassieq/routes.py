"""All routes of CassieQ: importing this module fills the table."""

from __future__ import annotations

from millrace.server.cassieq import accounts, messages, queues
from millrace.server.cassieq.route_table import ROUTES

MODULES = (queues, messages, accounts)

__all__ = ["MODULES", "ROUTES"]
