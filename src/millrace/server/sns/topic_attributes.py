"""Topic attributes: validation and rendering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from millrace import limits
from millrace.server.aws.fault import Fault
from millrace.server.aws.queue_info import PREFIX
from millrace.server.aws.topic_headers import PENDING
from millrace.server.sns.delivery_policy import see_topic_policy, told_of_topic
from millrace.server.sns.faults import invalid, unsupported
from millrace.server.sns.resource_lookup import TopicLocation
from millrace.server.sns.topic_cache import TopicInfo, is_size

DELIVERY = "DeliveryPolicy"
SIZE = "MaximumMessageSize"
_FEEDBACK = tuple(
    f"{kind}{name}"
    for kind in ("HTTP", "Firehose", "Lambda", "Application", "SQS")
    for name in (
        "SuccessFeedbackRoleArn",
        "SuccessFeedbackSampleRate",
        "FailureFeedbackRoleArn",
    )
)
_TEXTS = ("DisplayName", "KmsMasterKeyId", *_FEEDBACK)
_JSON = ("Policy", DELIVERY, "ArchivePolicy")
_WORDS = {
    "SignatureVersion": ("1", "2"),
    "TracingConfig": ("PassThrough", "Active"),
    "ContentBasedDeduplication": ("true", "false"),
    "FifoThroughputScope": ("Topic", "MessageGroup"),
}
_USUAL = {
    "SignatureVersion": "1",
    "TracingConfig": "PassThrough",
    "ContentBasedDeduplication": "false",
    "FifoThroughputScope": "Topic",
    SIZE: str(limits.SNS_MESSAGE_BYTES),
}
"""Defaults of attributes."""

_FIFO_ONLY = ("ContentBasedDeduplication", "FifoThroughputScope", "ArchivePolicy")
SETTABLE = (*_TEXTS, *_JSON, *_WORDS, SIZE)
FIFO = "FifoTopic"


def see_attribute(name: str, value: str, *, is_fifo: bool) -> None:
    """Validate an attribute of a topic; an empty value removes it.

    Raises:
        Fault: the attribute is unknown, or its value is invalid.
    """
    if name not in SETTABLE:
        raise invalid("AttributeName")
    if name in _FIFO_ONLY and not is_fifo:
        raise invalid(f"{name} Reason: {name} is only supported for FIFO topics")
    if len(value.encode()) > limits.SNS_ATTRIBUTE_BYTES_MAX:
        raise invalid(f"{name} Reason: the value is too long")
    if not value:
        return
    if name.endswith("SampleRate") and not _is_percentage(value):
        raise invalid(f"{name}: Invalid value [{value}]. Must be between 0 and 100.")
    if name in _WORDS and value not in _WORDS[name]:
        raise invalid(f"{name}: Invalid value [{value}]. Must be {' or '.join(_WORDS[name])}.")
    if name == SIZE and not is_size(value):
        raise invalid(
            f"{name}: Invalid value [{value}]. Must be between {limits.SNS_MESSAGE_BYTES_MIN} and "
            f"{limits.SNS_MESSAGE_BYTES_MAX}."
        )
    if name == "ArchivePolicy":
        raise unsupported("An ArchivePolicy")
    if name == DELIVERY:
        see_topic_policy(see_json(name, value))
    elif name in _JSON:
        see_json(name, value)


def _is_percentage(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) < 4 and int(value) <= 100


def see_large(bytes_max: int, protocols: Sequence[str]) -> None:
    """Verify that a topic's message size limit is compatible with its subscriptions.

    As in SNS, messages above the usual limit can be delivered to a bounded number of queues and to
    no endpoints.

    Raises:
        Fault: a subscription has another protocol, or there are too many.
    """
    if bytes_max <= limits.SNS_MESSAGE_BYTES:
        return
    topic = f"a topic whose {SIZE} is above {limits.SNS_MESSAGE_BYTES}"
    if any(protocol != "sqs" for protocol in protocols):
        raise invalid(f"{SIZE} Reason: {topic} has no subscriptions but those of queues")
    most = limits.SNS_LARGE_SUBSCRIPTIONS_MAX
    if len(protocols) > most:
        raise invalid(f"{SIZE} Reason: {topic} has up to {most} subscriptions")


def see_json(name: str, value: str, before: str = "") -> dict[str, object]:
    """Parse a JSON object.

    Raises:
        Fault: the text is not a JSON object.
    """
    try:
        found = msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _unread(name, before) from error
    if not isinstance(found, dict):
        raise _unread(name, before)
    return found


def _unread(name: str, before: str) -> Fault:
    if name == "Policy":
        return invalid("Policy Error: null")
    return invalid(f"{before}{name}: failed to parse JSON.")


def usual_policy(arn: str, account: str) -> str:
    """Return the default policy of a topic, in which its owner may do everything."""
    actions = (
        "GetTopicAttributes",
        "SetTopicAttributes",
        "AddPermission",
        "RemovePermission",
        "DeleteTopic",
        "Subscribe",
        "ListSubscriptionsByTopic",
        "Publish",
    )
    statement = {
        "Sid": "__default_statement_ID",
        "Effect": "Allow",
        "Principal": {"AWS": "*"},
        "Action": [f"SNS:{action}" for action in actions],
        "Resource": arn,
        "Condition": {"StringEquals": {"AWS:SourceOwner": account}},
    }
    policy = {"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [statement]}
    return msgspec.json.encode(policy).decode()


async def render_attributes(known: TopicInfo, place: TopicLocation) -> dict[str, str]:
    """Return all attributes of a topic."""
    notes = [dict(cell.notes) for cell in await known.subscriptions()]
    pending = sum(PENDING in one for one in notes)
    found = {
        "TopicArn": place.arn,
        "Owner": place.home.account,
        "Policy": known.note("Policy") or usual_policy(place.arn, place.home.account),
        "DisplayName": known.note("DisplayName"),
        "SubscriptionsPending": str(pending),
        "SubscriptionsConfirmed": str(len(notes) - pending),
        "SubscriptionsDeleted": "0",
        "EffectiveDeliveryPolicy": told_of_topic(known.note(DELIVERY)),
    }
    if known.is_fifo:
        found[FIFO] = "true"
        found["ContentBasedDeduplication"] = known.note("ContentBasedDeduplication") or "false"
    for name in SETTABLE:
        if known.note(name):
            found.setdefault(name, known.note(name))
    return found


def is_so(known: TopicInfo, place: TopicLocation, name: str, value: str) -> bool:
    """Return whether a topic has this value of an attribute; defaults count, and JSON is compared
    parsed.
    """
    if name == "Policy":
        usual = usual_policy(place.arn, place.home.account)
        return _means(known.note(name) or usual) == _means(value or usual)
    if name in _JSON:
        return _means(known.note(name)) == _means(value)
    usual = _USUAL.get(name, "")
    return (known.note(name) or usual) == (value or usual)


def _means(text: str) -> object:
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # Other APIs can write notes without validation.
        return text


def notes_of(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the notes that store attributes."""
    return {PREFIX + name: value for name, value in attributes.items()}
