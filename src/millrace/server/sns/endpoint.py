"""Validation of endpoints to subscribe: queues of this server, and HTTP addresses that it may send
to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from millrace import limits
from millrace.client.queue import Queue
from millrace.client.settings import QueueSettings
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.names import read_arn
from millrace.server.aws.queue_info import PREFIX
from millrace.server.aws.topic_headers import HIDDEN
from millrace.server.sns.endpoint_policy import Unreachable
from millrace.server.sns.faults import invalid, unsupported
from millrace.server.sns.resource_lookup import TopicLocation
from millrace.server.sns.schemas import SubscribeIn
from millrace.server.sns.state import state_of
from millrace.server.sns.subscription_attributes import REDRIVE, delivery
from millrace.server.sns.topic_attributes import see_json
from millrace.server.sns.topic_cache import TopicCache, TopicInfo

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


# --- The hidden queues of endpoints, which buffer the messages to deliver ------------------------


def hidden_settings(notes: dict[str, str], topic: TopicInfo) -> QueueSettings:
    """Return the settings of an endpoint's hidden queue, for a subscription with these notes."""
    how = delivery(notes, topic)
    policy = notes.get(PREFIX + REDRIVE, "")
    dead = ""
    if policy:
        arn = read_arn(str(see_json(REDRIVE, policy).get("deadLetterTargetArn", "")))
        dead = "" if arn is None else arn.name
    return {
        "max_failures": how.retries.num_retries + 1,
        "rate": how.per_second,
        "dead_letter": dead,
        "notes": {f"{PREFIX}topic": topic.topic.name},
    }


async def make_hidden(
    exchange: TopicCache,
    known: TopicInfo,
    name: str,
    notes: dict[str, str],
    subscribe: Callable[[Queue], Awaitable[None]],
) -> str:
    """Create the hidden queue of an endpoint and subscribe it; return its name.

    If the subscription fails, the queue is deleted again.
    """
    await exchange.prepare()
    millrace, space = exchange.desk.millrace, known.topic.space
    hidden = f"{HIDDEN}{name}"
    queue = await millrace.queue(hidden, space=space, **hidden_settings(notes, known))
    try:
        await subscribe(queue)
    except BaseException:
        await millrace.delete_queue(hidden, space=space)
        raise
    return hidden
