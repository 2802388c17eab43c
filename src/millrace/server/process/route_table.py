"""The route table of all APIs, which share one port."""

from __future__ import annotations

from millrace.server.cassieq.routes import ROUTES as CASSIEQ
from millrace.server.dynamiq.routes import ROUTES as DYNAMIQ
from millrace.server.process.aws_routes import ROUTES as AWS
from millrace.server.rest.routes import ROUTES as OWN
from millrace.server.sns.confirmation import ROUTES as SNS

ROUTES = OWN.join(AWS, CASSIEQ, DYNAMIQ, SNS)
