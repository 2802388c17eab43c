"""Every action of SQS: whoever serves imports this."""

from __future__ import annotations

from millrace.server.sqs import moves, queues, receipts, receive, send, tags
from millrace.server.sqs.service import SQS

MODULES = (queues, tags, send, receive, receipts, moves)

__all__ = ["MODULES", "SQS"]
