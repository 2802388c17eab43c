"""Routes of all AWS services: SQS, SNS and the one action of STS.

Every call is sent to `/`, or to the address of its queue; a header or the form names the action.
"""

from __future__ import annotations

import msgspec

from millrace.client.engine import CallbackEngine
from millrace.server.aws.actions import AwsCall, AwsService, AwsServices, answer_call
from millrace.server.http.response import Response
from millrace.server.sns.actions import SNS
from millrace.server.sqs.actions import SQS
from millrace.server.sqs.peek import peek
from millrace.server.web.pending_request import PendingRequest
from millrace.server.web.route import RequestContext, Routes

# --- STS with the one action GetCallerIdentity, which many tools call first ----------------------

STS = AwsService("sts")


class EmptyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request without parameters."""


class CallerIdentity(msgspec.Struct, frozen=True, rename="pascal"):
    """Response of GetCallerIdentity."""

    arn: str
    user_id: str
    account: str


@STS.action("GetCallerIdentity", EmptyRequest, CallerIdentity)
async def get_caller_identity(call: AwsCall[EmptyRequest]) -> CallerIdentity:
    """Return user and account of the caller."""
    caller = call.caller
    account, name = caller.home.account, caller.principal.name
    return CallerIdentity(f"arn:aws:iam::{account}:user/{name}", caller.key_id or name, account)


ROUTES = Routes("aws")
SERVICES = AwsServices(SQS, SNS, STS)


def _begin(ask: RequestContext, engine: CallbackEngine) -> PendingRequest | None:
    call = SERVICES.read(ask)
    begins = call.action.begins
    return None if begins is None else begins(call, engine)


async def _call(ask: RequestContext) -> Response:
    """Run the call of a request."""
    SERVICES.read(ask)
    return await answer_call(ask)


PEEK = "/_aws/sqs/messages"
for _path in (PEEK, f"{PEEK}/{{region}}/{{account}}/{{queue}}"):
    for _method in ("GET", "POST"):
        ROUTES.raw(_method, _path, "known")(peek)


for _path in ("/", "/{account}/{queue}", "/queue/{region}/{account}/{queue}"):
    for _method in ("GET", "POST"):
        ROUTES.raw(_method, _path, "known", quick=_begin)(_call)
