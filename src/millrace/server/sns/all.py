"""All actions of SNS: importing them writes them into the service."""

from __future__ import annotations

from millrace.server.sns import confirm, others, publish, subscriptions, topics
from millrace.server.sns.service import SNS

__all__ = ["SNS", "confirm", "others", "publish", "subscriptions", "topics"]
