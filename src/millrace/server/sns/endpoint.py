"""Validation of endpoints to subscribe: queues of this server, and HTTP addresses that it may send
to.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from millrace import limits
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.names import read_arn
from millrace.server.sns.endpoint_policy import Unreachable
from millrace.server.sns.faults import invalid, unsupported
from millrace.server.sns.resource_lookup import TopicLocation
from millrace.server.sns.schemas import SubscribeIn
from millrace.server.sns.state import state_of

PROTOCOLS = ("sqs", "http", "https")
_OTHERS = ("email", "email-json", "sms", "application", "lambda", "firehose")
_ENDPOINT_CHARS_MAX = 2048


def see_endpoint(asked: SubscribeIn, place: TopicLocation) -> None:
    """Validate protocol and endpoint of a Subscribe request.

    Raises:
        Fault: the topic cannot have such an endpoint.
    """
    protocol, endpoint = asked.protocol, asked.endpoint
    if protocol in _OTHERS:
        raise unsupported(f"Subscribe with the protocol {protocol}")
    if protocol not in PROTOCOLS:
        raise invalid(f"Amazon SNS does not support this protocol string: {protocol}")
    if not endpoint or len(endpoint) > _ENDPOINT_CHARS_MAX:
        raise invalid("Endpoint")
    if protocol == "sqs":
        arn = read_arn(endpoint)
        if arn is None or arn.service != "sqs":
            raise invalid("SQS endpoint ARN")
        if endpoint.endswith(".fifo") and not place.name.endswith(".fifo"):
            raise invalid(
                "Invalid parameter: Endpoint Reason: FIFO SQS Queues can not be subscribed to "
                "standard SNS topics"
            )
        return
    if place.name.endswith(".fifo"):
        raise invalid(
            "Invalid parameter: Endpoint Reason: Please use FIFO SQS queue as FIFO topics support "
            "only queues"
        )
    if not endpoint.startswith(f"{protocol}://"):
        raise invalid("Endpoint must match the specified protocol")
    try:
        host = urlsplit(endpoint).hostname
        _ = urlsplit(endpoint).port
    except ValueError:
        host = None
    if not host or not endpoint.isascii() or any(letter.isspace() for letter in endpoint):
        raise invalid("Endpoint Reason: it is no address")


async def see_reach(call: AwsCall[SubscribeIn]) -> None:
    """Verify that messages may be sent to an HTTP endpoint.

    A host that cannot be resolved now is accepted: it may be available when the endpoint is asked.

    Raises:
        Fault: the address is not allowed.
    """
    if call.told.protocol == "sqs":
        return
    url = urlsplit(call.told.endpoint)
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        async with asyncio.timeout(limits.SNS_LOOK_UP_SECONDS_MAX):
            await state_of(call.aws).delivery.reach.address(url.hostname or "", port)
    except Unreachable as error:
        raise invalid(f"Endpoint Reason: {error}") from error
    except (OSError, UnicodeError):
        return
