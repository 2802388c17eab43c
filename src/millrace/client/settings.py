"""Settings of a queue as programs give them, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypedDict

from millrace import limits
from millrace.core import (
    bounds,
    plain_types,
    token_bucket,
    validate,
)
from millrace.core.commands import SpecPart
from millrace.core.retention import log_retention
from millrace.core.spec import BLOCKINGS, DELIVERIES, Blocking, Delivery, Overflow
from millrace.errors import Invalid


class QueueSettings(TypedDict, total=False):
    """Settings of a queue. A setting that is None or missing is left as it is."""

    keyed: bool | None
    """Publishing under a key replaces the key's older revision. Fixed at creation."""
    retention: str | None
    """"work": settled messages are removed; "log": they stay."""
    keep_deletes: float | None
    """Retention of deletes in seconds: a deleted key stays readable as a delete, so that followers
    learn of it."""
    retry_min: float | None
    """Backoff in seconds: a message that failed n times is delivered again after n times this; 0:
    at once."""
    retry_max: float | None
    """Maximum backoff in seconds; 0: no maximum."""
    max_failures: int | None
    """Failures after which a message becomes a dead letter; 0: never."""
    max_deliveries: int | None
    """Deliveries after which a message becomes a dead letter unless it is settled; 0: never."""
    dead_letter: str | None
    """Queue of the same space that receives dead letters; "": none, they are dropped."""
    delay: float | None
    """Seconds between publishing and delivery, for messages without a delay of their own."""
    dedup: float | None
    """Retention of de-duplication ids in seconds; 0: messages may have none."""
    dedup_by_body: bool | None
    """Messages without an id are de-duplicated by their body: the same body again is a repeat."""
    ttl: float | None
    """Seconds after which a message expires unless it is settled; 0: never. Not for logs."""
    dead_letter_expired: bool | None
    """Messages that expire go to the dead-letter queue."""
    keep: float | None
    """With retention "log": seconds after which messages expire; 0: never."""
    keep_bytes: int | None
    """With retention "log", without keys: the oldest messages expire while the rest have at least
    this many bytes; 0: never. A mebibyte more may stay, or one part in 512."""
    keep_messages: int | None
    """With retention "log", without keys: number of messages beyond which the oldest expire; 0:
    never."""
    retain_max: float | None
    """Seconds without progress after which a retaining cursor that lags behind is dropped; 0: seven
    days."""
    retain_max_bytes: int | None
    """Bytes of messages beyond which a retaining cursor that holds them back is dropped; 0: 256
    GiB."""
    pin_max_bytes: int | None
    """Bytes of messages beyond which a snapshot is dropped that holds them back after they ended;
    0: 256 GiB."""
    compressed: str | None
    """"zstd" or "lz4": compression of messages that stay, and of large publishes, from now on;
    "none": no compression."""
    order: str | None
    """Which messages wait for which: "none", "strict", "group" or "fair". Fixed at creation, except
    that "none" may become "fair" while the queue has few messages."""
    group_in_flight: int | None
    """Maximum number of messages of a group in flight; 0: no maximum."""
    rate: float | None
    """Maximum average rate of deliveries, in messages per second; 0: no maximum."""
    rate_burst: int | None
    """Number of messages delivered at once after a pause; default: those of one second."""
    group_rate: float | None
    """As `rate`, for each group."""
    group_burst: int | None
    """As `rate_burst`, for each group."""
    delivery: str | None
    """"messages"; or "partitions": messages have random ids, and a lease call takes messages of one
    partition (a slice of the ids), which it locks. Fixed at creation."""
    partitions_min: int | None
    partitions_max: int | None
    """The number of partitions follows the load between `partitions_min` and this; default 1 to
    10."""
    partition_age: float | None
    """Seconds after which unused partitions are removed; default five days."""
    max_messages: int | None
    """With retention "work": maximum number of messages, delayed ones and those in flight included;
    0: no maximum. Applies to each shard."""
    max_bytes: int | None
    """With retention "work": maximum bytes of messages, computed from their mean size; 0: no
    maximum."""
    overflow: str | None
    """Handling of a publish beyond the maximum: "refuse" it (`Full`), or "drop" the oldest waiting
    messages, which become dead letters."""
    notes: Mapping[str, str] | None
    """Short texts by name, stored with the queue for any use. Names given here are set, or removed
    if the text is empty; other notes stay."""
    max_in_flight: int | None
    """Maximum number of messages in flight: delivered, and neither ended nor ready again; 0: no
    maximum. Applies to each shard."""
    group_blocking: str | None
    """With order "group": what a message in flight blocks. "lease" (default): its whole group,
    until all delivered messages of it have ended or are visible again. "message": the later
    messages of its group, as in FIFO queues of SQS."""
    message_bytes_max: int | None
    """Maximum size of messages that an SNS subscription forwards to the queue, in bytes of body and
    headers (not counting headers that the server adds): larger ones become dead letters of the
    subscription. 0: no maximum. Publishing to the queue itself is not limited by it."""


def make_spec(space: str, settings: QueueSettings) -> SpecPart:
    """Validate the settings that a program gives.

    Raises:
        Invalid, TooLarge: a setting does not exist, or has an invalid value.
    """
    given: dict[str, Any] = dict(settings)
    unknown = [name for name in given if name not in QueueSettings.__annotations__]
    if unknown:
        names = list(QueueSettings.__annotations__)
        near = get_close_matches(unknown[0], names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        raise Invalid(
            f"{validate.shown(unknown[0])} is no setting of a queue; {hint}", field=unknown[0]
        )

    def millis(name: str, limit_ms: int) -> int | None:
        value = given.get(name)
        return None if value is None else validate.millis(value, name, limit_ms, least_ms=0)

    def number(name: str, limit: int = limits.ATTEMPTS_MAX) -> int | None:
        value = given.get(name)
        if value is None:
            return None
        return 0 if plain_types.whole(value) == 0 else validate.count(value, name, limit)

    def flag(name: str) -> bool | None:
        value = given.get(name)
        return None if value is None else validate.flag(value, name)

    letters = given.get("dead_letter")
    if letters is not None:
        is_none = plain_types.text(letters) == ""
        letters = "" if is_none else f"{space}/{validate.name(letters, 'dead_letter')}"
    return SpecPart(
        flag("keyed"),
        validate.retention(given.get("retention")),
        millis("keep_deletes", limits.KEEP_DELETES_MS_MAX),
        millis("retry_min", limits.DELAY_MS_MAX),
        millis("retry_max", limits.DELAY_MS_MAX),
        number("max_failures"),
        number("max_deliveries"),
        letters,
        millis("delay", limits.DELAY_MS_MAX),
        millis("dedup", bounds.DEDUP_MS_MAX),
        flag("dedup_by_body"),
        millis("keep", log_retention.KEEP_MS_MAX),
        number("keep_bytes", log_retention.RETENTION_BYTES_MAX),
        number("keep_messages", log_retention.RETENTION_MESSAGES_MAX),
        millis("retain_max", limits.CURSOR_RETAIN_MS_MAX),
        number("retain_max_bytes", log_retention.RETENTION_BYTES_MAX),
        number("pin_max_bytes", log_retention.RETENTION_BYTES_MAX),
        validate.compressed(given.get("compressed")),
        millis("ttl", bounds.TTL_MS_MAX),
        flag("dead_letter_expired"),
        validate.order(given.get("order")),
        number("group_in_flight"),
        *_rate("rate", "rate_burst", given),
        *_rate("group_rate", "group_burst", given),
        _delivery(given.get("delivery")),
        number("partitions_min", bounds.PARTITIONS_MAX),
        number("partitions_max", bounds.PARTITIONS_MAX),
        millis("partition_age", bounds.PARTITION_AGE_MS_MAX),
        number("max_messages", log_retention.RETENTION_MESSAGES_MAX),
        number("max_bytes", log_retention.RETENTION_BYTES_MAX),
        _overflow(given.get("overflow")),
        None if given.get("notes") is None else validate.notes(given["notes"]),
        number("max_in_flight", limits.IN_FLIGHT_MAX),
        _blocking(given.get("group_blocking")),
        number("message_bytes_max", limits.BODY_BYTES_MAX),
    )


def _overflow(value: object) -> Overflow | None:
    if value is None:
        return None
    overflows: dict[str, Overflow] = {"refuse": "refuse", "drop": "drop"}
    overflow = overflows.get(plain_types.text(value) or "")
    if overflow is None:
        raise Invalid(
            f"overflow is {validate.shown(value)}, not 'refuse' or 'drop'", field="overflow"
        )
    return overflow


def _blocking(value: object) -> Blocking | None:
    """Validate `group_blocking`; None if it is not given."""
    if value is None:
        return None
    text = plain_types.text(value)
    for blocking in BLOCKINGS:
        if text == blocking:
            return blocking
    raise Invalid(
        f"group_blocking is {validate.shown(value)}, not 'lease' or 'message'",
        field="group_blocking",
    )


def _rate(name: str, burst: str, given: Mapping[str, object]) -> tuple[int | None, int | None]:
    """Return the interval between messages in microseconds, and the burst."""
    rate_us = burst_limit = None
    if given.get(name) is not None:
        rate_us = validate.rate_us(given[name], name)
        burst_limit = max(1_000_000 // rate_us, 1) if rate_us else 0
    if given.get(burst) is not None:
        burst_limit = validate.count(given[burst], burst, token_bucket.BURST_MAX)
    return rate_us, burst_limit


def _delivery(value: object) -> Delivery | None:
    """Validate `delivery`; None if it is not given."""
    if value is None:
        return None
    text = plain_types.text(value)
    for delivery in DELIVERIES:
        if text == delivery:
            return delivery
    raise Invalid(
        f"delivery is {validate.shown(value)}, not {' or '.join(DELIVERIES)}", field="delivery"
    )
