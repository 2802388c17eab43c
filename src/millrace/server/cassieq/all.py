"""Every route of CassieQ, in its table: whoever serves imports this."""

from __future__ import annotations

from millrace.server.cassieq import accounts, messages, queues
from millrace.server.cassieq.table import ROUTES

MODULES = (queues, messages, accounts)

__all__ = ["MODULES", "ROUTES"]
