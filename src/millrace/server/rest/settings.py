"""The settings of a queue in JSON, by the names and units that programs use."""

from __future__ import annotations

from typing import Literal, cast

import msgspec

from millrace.client.reserved import NOTE_PREFIXES, check_notes
from millrace.client.settings import QueueSettings
from millrace.core.spec import QueueSpec


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be said about a queue, times in seconds; null says nothing, nor what is left out."""

    keyed: bool | None = None
    """Publishing under a key replaces the key's older revision. Fixed when the queue is made."""
    retention: Literal["work", "log"] | None = None
    """work: settled messages go; log: they stay."""
    keep_deletes: float | None = None
    """How long a deleted key stays readable as a delete, so that followers learn of it."""
    retry_min: float | None = None
    """A message that failed n times is left alone for n times so long; 0: not at all."""
    retry_max: float | None = None
    """But for no longer than this; 0: without a bound."""
    max_failures: int | None = None
    """A message that failed so often is a dead letter; 0: never."""
    max_deliveries: int | None = None
    """A message that was handed out so often is a dead letter unless it is settled; 0: never."""
    dead_letter: str | None = None
    """The queue of the same space that takes dead letters; empty: none, they are dropped."""
    delay: float | None = None
    """So long after it was published nobody gets a message that names no other delay."""
    dedup: float | None = None
    """How long a de-duplication id is remembered; 0: messages may have none."""
    dedup_by_body: bool | None = None
    """A message without an id has that of its body: the same body again is a repeat."""
    ttl: float | None = None
    """A message that is not settled within this time expires; 0: never. Not of logs."""
    dead_letter_expired: bool | None = None
    """What expires goes to the dead-letter queue."""
    keep: float | None = None
    """Under log: messages that are older expire; 0: never."""
    keep_bytes: int | None = None
    """Under log, without keys: the oldest expire while the others have so many bytes; 0: never."""
    keep_messages: int | None = None
    """Under log, without keys: the oldest expire beyond so many; 0: never."""
    retain_max: float | None = None
    """A retaining cursor that is behind and has not moved for so long is dropped; 0: seven days."""
    retain_max_bytes: int | None = None
    """A retaining cursor that holds back messages of more bytes is dropped; 0: of 256 GiB."""
    pin_max_bytes: int | None = None
    """A snapshot that keeps messages of more bytes is dropped; 0: of 256 GiB."""
    compressed: Literal["none", "zstd", "lz4"] | None = None
    """How messages that stay, and large publishes, are compressed from now on."""
    order: Literal["none", "strict", "group", "fair"] | None = None
    """Who waits for whom. Fixed when the queue is made, but that none may become fair."""
    group_in_flight: int | None = None
    """Of a group so many messages are handed out and not ended, at most; 0: any number."""
    rate: float | None = None
    """So many messages a second are handed out, on average; 0: without a bound."""
    rate_burst: int | None = None
    """And so many at once, after a pause."""
    group_rate: float | None = None
    """As `rate`, of each group."""
    group_burst: int | None = None
    """As `rate_burst`, of each group."""
    delivery: Literal["messages", "partitions"] | None = None
    """partitions: messages have random ids, and a lease call is given some of one slice of them,
    which it locks. Fixed when the queue is made."""
    partitions_min: int | None = None
    partitions_max: int | None = None
    """Between these the number of partitions follows the load."""
    partition_age: float | None = None
    """Partitions that were not needed for so long go."""
    max_messages: int | None = None
    """Under work: so many messages are there at most, of each shard; 0: any number."""
    max_bytes: int | None = None
    """Under work: so many bytes they have at most, by their mean size; 0: without a bound."""
    overflow: Literal["refuse", "drop"] | None = None
    """What becomes of a publish beyond the maximum: it is refused, or the oldest are dropped."""
    notes: dict[str, str] | None = None
    """Small texts by their names, kept with the queue. Those that are named are put, one with an
    empty text goes, and the others stay. Those that the server keeps for SQS and SNS (`aws.` and
    the like) are neither shown nor taken."""
    max_in_flight: int | None = None
    """So many messages are with workers at most, neither ended nor ready again; 0: as many as can
    be."""
    group_blocking: Literal["lease", "message"] | None = None
    """With order group, what a message in flight keeps back. lease: its whole group. message: what
    comes after it in its group; a message before it that is visible again is delivered."""
    message_bytes_max: int | None = None
    """A subscription that SNS made forwards no larger message to the queue, by its body and
    headers: it is a dead letter of the subscription. 0: without a bound. What is published to the
    queue itself is not bounded by it."""


def settings_in(told: Settings) -> QueueSettings:
    """What a program would name."""
    notes_in(told.notes)
    return cast("QueueSettings", {name: getattr(told, name) for name in Settings.__struct_fields__})


def settings_out(spec: QueueSpec) -> Settings:
    """The settings of a queue that is there: sent back as they are, they change nothing."""
    return Settings(
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
    """The notes that a client names.

    Raises:
        Invalid: the server alone writes one of them.
    """
    check_notes(notes)
    return notes


def notes_out(notes: dict[str, str]) -> dict[str, str]:
    """The notes that a client may have written: sent back as they are, they change nothing."""
    return {name: text for name, text in notes.items() if not name.startswith(NOTE_PREFIXES)}


def _rate_out(rate_us: int) -> float:
    return 1_000_000 / rate_us if rate_us else 0.0
