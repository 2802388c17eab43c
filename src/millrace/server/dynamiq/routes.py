"""All routes of Dynamiq: importing this module fills the table."""

from __future__ import annotations

from millrace.server.dynamiq import (
    messages,
    queues,
    topics,
)
from millrace.server.dynamiq.route_table import ROUTES

MODULES = (queues, messages, topics, queues)

__all__ = ["MODULES", "ROUTES"]
