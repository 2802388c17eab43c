"""All services of AWS that are spoken, and the addresses at which they are.

Every call is sent to `/`, or to the address of its queue; which action it is tells a header or the
form.
"""

from __future__ import annotations

from millrace.client.submitting import Submits
from millrace.server.aws.calls import Services, answer_call
from millrace.server.aws.sts import STS
from millrace.server.http.response import Response
from millrace.server.rest.route import Ask, Routes
from millrace.server.rest.under import Under
from millrace.server.sns.all import SNS
from millrace.server.sqs.all import SQS
from millrace.server.sqs.peek import peek

ROUTES = Routes("aws")
SERVICES = Services(SQS, SNS, STS)


def _begin(ask: Ask, engine: Submits) -> Under | None:
    call = SERVICES.read(ask)
    begins = call.action.begins
    return None if begins is None else begins(call, engine)


async def _call(ask: Ask) -> Response:
    """Do what a call asks for."""
    SERVICES.read(ask)
    return await answer_call(ask)


PEEK = "/_aws/sqs/messages"
for _path in (PEEK, f"{PEEK}/{{region}}/{{account}}/{{queue}}"):
    for _method in ("GET", "POST"):
        ROUTES.raw(_method, _path, "known")(peek)


for _path in ("/", "/{account}/{queue}", "/queue/{region}/{account}/{queue}"):
    for _method in ("GET", "POST"):
        ROUTES.raw(_method, _path, "known", quick=_begin)(_call)
