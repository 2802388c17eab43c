"""The service that the modules of this folder write their actions into."""

from __future__ import annotations

from millrace.server.aws.calls import Service
from millrace.server.sns.faults import told
from millrace.server.sns.shapes import NAMED

SNS = Service("sns", named=NAMED, fault=told)
