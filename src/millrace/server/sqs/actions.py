"""Registers all SQS actions by importing their modules."""

from __future__ import annotations

from millrace.server.sqs import (
    delete_and_visibility,
    move_tasks,
    queues,
    receive,
    send,
    tags,
)
from millrace.server.sqs.service import SQS

MODULES = (queues, tags, send, receive, delete_and_visibility, move_tasks)

__all__ = ["MODULES", "SQS"]
