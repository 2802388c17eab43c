"""The settings of a queue. Fields are positional on disk: append, never reorder."""

from __future__ import annotations

from typing import Literal

import msgspec

from millrace import limits
from millrace.core import bounds
from millrace.core.notes import Notes, merge

Order = Literal["none", "strict", "group", "fair"]
"""Ordering: none; one by one in the queue; one by one in each group; groups take turns."""

ORDERS: tuple[Order, ...] = ("none", "strict", "group", "fair")

Blocking = Literal["lease", "message"]
"""Scope of group blocking in the order `group`: `lease` blocks the group until the whole lease
call has ended; `message` blocks only messages after the first invisible one."""

BLOCKINGS: tuple[Blocking, ...] = ("lease", "message")

Delivery = Literal["messages", "partitions"]
"""Unit of a lease call: single messages, or messages of one partition, which it locks."""

DELIVERIES: tuple[Delivery, ...] = ("messages", "partitions")


Overflow = Literal["refuse", "drop"]


class QueueSpec(msgspec.Struct, frozen=True, array_like=True):
    """The settings of a queue, changed by commands."""

    keyed: bool = False
    """A publish under a key replaces the key's older revision."""
    retention: Literal["work", "log"] = "work"
    """Effect of a settle: `work` ends the row, `log` keeps it."""
    keep_deletes_ms: int = limits.KEEP_DELETES_MS
    """Time for which a delete stays readable, so that followers see it."""
    retry_min_ms: int = 0
    """Backoff: after n failures a message is redelivered n times this delay later; 0: at once."""
    retry_max_ms: int = 0
    """Upper bound of the backoff."""
    max_failures: int = 0
    """Failures after which a message is a dead letter; 0: never."""
    max_deliveries: int = 0
    """Deliveries after which a message is not delivered again; 0: no limit."""
    dead_letter: str = ""
    """The dead-letter queue, as space/name; without it dead letters are dropped."""
    delay_ms: int = 0
    """Delay of messages that are published without a delay of their own."""
    dedup_ms: int = bounds.DEDUP_MS
    """Deduplication window; 0: ids are refused."""
    dedup_by_body: bool = False
    """Messages without an id are deduplicated by their body."""
    keep_ms: int = 0
    """Under `log`: older rows expire; 0: never."""
    keep_bytes: int = 0
    """Under `log`: the oldest rows expire while the rest has at least these bytes; 0: never."""
    keep_messages: int = 0
    """Under `log`: the oldest rows expire beyond this number; 0: never."""
    retain_max_ms: int = 0
    """Idle time after which a retaining cursor that lags behind is dropped; 0: the default."""
    retain_max_bytes: int = 0
    """A retaining cursor that holds back more bytes is dropped; 0: the default."""
    pin_max_bytes: int = 0
    """A pin that keeps more bytes of dead rows is dropped; 0: the default."""
    compressed: Literal["", "zstd", "lz4"] = ""
    """Compression of committed and sealed rows; empty: none."""
    ttl_ms: int = 0
    """Under `work`: TTL of unsettled messages from their publish on; 0: none."""
    dead_letter_expired: bool = False
    """Expired messages become dead letters."""
    order: Order = "none"
    """Ordering of deliveries. Fixed at creation, except that `none` may become `fair`."""
    group_in_flight: int = 0
    """Limit of messages of one group in flight; 0: none."""
    rate_us: int = 0
    """Microseconds per delivery on average, a rate limit; 0: none."""
    rate_burst: int = 0
    """Burst of the rate limit: deliveries allowed at once after a pause."""
    group_rate_us: int = 0
    """Rate limit of each group, as `rate_us`."""
    group_burst: int = 0
    delivery: Delivery = "messages"
    """Unit of a lease call. Fixed at creation."""
    partitions_min: int = 1
    partitions_max: int = bounds.PARTITIONS
    """With `partitions_min`, the range of the number of partitions, which follows the load."""
    partition_age_ms: int = bounds.PARTITION_AGE_MS
    """Idle time after which an unneeded partition is removed."""
    max_messages: int = 0
    """Under `work`: limit of messages in the queue; 0: none."""
    max_bytes: int = 0
    """Under `work`: limit of their bytes, as far as known; 0: none."""
    overflow: Overflow = "refuse"
    """Effect of a full queue: the publish is refused, or the oldest waiting messages are
    dropped."""
    notes: Notes = ()
    """Notes of a front end about the queue; the engine ignores them."""
    max_in_flight: int = 0
    """Limit of messages in flight; 0: none."""
    group_blocking: Blocking = "lease"
    """Scope of group blocking by messages in flight, in the order `group`."""
    message_bytes_max: int = 0
    """Size limit of messages forwarded by a durable subscription; 0: none."""

    def is_plain(self) -> bool:
        """Return True if a publish without number, deletes, ids and schedules needs no check."""
        return not (
            self.keyed
            or self.delay_ms
            or self.dedup_by_body
            or self.is_grouped
            or self.is_partitioned
            or self.is_bounded
        )

    def hands_out_in_order(self) -> bool:
        """Return True if new messages are delivered by seq alone, without any other condition."""
        return not (
            self.order != "none"
            or self.delivery != "messages"
            or self.rate_us
            or self.keyed
            or self.retention != "work"
        )

    @property
    def is_bounded(self) -> bool:
        """True if the queue has a limit of messages or bytes."""
        return bool(self.max_messages or self.max_bytes)

    @property
    def is_grouped(self) -> bool:
        """True if messages wait in groups instead of in the order of seqs."""
        return self.order in ("group", "fair")

    @property
    def blocking(self) -> Literal["none", "lease", "message"]:
        """Scope of group blocking; "none" if the order is not `group`."""
        return self.group_blocking if self.order == "group" else "none"

    @property
    def is_partitioned(self) -> bool:
        """True if a lease call takes messages of one partition and locks it."""
        return self.delivery == "partitions"


class SpecPart(msgspec.Struct, frozen=True):
    """A part of the settings of a queue; None: not given."""

    keyed: bool | None = None
    retention: Literal["work", "log"] | None = None
    keep_deletes_ms: int | None = None
    retry_min_ms: int | None = None
    retry_max_ms: int | None = None
    max_failures: int | None = None
    max_deliveries: int | None = None
    dead_letter: str | None = None
    delay_ms: int | None = None
    dedup_ms: int | None = None
    dedup_by_body: bool | None = None
    keep_ms: int | None = None
    keep_bytes: int | None = None
    keep_messages: int | None = None
    retain_max_ms: int | None = None
    retain_max_bytes: int | None = None
    pin_max_bytes: int | None = None
    compressed: Literal["", "zstd", "lz4"] | None = None
    ttl_ms: int | None = None
    dead_letter_expired: bool | None = None
    order: Order | None = None
    group_in_flight: int | None = None
    rate_us: int | None = None
    rate_burst: int | None = None
    group_rate_us: int | None = None
    group_burst: int | None = None

    delivery: Delivery | None = None
    partitions_min: int | None = None
    partitions_max: int | None = None
    partition_age_ms: int | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    overflow: Overflow | None = None
    notes: Notes | None = None
    """The notes to change; an empty text removes a note."""
    max_in_flight: int | None = None
    group_blocking: Blocking | None = None
    message_bytes_max: int | None = None

    def onto(self, spec: QueueSpec) -> QueueSpec:
        """Return these settings, completed by those of `spec`."""
        named = msgspec.structs.asdict(self)
        named["notes"] = merge(spec.notes, self.notes)
        return msgspec.structs.replace(
            spec, **{name: value for name, value in named.items() if value is not None}
        )
