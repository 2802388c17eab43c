"""The SNS service; the modules of this package register their actions with it."""

from __future__ import annotations

from millrace.server.aws.actions import AwsService
from millrace.server.sns.faults import sns_fault_of
from millrace.server.sns.schemas import NAMED

SNS = AwsService("sns", named=NAMED, fault=sns_fault_of)
