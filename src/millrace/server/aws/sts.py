"""STS: who am I? Tools ask this before anything else."""

from __future__ import annotations

import msgspec

from millrace.server.aws.calls import Call, Service

STS = Service("sts")


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call that says nothing but who sent it."""


class CallerIdentity(msgspec.Struct, frozen=True, rename="pascal"):
    """Who asks."""

    arn: str
    user_id: str
    account: str


@STS.action("GetCallerIdentity", Nothing, CallerIdentity)
async def get_caller_identity(call: Call[Nothing]) -> CallerIdentity:
    """Who asks, and in which account."""
    caller = call.caller
    account, name = caller.home.account, caller.principal.name
    return CallerIdentity(f"arn:aws:iam::{account}:user/{name}", caller.key_id or name, account)
