"""The attributes of a subscription: which may be set, and how they are told."""

from __future__ import annotations

import msgspec

from millrace import limits
from millrace.server.aws.known import PREFIX
from millrace.server.aws.names import read_arn
from millrace.server.sns.faults import invalid
from millrace.server.sns.filter_policy import ATTRIBUTES, SCOPES, read_policy
from millrace.server.sns.headers import ENDPOINT, OWNER, PENDING, PROTOCOL
from millrace.server.sns.place import Found
from millrace.server.sns.topic_attributes import RETRIES, see_json

POLICY = "FilterPolicy"
SCOPE = "FilterPolicyScope"
RAW_DELIVERY = "RawMessageDelivery"
REDRIVE = "RedrivePolicy"
DELIVERY = "DeliveryPolicy"
SETTABLE = (POLICY, SCOPE, RAW_DELIVERY, REDRIVE, DELIVERY, "SubscriptionRoleArn", "ReplayPolicy")


class Redrive(msgspec.Struct, frozen=True):
    """Where what cannot be delivered goes."""

    space: str
    name: str


class Retries(msgspec.Struct, frozen=True, rename="camel"):
    """How often a message is sent again, and after how long; as SNS says it."""

    min_delay_target: int = limits.SNS_RETRY_SECONDS
    max_delay_target: int = limits.SNS_RETRY_SECONDS
    num_retries: int = limits.SNS_RETRIES
    num_no_delay_retries: int = 0
    num_min_delay_retries: int = 0
    num_max_delay_retries: int = 0
    backoff_function: str = "linear"

    def seconds(self, failures: int) -> float:
        """How long to wait after so many failures."""
        low, high = self.min_delay_target, self.max_delay_target
        at = failures - 1 - self.num_no_delay_retries
        if at < 0:
            return 0
        at -= self.num_min_delay_retries
        if at < 0:
            return low
        steps = (
            self.num_retries
            - self.num_no_delay_retries
            - self.num_min_delay_retries
            - self.num_max_delay_retries
        )
        if at >= steps:
            return high
        part = at / (steps - 1) if steps > 1 else 1.0
        if self.backoff_function == "arithmetic":
            part *= part
        elif self.backoff_function in ("geometric", "exponential"):
            return float(low * (high / low) ** part)
        return low + (high - low) * part


def see_attribute(name: str, value: str, topic: str, endpoint: str, before: str = "") -> None:
    """See that an attribute of a subscription can be so; one that is empty is taken away.

    Raises:
        Fault: it cannot, or there is none of this name.
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
        _see_delivery(value, before)


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


def _see_delivery(value: str, before: str) -> None:
    policy = see_json(DELIVERY, value, before).get("healthyRetryPolicy", {})
    if not isinstance(policy, dict):
        raise invalid(f"{before}DeliveryPolicy: healthyRetryPolicy must be an object")
    bounds = {
        "minDelayTarget": (1, limits.SNS_RETRY_SECONDS_MAX),
        "maxDelayTarget": (1, limits.SNS_RETRY_SECONDS_MAX),
        "numRetries": (0, limits.SNS_RETRIES_MAX),
        "numNoDelayRetries": (0, limits.SNS_RETRIES_MAX),
        "numMinDelayRetries": (0, limits.SNS_RETRIES_MAX),
        "numMaxDelayRetries": (0, limits.SNS_RETRIES_MAX),
    }
    for name, (low, high) in bounds.items():
        number = policy.get(name, low)
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            raise invalid(
                f"{before}DeliveryPolicy: healthyRetryPolicy.{name} must be between {low} and "
                f"{high}"
            )
    words = ("linear", "arithmetic", "geometric", "exponential")
    if policy.get("backoffFunction", "linear") not in words:
        raise invalid(f"{before}DeliveryPolicy: healthyRetryPolicy.backoffFunction")
    if policy.get("minDelayTarget", 1) > policy.get("maxDelayTarget", 3600):
        raise invalid(
            f"{before}DeliveryPolicy: healthyRetryPolicy.minDelayTarget must be less than or equal "
            "to maxDelayTarget"
        )


def retries_of(notes: dict[str, str]) -> Retries:
    """How often what goes to an endpoint is sent again."""
    text = notes.get(PREFIX + DELIVERY, "")
    given = msgspec.json.decode(text).get("healthyRetryPolicy", {}) if text else {}
    named = {**RETRIES, **given}
    low = int(named["minDelayTarget"])
    return Retries(
        low,
        max(low, int(named["maxDelayTarget"])),
        int(named["numRetries"]),
        int(named["numNoDelayRetries"]),
        int(named["numMinDelayRetries"]),
        int(named["numMaxDelayRetries"]),
        str(named["backoffFunction"]),
    )


def filter_of(notes: dict[str, str], before: str = "") -> dict[str, object]:
    """The filter of a subscription with these notes.

    Raises:
        Fault: its policy is none.
    """
    scope = notes.get(PREFIX + SCOPE, ATTRIBUTES)
    return read_policy(notes.get(PREFIX + POLICY, ""), scope, before)


def told(found: Found) -> dict[str, str]:
    """All attributes of a subscription."""
    notes = found.notes
    is_pending = PENDING in notes
    attributes = {
        "SubscriptionArn": found.arn,
        "TopicArn": found.place.arn,
        "Owner": notes.get(OWNER, found.place.home.account),
        "Protocol": notes.get(PROTOCOL, "sqs"),
        "Endpoint": notes.get(ENDPOINT, ""),
        "PendingConfirmation": "true" if is_pending else "false",
        "ConfirmationWasAuthenticated": "false" if is_pending else "true",
        "SubscriptionPrincipal": (
            f"arn:aws:iam::{notes.get(OWNER, found.place.home.account)}:root"
        ),
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
        policy = {"healthyRetryPolicy": _plain(retries_of(notes))}
        attributes["EffectiveDeliveryPolicy"] = msgspec.json.encode(policy).decode()
    return attributes


def _plain(retries: Retries) -> dict[str, object]:
    found = msgspec.to_builtins(retries)
    assert isinstance(found, dict)
    return found
