"""Actions of SNS that are not done here: each says so."""

from __future__ import annotations

from millrace.server.aws.calls import Call
from millrace.server.sns.faults import unsupported
from millrace.server.sns.service import SNS
from millrace.server.sns.shapes import Anything

UNSUPPORTED = (
    "CheckIfPhoneNumberIsOptedOut",
    "CreatePlatformApplication",
    "CreatePlatformEndpoint",
    "CreateSMSSandboxPhoneNumber",
    "DeleteEndpoint",
    "DeletePlatformApplication",
    "DeleteSMSSandboxPhoneNumber",
    "GetDataProtectionPolicy",
    "GetEndpointAttributes",
    "GetPlatformApplicationAttributes",
    "GetSMSAttributes",
    "GetSMSSandboxAccountStatus",
    "ListEndpointsByPlatformApplication",
    "ListOriginationNumbers",
    "ListPhoneNumbersOptedOut",
    "ListPlatformApplications",
    "ListSMSSandboxPhoneNumbers",
    "OptInPhoneNumber",
    "PutDataProtectionPolicy",
    "SetEndpointAttributes",
    "SetPlatformApplicationAttributes",
    "SetSMSAttributes",
    "VerifySMSSandboxPhoneNumber",
)


async def refuse(call: Call[Anything]) -> None:
    """Say that this is not done here."""
    raise unsupported(f"The action {call.action.name}")


for _name in UNSUPPORTED:
    SNS.action(_name, Anything)(refuse)
