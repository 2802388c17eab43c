"""Delivery policies: retries, rate limit and content type of deliveries to endpoints.

A topic may have a policy for all its endpoints, and a subscription one of its own, which takes
precedence unless the topic's policy disables overrides.
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


class RetryPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """A retry policy with the field names and defaults of SNS."""

    min_delay_target: int = limits.SNS_RETRY_SECONDS
    max_delay_target: int = limits.SNS_RETRY_SECONDS
    num_retries: int = limits.SNS_RETRIES
    num_max_delay_retries: int = 0
    num_no_delay_retries: int = 0
    num_min_delay_retries: int = 0
    backoff_function: str = "linear"

    def seconds(self, failures: int) -> float:
        """Return the backoff in seconds after this number of failures."""
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


class DeliveryPolicy(msgspec.Struct, frozen=True):
    """The effective delivery policy of an endpoint."""

    retries: RetryPolicy = RetryPolicy()
    per_second: int = 0
    """Maximum rate of messages per second; 0 means unlimited."""
    content_type: str = CONTENT_TYPE


class _Part(msgspec.Struct, frozen=True):
    """The names of a policy's parts, which differ between topics and subscriptions."""

    retries: str
    throttle: str
    request: str


_OF_TOPIC = _Part("defaultHealthyRetryPolicy", "defaultThrottlePolicy", "defaultRequestPolicy")
_OF_SUBSCRIPTION = _Part("healthyRetryPolicy", "throttlePolicy", "requestPolicy")


# --- Seen ----------------------------------------------------------------------------------------


def see_topic_policy(policy: Mapping[str, object]) -> None:
    """Validate the delivery policy of a topic.

    Raises:
        Fault: the policy is invalid.
    """
    http = policy.get("http", {})
    if not isinstance(http, dict):
        raise invalid("DeliveryPolicy: http must be an object")
    _see(http, _OF_TOPIC, "")


def see_policy(policy: Mapping[str, object], before: str) -> None:
    """Validate the delivery policy of a subscription.

    Raises:
        Fault: the policy is invalid.
    """
    _see(policy, _OF_SUBSCRIPTION, before)


def _see(policy: Mapping[str, object], part: _Part, before: str) -> None:
    retries = _object(policy, part.retries, before)
    for name, (low, high) in _BOUNDS.items():
        _see_number(retries, name, low, high, f"{before}DeliveryPolicy: {part.retries}")
    if retries.get("backoffFunction", "linear") not in _BACKOFFS:
        raise invalid(f"{before}DeliveryPolicy: {part.retries}.backoffFunction")
    made = _retries(RetryPolicy(), retries)
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


def delivery_of(topic: str, subscription: str) -> DeliveryPolicy:
    """Return the effective policy of an endpoint from the policies of topic and subscription."""
    http = _decoded(topic).get("http")
    general = http if isinstance(http, dict) else {}
    found = _with(DeliveryPolicy(), general, _OF_TOPIC)
    if general.get("disableSubscriptionOverrides") is True:
        return found
    return _with(found, _decoded(subscription), _OF_SUBSCRIPTION)


def _decoded(text: str) -> dict[str, object]:
    found = msgspec.json.decode(text) if text else {}
    return found if isinstance(found, dict) else {}


def _with(base: DeliveryPolicy, policy: Mapping[str, object], part: _Part) -> DeliveryPolicy:
    throttle = _object(policy, part.throttle, "").get("maxReceivesPerSecond")
    request = _object(policy, part.request, "").get("headerContentType")
    return DeliveryPolicy(
        _retries(base.retries, _object(policy, part.retries, "")),
        throttle if isinstance(throttle, int) else base.per_second,
        request if isinstance(request, str) else base.content_type,
    )


def _retries(base: RetryPolicy, given: Mapping[str, object]) -> RetryPolicy:
    named = {**msgspec.to_builtins(base), **{k: v for k, v in given.items() if k in _KNOWN}}
    found = convert(named, RetryPolicy)
    if found.max_delay_target < found.min_delay_target:
        return msgspec.structs.replace(found, max_delay_target=found.min_delay_target)
    return found


def plain(retries: RetryPolicy) -> dict[str, object]:
    """Return a retry policy with the field names of SNS."""
    found = msgspec.to_builtins(retries)
    assert isinstance(found, dict)
    return found


def told_of_topic(text: str) -> str:
    """Return the effective delivery policy of a topic as JSON."""
    http: dict[str, object] = {
        "defaultHealthyRetryPolicy": plain(RetryPolicy()),
        "disableSubscriptionOverrides": False,
        "defaultRequestPolicy": {"headerContentType": CONTENT_TYPE},
    }
    given = _decoded(text).get("http")
    if isinstance(given, dict):
        http |= given
        retries = given.get("defaultHealthyRetryPolicy")
        if isinstance(retries, dict):
            http["defaultHealthyRetryPolicy"] = plain(_retries(RetryPolicy(), retries))
    return msgspec.json.encode({"http": http}).decode()


def told_of_subscription(delivery: DeliveryPolicy) -> str:
    """Return the effective delivery policy of a subscription as JSON."""
    found: dict[str, object] = {"healthyRetryPolicy": plain(delivery.retries)}
    if delivery.per_second:
        found["throttlePolicy"] = {"maxReceivesPerSecond": delivery.per_second}
    found["requestPolicy"] = {"headerContentType": delivery.content_type}
    return msgspec.json.encode(found).decode()
