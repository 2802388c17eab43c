"""Subscription attributes: validation, conversion to settings, and rendering."""

from __future__ import annotations

from millrace.server.aws.names import AccountRegion, read_arn, space_of
from millrace.server.aws.queue_info import PREFIX
from millrace.server.aws.topic_headers import (
    ENDPOINT,
    OWNER,
    PENDING,
    PRINCIPAL,
    PROTOCOL,
    RAW,
    SUBSCRIPTION,
)
from millrace.server.sns.delivery_policy import (
    DeliveryPolicy,
    delivery_of,
    see_policy,
    told_of_subscription,
)
from millrace.server.sns.faults import invalid, unsupported
from millrace.server.sns.filter_policy import ATTRIBUTES, SCOPES, read_policy
from millrace.server.sns.resource_lookup import LocatedSubscription
from millrace.server.sns.topic_attributes import see_json
from millrace.server.sns.topic_cache import TopicInfo

POLICY = "FilterPolicy"
SCOPE = "FilterPolicyScope"
RAW_DELIVERY = "RawMessageDelivery"
REDRIVE = "RedrivePolicy"
DELIVERY = "DeliveryPolicy"
SETTABLE = (POLICY, SCOPE, RAW_DELIVERY, REDRIVE, DELIVERY, "SubscriptionRoleArn", "ReplayPolicy")
DEFAULTS = {PREFIX + SCOPE: ATTRIBUTES, PREFIX + RAW_DELIVERY: "false"}
"""Values of notes that a subscription does not have."""


def see_attribute(name: str, value: str, topic: str, endpoint: str, before: str = "") -> None:
    """Validate an attribute of a subscription; an empty value removes it.

    Raises:
        Fault: the attribute is unknown, or its value is invalid.
    """
    if name not in SETTABLE:
        raise invalid(f"{before}AttributeName")
    if name == SCOPE:
        if value not in SCOPES:
            raise invalid(
                f"{before}FilterPolicyScope: Invalid value [{value}]. Please use either "
                "MessageBody or MessageAttributes"
            )
    elif name == RAW_DELIVERY:
        if value.lower() not in ("true", "false"):
            raise invalid(
                f"{before}RawMessageDelivery: Invalid value [{value}]. Must be true or false."
            )
    elif name == REDRIVE:
        _see_redrive(value, topic, endpoint, before)
    elif name == DELIVERY and value:
        see_policy(see_json(DELIVERY, value, before), before)
    elif name == "ReplayPolicy" and value:
        raise unsupported("A ReplayPolicy")


def _see_redrive(value: str, topic: str, endpoint: str, before: str) -> None:
    if not value:
        return
    arn = read_arn(str(see_json(REDRIVE, value, before).get("deadLetterTargetArn", "")))
    if arn is None or arn.service != "sqs":
        raise invalid(f"{before}RedrivePolicy: deadLetterTargetArn is an invalid arn")
    home = read_arn(topic)
    if home is not None and arn.home != home.home:
        raise invalid(
            f"{before}RedrivePolicy: deadLetterTargetArn must be of the account and region of the "
            "topic"
        )
    if topic.endswith(".fifo") and endpoint.endswith(".fifo") and not arn.name.endswith(".fifo"):
        raise invalid(
            f"{before}RedrivePolicy: must use a FIFO queue as DLQ for a FIFO Subscription to a "
            "FIFO Topic."
        )


def delivery(notes: dict[str, str], topic: TopicInfo) -> DeliveryPolicy:
    """Return the effective delivery policy of a subscription with these notes."""
    return delivery_of(topic.note(DELIVERY), notes.get(PREFIX + DELIVERY, ""))


def filter_of(notes: dict[str, str], before: str = "") -> dict[str, object]:
    """Return the filter of a subscription with these notes.

    Raises:
        Fault: its filter policy is invalid.
    """
    scope = notes.get(PREFIX + SCOPE, ATTRIBUTES)
    return read_policy(notes.get(PREFIX + POLICY, ""), scope, before)


def letters_of(notes: dict[str, str], usual: AccountRegion) -> str:
    """Return the dead-letter queue of a subscription with these notes as `space/name`; empty if
    none.
    """
    policy = notes.get(PREFIX + REDRIVE, "")
    arn = (
        read_arn(str(see_json(REDRIVE, policy).get("deadLetterTargetArn", ""))) if policy else None
    )
    return "" if arn is None else f"{space_of(arn.home, usual)}/{arn.name}"


def queue_notes_of(topic: str, name: str, notes: dict[str, str], guest: str = "") -> dict[str, str]:
    """Return the notes that link a queue to its subscription, by name and ARN of the topic."""
    links = {f"{guest}{SUBSCRIPTION}{topic}": name}
    if notes.get(PREFIX + RAW_DELIVERY) == "true":
        links[f"{guest}{RAW}{topic}"] = "1"
    return links


def render_attributes(found: LocatedSubscription) -> dict[str, str]:
    """Return all attributes of a subscription."""
    notes = found.notes
    is_pending = PENDING in notes
    owner = notes.get(OWNER, found.place.home.account)
    attributes = {
        "SubscriptionArn": found.arn,
        "TopicArn": found.place.arn,
        "Owner": owner,
        "Protocol": notes.get(PROTOCOL, "sqs"),
        "Endpoint": notes.get(ENDPOINT, ""),
        "PendingConfirmation": "true" if is_pending else "false",
        "ConfirmationWasAuthenticated": "false" if is_pending else "true",
        "SubscriptionPrincipal": notes.get(PRINCIPAL) or f"arn:aws:iam::{owner}:root",
        RAW_DELIVERY: "false",
    }
    for name in SETTABLE:
        if notes.get(PREFIX + name):
            attributes[name] = notes[PREFIX + name]
    if POLICY in attributes:
        attributes.setdefault(SCOPE, ATTRIBUTES)
    else:
        attributes.pop(SCOPE, None)
    if attributes["Protocol"] != "sqs":
        found_delivery = delivery(notes, found.known)
        attributes["EffectiveDeliveryPolicy"] = told_of_subscription(found_delivery)
    return attributes
