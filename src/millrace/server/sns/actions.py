"""Registers all SNS actions by importing their modules."""

from __future__ import annotations

from millrace.server.sns import (
    confirmation,
    publish,
    subscriptions,
    topics,
    unsupported,
)
from millrace.server.sns.state import SNS

__all__ = ["SNS", "confirmation", "publish", "subscriptions", "topics", "unsupported"]
