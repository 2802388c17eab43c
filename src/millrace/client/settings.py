"""The settings of a queue, as a program names them."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypedDict

from millrace import limits
from millrace.core import bounds, check, exact, rate, retain
from millrace.core.commands import SpecPart
from millrace.core.group_cells import BLOCKINGS, Blocking
from millrace.core.partition_cells import DELIVERIES, Delivery
from millrace.core.spec import Overflow
from millrace.errors import Invalid


class QueueSettings(TypedDict, total=False):
    """What may be said about a queue. None, as what is left out, says nothing."""

    keyed: bool | None
    """Publishing under a key replaces the key's older revision. Fixed when the queue is made."""
    retention: str | None
    """"work": settled messages go; "log": they stay."""
    keep_deletes: float | None
    """How many seconds a deleted key stays readable as a delete, so that followers learn of it."""
    retry_min: float | None
    """A message that failed n times is left alone for n times so many seconds; 0: not at all."""
    retry_max: float | None
    """But for no more than so many seconds; 0: without a bound."""
    max_failures: int | None
    """A message that failed so often is a dead letter; 0: never."""
    max_deliveries: int | None
    """A message that was handed out so often is a dead letter unless it is settled; 0: never."""
    dead_letter: str | None
    """The queue of the same space that takes dead letters; "": none, they are dropped."""
    delay: float | None
    """So many seconds after it was published nobody gets a message that names no other delay."""
    dedup: float | None
    """How many seconds a de-duplication id is remembered; 0: messages may have none."""
    dedup_by_body: bool | None
    """A message without an id has that of its body: the same body again is a repeat."""
    ttl: float | None
    """A message that is not settled within so many seconds expires; 0: never. Not of logs."""
    dead_letter_expired: bool | None
    """What expires goes to the dead-letter queue."""
    keep: float | None
    """Under "log": messages that are older than so many seconds expire; 0: never."""
    keep_bytes: int | None
    """Under "log", without keys: the oldest expire while the others have so many bytes; 0: never.
    A mebibyte more may stay, or a part in 512."""
    keep_messages: int | None
    """Under "log", without keys: the oldest expire beyond so many; 0: never."""
    retain_max: float | None
    """A retaining cursor that is behind and has not moved for so many seconds is dropped; 0: for
    seven days."""
    retain_max_bytes: int | None
    """A retaining cursor that holds back messages of more bytes is dropped; 0: of 256 GiB."""
    pin_max_bytes: int | None
    """A snapshot that keeps messages of more bytes, which have ended otherwise, is dropped; 0: of
    256 GiB."""
    compressed: str | None
    """"zstd" or "lz4": how messages that stay, and large publishes, are compressed from now on;
    "none": not at all."""
    order: str | None
    """Who waits for whom: "none", "strict", "group" or "fair". Fixed when the queue is
    made, but that "none" may become "fair" while little is there."""
    group_in_flight: int | None
    """Of a group so many messages are handed out and not ended, at most; 0: any number."""
    rate: float | None
    """So many messages a second are handed out, on average; 0: without a bound."""
    rate_burst: int | None
    """And so many at once, after a pause; unless it is named, as many as in a second."""
    group_rate: float | None
    """As `rate`, of each group."""
    group_burst: int | None
    """As `rate_burst`, of each group."""
    delivery: str | None
    """"messages"; "partitions": messages have random ids, and a lease call is given some of one
    slice of them, which it locks. Fixed when the queue is made."""
    partitions_min: int | None
    partitions_max: int | None
    """Between these the number of partitions follows the load; from 1 to 10 unless named."""
    partition_age: float | None
    """Partitions that were not needed for so many seconds go; five days unless it is named."""
    max_messages: int | None
    """Under "work": so many messages are there at most, in flight and delayed ones too; 0: any
    number. Of each shard, where there are several."""
    max_bytes: int | None
    """Under "work": so many bytes they have at most, by their mean size; 0: without a bound."""
    overflow: str | None
    """What becomes of a publish beyond the maximum: "refuse" it (`Full`), or "drop" the oldest
    messages that wait, which are dead letters then."""
    notes: Mapping[str, str] | None
    """Small texts by their names, which are kept with the queue for whoever has a use for them.
    Those that are named are put, one with an empty text goes, and the others stay."""
    max_in_flight: int | None
    """So many messages are with workers at most: handed out, and neither ended nor ready again; 0:
    as many as can be. Of each shard, where there are several."""
    group_blocking: str | None
    """With order "group", what a message in flight keeps back. "lease" (the default): its whole
    group, until all that was delivered of it has ended or is visible again. "message": what comes
    after it in its group, as in FIFO queues of SQS."""
    message_bytes_max: int | None
    """A subscription that SNS made forwards no larger message to the queue, by its body and headers
    (those that the server writes aside): it is a dead letter of the subscription. 0: without a
    bound. What is published to the queue itself is not bounded by it."""


def make_spec(space: str, settings: QueueSettings) -> SpecPart:
    """The settings that a program names, checked."""
    given: dict[str, Any] = dict(settings)
    unknown = [name for name in given if name not in QueueSettings.__annotations__]
    if unknown:
        known = list(QueueSettings.__annotations__)
        near = get_close_matches(unknown[0], known, n=1)
        way = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise Invalid(
            f"{check.shown(unknown[0])} is no setting of a queue; {way}", field=unknown[0]
        )

    def millis(name: str, most_ms: int) -> int | None:
        value = given.get(name)
        return None if value is None else check.millis(value, name, most_ms, least_ms=0)

    def number(name: str, most: int = limits.ATTEMPTS_MAX) -> int | None:
        value = given.get(name)
        if value is None:
            return None
        return 0 if exact.whole(value) == 0 else check.count(value, name, most)

    def flag(name: str) -> bool | None:
        value = given.get(name)
        return None if value is None else check.flag(value, name)

    letters = given.get("dead_letter")
    if letters is not None:
        is_none = exact.text(letters) == ""
        letters = "" if is_none else f"{space}/{check.name(letters, 'dead_letter')}"
    return SpecPart(
        flag("keyed"),
        check.retention(given.get("retention")),
        millis("keep_deletes", limits.KEEP_DELETES_MS_MAX),
        millis("retry_min", limits.DELAY_MS_MAX),
        millis("retry_max", limits.DELAY_MS_MAX),
        number("max_failures"),
        number("max_deliveries"),
        letters,
        millis("delay", limits.DELAY_MS_MAX),
        millis("dedup", bounds.DEDUP_MS_MAX),
        flag("dedup_by_body"),
        millis("keep", retain.KEEP_MS_MAX),
        number("keep_bytes", retain.RETENTION_BYTES_MAX),
        number("keep_messages", retain.RETENTION_MESSAGES_MAX),
        millis("retain_max", limits.CURSOR_RETAIN_MS_MAX),
        number("retain_max_bytes", retain.RETENTION_BYTES_MAX),
        number("pin_max_bytes", retain.RETENTION_BYTES_MAX),
        check.compressed(given.get("compressed")),
        millis("ttl", bounds.TTL_MS_MAX),
        flag("dead_letter_expired"),
        check.order(given.get("order")),
        number("group_in_flight"),
        *_rate("rate", "rate_burst", given),
        *_rate("group_rate", "group_burst", given),
        _delivery(given.get("delivery")),
        number("partitions_min", bounds.PARTITIONS_MAX),
        number("partitions_max", bounds.PARTITIONS_MAX),
        millis("partition_age", bounds.PARTITION_AGE_MS_MAX),
        number("max_messages", retain.RETENTION_MESSAGES_MAX),
        number("max_bytes", retain.RETENTION_BYTES_MAX),
        _overflow(given.get("overflow")),
        None if given.get("notes") is None else check.notes(given["notes"]),
        number("max_in_flight", limits.IN_FLIGHT_MAX),
        _blocking(given.get("group_blocking")),
        number("message_bytes_max", limits.BODY_BYTES_MAX),
    )


def _overflow(value: object) -> Overflow | None:
    if value is None:
        return None
    overflows: dict[str, Overflow] = {"refuse": "refuse", "drop": "drop"}
    found = overflows.get(exact.text(value) or "")
    if found is None:
        raise Invalid(f"overflow is {check.shown(value)}, not 'refuse' or 'drop'", field="overflow")
    return found


def _blocking(value: object) -> Blocking | None:
    """How messages in flight block their group, or None where that is not named."""
    if value is None:
        return None
    text = exact.text(value)
    for known in BLOCKINGS:
        if text == known:
            return known
    raise Invalid(
        f"group_blocking is {check.shown(value)}, not 'lease' or 'message'", field="group_blocking"
    )


def _rate(name: str, burst: str, given: Mapping[str, object]) -> tuple[int | None, int | None]:
    """Microseconds per message, and how many at once."""
    rate_us = most = None
    if given.get(name) is not None:
        rate_us = check.rate_us(given[name], name)
        most = max(1_000_000 // rate_us, 1) if rate_us else 0
    if given.get(burst) is not None:
        most = check.count(given[burst], burst, rate.BURST_MAX)
    return rate_us, most


def _delivery(value: object) -> Delivery | None:
    """What a lease call takes, or None where that is not named."""
    if value is None:
        return None
    text = exact.text(value)
    for known in DELIVERIES:
        if text == known:
            return known
    raise Invalid(
        f"delivery is {check.shown(value)}, not {' or '.join(DELIVERIES)}", field="delivery"
    )
