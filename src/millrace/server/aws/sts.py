"""STS with the one action GetCallerIdentity, which many tools call first."""

from __future__ import annotations

import msgspec

from millrace.server.aws.actions import AwsCall, AwsService

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
