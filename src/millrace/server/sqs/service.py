"""The service that the modules of this folder write their actions into."""

from __future__ import annotations

from millrace.server.aws.calls import Service
from millrace.server.sqs.shapes import NAMED

SQS = Service("sqs", "AmazonSQS", NAMED)
