"""The attributes of a topic: which may be set, and how they are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from millrace import limits
from millrace.server.aws.fault import Fault
from millrace.server.aws.known import PREFIX
from millrace.server.sns.delivery_policy import see_topic_policy, told_of_topic
from millrace.server.sns.exchange import KnownTopic, is_size
from millrace.server.sns.faults import invalid, unsupported
from millrace.server.sns.headers import PENDING
from millrace.server.sns.place import Place

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
"""What holds for a topic that was told nothing else."""

_FIFO_ONLY = ("ContentBasedDeduplication", "FifoThroughputScope", "ArchivePolicy")
SETTABLE = (*_TEXTS, *_JSON, *_WORDS, SIZE)
FIFO = "FifoTopic"


def see_attribute(name: str, value: str, *, is_fifo: bool) -> None:
    """See that an attribute of a topic can be so; one that is empty is taken away.

    Raises:
        Fault: it cannot, or there is none of this name.
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
    """See that messages of so many bytes can go to subscriptions of these protocols: as with SNS,
    what is larger than is usual goes to some queues, and to no endpoints.

    Raises:
        Fault: they cannot.
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
    """The object that a text of JSON is.

    Raises:
        Fault: it is none.
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
    """The policy of a topic that was given none: its owner may do everything."""
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


async def told(known: KnownTopic, place: Place) -> dict[str, str]:
    """All attributes of a topic."""
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


def is_so(known: KnownTopic, place: Place, name: str, value: str) -> bool:
    """Whether an attribute of a topic is as this value has it: what holds counts, whether it was
    set or not, and of JSON what it means."""
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
        # Other protocols may write whatever they like into notes.
        return text


def notes_of(attributes: Mapping[str, str]) -> dict[str, str]:
    """The notes that attributes are kept in."""
    return {PREFIX + name: value for name, value in attributes.items()}
