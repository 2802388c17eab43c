"""Policies of delivery: how often an endpoint is sent a message again, how fast, and as what.

A topic may have a policy for all of its endpoints, a subscription one of its own, which comes
first unless the topic's says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millrace import limits
from millrace.decoding import convert
from millrace.server.sns.faults import invalid

CONTENT_TYPE = "text/plain; charset=UTF-8"
_TYPES = (
    "text/css",
    "text/csv",
    "text/html",
    "text/plain",
    "text/xml",
    "application/atom+xml",
    "application/json",
    "application/octet-stream",
    "application/soap+xml",
    "application/x-www-form-urlencoded",
    "application/xhtml+xml",
    "application/xml",
)
_BACKOFFS = ("linear", "arithmetic", "geometric", "exponential")
_BOUNDS = {
    "minDelayTarget": (1, limits.SNS_RETRY_SECONDS_MAX),
    "maxDelayTarget": (1, limits.SNS_RETRY_SECONDS_MAX),
    "numRetries": (0, limits.SNS_RETRIES_MAX),
    "numNoDelayRetries": (0, limits.SNS_RETRIES_MAX),
    "numMinDelayRetries": (0, limits.SNS_RETRIES_MAX),
    "numMaxDelayRetries": (0, limits.SNS_RETRIES_MAX),
}
_KNOWN = (*_BOUNDS, "backoffFunction")


class Retries(msgspec.Struct, frozen=True, rename="camel"):
    """How often a message is sent again, and after how long; as SNS says it."""

    min_delay_target: int = limits.SNS_RETRY_SECONDS
    max_delay_target: int = limits.SNS_RETRY_SECONDS
    num_retries: int = limits.SNS_RETRIES
    num_max_delay_retries: int = 0
    num_no_delay_retries: int = 0
    num_min_delay_retries: int = 0
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


class Delivery(msgspec.Struct, frozen=True):
    """How an endpoint is sent messages."""

    retries: Retries = Retries()
    per_second: int = 0
    """So many at most; 0: any number."""
    content_type: str = CONTENT_TYPE


class _Part(msgspec.Struct, frozen=True):
    """The names of the parts of a policy: a topic's are others."""

    retries: str
    throttle: str
    request: str


_OF_TOPIC = _Part("defaultHealthyRetryPolicy", "defaultThrottlePolicy", "defaultRequestPolicy")
_OF_SUBSCRIPTION = _Part("healthyRetryPolicy", "throttlePolicy", "requestPolicy")


# --- Seen ----------------------------------------------------------------------------------------


def see_topic_policy(policy: Mapping[str, object]) -> None:
    """See that the policy of a topic can be followed.

    Raises:
        Fault: it cannot.
    """
    http = policy.get("http", {})
    if not isinstance(http, dict):
        raise invalid("DeliveryPolicy: http must be an object")
    _see(http, _OF_TOPIC, "")


def see_policy(policy: Mapping[str, object], before: str) -> None:
    """See that the policy of a subscription can be followed.

    Raises:
        Fault: it cannot.
    """
    _see(policy, _OF_SUBSCRIPTION, before)


def _see(policy: Mapping[str, object], part: _Part, before: str) -> None:
    retries = _object(policy, part.retries, before)
    for name, (low, high) in _BOUNDS.items():
        _see_number(retries, name, low, high, f"{before}DeliveryPolicy: {part.retries}")
    if retries.get("backoffFunction", "linear") not in _BACKOFFS:
        raise invalid(f"{before}DeliveryPolicy: {part.retries}.backoffFunction")
    made = _retries(Retries(), retries)
    if made.min_delay_target > int(str(retries.get("maxDelayTarget", made.min_delay_target))):
        raise invalid(
            f"{before}DeliveryPolicy: {part.retries}.minDelayTarget must be less than or equal to "
            "maxDelayTarget"
        )
    throttle = _object(policy, part.throttle, before)
    most = limits.SNS_PER_SECOND_MAX
    place = f"{before}DeliveryPolicy: {part.throttle}"
    _see_number(throttle, "maxReceivesPerSecond", 1, most, place)
    request = _object(policy, part.request, before)
    given = request.get("headerContentType", CONTENT_TYPE)
    if not isinstance(given, str) or given.partition(";")[0].strip() not in _TYPES or "\n" in given:
        raise invalid(f"{before}DeliveryPolicy: {part.request}.headerContentType")
    if not given.isascii() or not given.isprintable():
        raise invalid(f"{before}DeliveryPolicy: {part.request}.headerContentType")


def _object(policy: Mapping[str, object], name: str, before: str) -> dict[str, object]:
    found = policy.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise invalid(f"{before}DeliveryPolicy: {name} must be an object")
    return found


def _see_number(policy: Mapping[str, object], name: str, low: int, high: int, place: str) -> None:
    number = policy.get(name, low)
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        raise invalid(f"{place}.{name} must be between {low} and {high}")


# --- Read ----------------------------------------------------------------------------------------


def delivery_of(topic: str, subscription: str) -> Delivery:
    """How an endpoint is sent messages, by the policies that its topic and itself were given."""
    http = _decoded(topic).get("http")
    general = http if isinstance(http, dict) else {}
    found = _with(Delivery(), general, _OF_TOPIC)
    if general.get("disableSubscriptionOverrides") is True:
        return found
    return _with(found, _decoded(subscription), _OF_SUBSCRIPTION)


def _decoded(text: str) -> dict[str, object]:
    found = msgspec.json.decode(text) if text else {}
    return found if isinstance(found, dict) else {}


def _with(base: Delivery, policy: Mapping[str, object], part: _Part) -> Delivery:
    throttle = _object(policy, part.throttle, "").get("maxReceivesPerSecond")
    request = _object(policy, part.request, "").get("headerContentType")
    return Delivery(
        _retries(base.retries, _object(policy, part.retries, "")),
        throttle if isinstance(throttle, int) else base.per_second,
        request if isinstance(request, str) else base.content_type,
    )


def _retries(base: Retries, given: Mapping[str, object]) -> Retries:
    named = {**msgspec.to_builtins(base), **{k: v for k, v in given.items() if k in _KNOWN}}
    found = convert(named, Retries)
    if found.max_delay_target < found.min_delay_target:
        return msgspec.structs.replace(found, max_delay_target=found.min_delay_target)
    return found


def plain(retries: Retries) -> dict[str, object]:
    """As SNS tells it."""
    found = msgspec.to_builtins(retries)
    assert isinstance(found, dict)
    return found


def told_of_topic(text: str) -> str:
    """The policy that a topic's endpoints are sent by, where this one was given."""
    http: dict[str, object] = {
        "defaultHealthyRetryPolicy": plain(Retries()),
        "disableSubscriptionOverrides": False,
        "defaultRequestPolicy": {"headerContentType": CONTENT_TYPE},
    }
    given = _decoded(text).get("http")
    if isinstance(given, dict):
        http |= given
        retries = given.get("defaultHealthyRetryPolicy")
        if isinstance(retries, dict):
            http["defaultHealthyRetryPolicy"] = plain(_retries(Retries(), retries))
    return msgspec.json.encode({"http": http}).decode()


def told_of_subscription(delivery: Delivery) -> str:
    """The policy that an endpoint is sent by."""
    found: dict[str, object] = {"healthyRetryPolicy": plain(delivery.retries)}
    if delivery.per_second:
        found["throttlePolicy"] = {"maxReceivesPerSecond": delivery.per_second}
    found["requestPolicy"] = {"headerContentType": delivery.content_type}
    return msgspec.json.encode(found).decode()
