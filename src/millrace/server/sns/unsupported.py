"""SNS actions that the server does not support: each is refused with UnsupportedOperation."""

from __future__ import annotations

from millrace.server.aws.actions import AwsCall
from millrace.server.sns.faults import unsupported
from millrace.server.sns.schemas import UncheckedRequest
from millrace.server.sns.state import SNS

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


async def refuse(call: AwsCall[UncheckedRequest]) -> None:
    """Refuse the action as unsupported."""
    raise unsupported(f"The action {call.action.name}")


for _name in UNSUPPORTED:
    SNS.action(_name, UncheckedRequest)(refuse)
