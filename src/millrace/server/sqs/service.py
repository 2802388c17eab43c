"""The SQS service; the modules of this package register their actions with it."""

from __future__ import annotations

from millrace.server.aws.actions import AwsService
from millrace.server.sqs.schemas import NAMED

SQS = AwsService("sqs", "AmazonSQS", NAMED)
