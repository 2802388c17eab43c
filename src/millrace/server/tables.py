"""The routes of all APIs, in one table: they are spoken at the same port."""

from __future__ import annotations

from millrace.server.aws.all import ROUTES as AWS
from millrace.server.cassieq.all import ROUTES as CASSIEQ
from millrace.server.dynamiq.all import ROUTES as DYNAMIQ
from millrace.server.rest.all import ROUTES as OWN
from millrace.server.sns.routes import ROUTES as SNS

ROUTES = OWN.join(AWS, CASSIEQ, DYNAMIQ, SNS)
