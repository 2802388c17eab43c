"""Every action of SQS: whoever serves imports this."""

from __future__ import annotations

from millrace.server.sqs import queues, receipts, receive, send, tags
from millrace.server.sqs.service import SQS

MODULES = (queues, tags, send, receive, receipts)

__all__ = ["MODULES", "SQS"]
