"""The settings of a queue in JSON, with the names and units of the Python API."""

from __future__ import annotations

from typing import Literal, cast

import msgspec

from millrace.client.reserved import NOTE_PREFIXES, check_notes
from millrace.client.settings import QueueSettings
from millrace.core.spec import QueueSpec


class SettingsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a queue, times in seconds; omitted and null settings are left unchanged."""

    keyed: bool | None = None
    """Publishing under a key replaces the key's older revision. Fixed when the queue is made."""
    retention: Literal["work", "log"] | None = None
    """`work` removes settled messages; `log` keeps them."""
    keep_deletes: float | None = None
    """The time for which a deleted key stays readable as a delete, so that followers learn of
    it.
    """
    retry_min: float | None = None
    """Backoff: a message is delayed by this time multiplied by its number of failures; 0: no
    delay.
    """
    retry_max: float | None = None
    """The maximum of the backoff; 0: no limit."""
    max_failures: int | None = None
    """The number of failures after which a message becomes a dead letter; 0: no limit."""
    max_deliveries: int | None = None
    """The number of deliveries after which an unsettled message becomes a dead letter; 0: no
    limit.
    """
    dead_letter: str | None = None
    """The queue in the same space that receives dead letters; empty: they are dropped."""
    delay: float | None = None
    """The delay of messages that do not specify one."""
    dedup: float | None = None
    """The deduplication window, for which ids are remembered; 0: deduplication is off, and ids are
    refused.
    """
    dedup_by_body: bool | None = None
    """Derive the deduplication id of a message without one from its body."""
    ttl: float | None = None
    """The time to live of messages that are not settled; 0: no limit. Not available for logs."""
    dead_letter_expired: bool | None = None
    """Move expired messages to the dead-letter queue."""
    keep: float | None = None
    """With `log`: the maximum age of messages; 0: no limit."""
    keep_bytes: int | None = None
    """With `log`, without keys: the oldest messages expire while the others have this size; 0: no
    limit.
    """
    keep_messages: int | None = None
    """With `log`, without keys: the maximum number of messages; 0: no limit."""
    retain_max: float | None = None
    """A retaining cursor that lags and has not moved for this time is dropped; 0: seven days."""
    retain_max_bytes: int | None = None
    """A retaining cursor that holds back messages of a larger size is dropped; 0: 256 GiB."""
    pin_max_bytes: int | None = None
    """A snapshot that holds back messages of a larger size is dropped; 0: 256 GiB."""
    compressed: Literal["none", "zstd", "lz4"] | None = None
    """The compression of kept messages and large publishes from now on."""
    order: Literal["none", "strict", "group", "fair"] | None = None
    """The delivery order. Fixed when the queue is made, except that `none` can become `fair`."""
    group_in_flight: int | None = None
    """The maximum number of messages in flight per group; 0: no limit."""
    rate: float | None = None
    """The average rate of deliveries in messages per second; 0: no limit."""
    rate_burst: int | None = None
    """The maximum burst after a pause, in messages."""
    group_rate: float | None = None
    """As `rate`, for each group."""
    group_burst: int | None = None
    """As `rate_burst`, for each group."""
    delivery: Literal["messages", "partitions"] | None = None
    """With `partitions`, messages have random ids, and a lease call gets messages of one partition,
    which it locks. Fixed when the queue is made.
    """
    partitions_min: int | None = None
    partitions_max: int | None = None
    """The number of partitions follows the load between `partitions_min` and this."""
    partition_age: float | None = None
    """The time after which unused partitions are removed."""
    max_messages: int | None = None
    """With `work`: the maximum number of messages in each shard; 0: no limit."""
    max_bytes: int | None = None
    """With `work`: the maximum size of the messages, estimated by their mean size; 0: no limit."""
    overflow: Literal["refuse", "drop"] | None = None
    """The handling of a publish beyond the maximum: refuse it, or drop the oldest messages."""
    notes: dict[str, str] | None = None
    """Short texts by name, stored with the queue. Named notes are replaced, those with an empty
    text are removed, and others stay. Notes that the server keeps for SQS and SNS (`aws.` and the
    like) are neither shown nor accepted.
    """
    max_in_flight: int | None = None
    """The maximum number of messages in flight, counted until they end or are ready again; 0: no
    limit.
    """
    group_blocking: Literal["lease", "message"] | None = None
    """With the order `group`, the scope that a message in flight blocks. `lease`: its whole group.
    `message`: the later messages of its group; an earlier one that is visible again is delivered.
    """
    message_bytes_max: int | None = None
    """The maximum size of messages, by body and headers, that a subscription made by SNS forwards
    to the queue: larger ones become dead letters of the subscription. 0: no limit. Messages
    published to the queue itself are not limited by it.
    """


def settings_in(params: SettingsBody) -> QueueSettings:
    """Convert the settings of a request into keyword arguments of the Python API."""
    notes_in(params.notes)
    return cast(
        "QueueSettings", {name: getattr(params, name) for name in SettingsBody.__struct_fields__}
    )


def settings_out(spec: QueueSpec) -> SettingsBody:
    """Return the settings of an existing queue; sending them back unchanged has no effect."""
    return SettingsBody(
        keyed=spec.keyed,
        retention=spec.retention,
        keep_deletes=spec.keep_deletes_ms / 1000,
        retry_min=spec.retry_min_ms / 1000,
        retry_max=spec.retry_max_ms / 1000,
        max_failures=spec.max_failures,
        max_deliveries=spec.max_deliveries,
        dead_letter=spec.dead_letter.rpartition("/")[2],
        delay=spec.delay_ms / 1000,
        dedup=spec.dedup_ms / 1000,
        dedup_by_body=spec.dedup_by_body,
        ttl=spec.ttl_ms / 1000,
        dead_letter_expired=spec.dead_letter_expired,
        keep=spec.keep_ms / 1000,
        keep_bytes=spec.keep_bytes,
        keep_messages=spec.keep_messages,
        retain_max=spec.retain_max_ms / 1000,
        retain_max_bytes=spec.retain_max_bytes,
        pin_max_bytes=spec.pin_max_bytes,
        compressed=spec.compressed or "none",
        order=spec.order,
        group_in_flight=spec.group_in_flight,
        rate=_rate_out(spec.rate_us),
        rate_burst=spec.rate_burst or None,
        group_rate=_rate_out(spec.group_rate_us),
        group_burst=spec.group_burst or None,
        delivery=spec.delivery,
        partitions_min=spec.partitions_min,
        partitions_max=spec.partitions_max,
        partition_age=spec.partition_age_ms / 1000,
        max_messages=spec.max_messages,
        max_bytes=spec.max_bytes,
        overflow=spec.overflow,
        notes=notes_out(dict(spec.notes)),
        max_in_flight=spec.max_in_flight,
        group_blocking=spec.group_blocking,
        message_bytes_max=spec.message_bytes_max,
    )


def notes_in(notes: dict[str, str] | None) -> dict[str, str] | None:
    """Check the notes in a request, and return them.

    Raises:
        Invalid: one of them is reserved for the server.
    """
    check_notes(notes)
    return notes


def notes_out(notes: dict[str, str]) -> dict[str, str]:
    """Return the notes that clients may write; sending them back unchanged has no effect."""
    return {name: text for name, text in notes.items() if not name.startswith(NOTE_PREFIXES)}


def _rate_out(rate_us: int) -> float:
    return 1_000_000 / rate_us if rate_us else 0.0
