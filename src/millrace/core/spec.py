"""The settings of a queue. Fields are positional on disk: append, never reorder."""

from __future__ import annotations

from typing import Literal

import msgspec

from millrace import limits
from millrace.core import bounds
from millrace.core.group_cells import Blocking, Order
from millrace.core.notes import Notes, merge
from millrace.core.partition_cells import Delivery

Overflow = Literal["refuse", "drop"]


class QueueSpec(msgspec.Struct, frozen=True, array_like=True):
    """The settings of a queue: data, changed by a logged command."""

    keyed: bool = False
    """Publishing under a key replaces the key's older revision."""
    retention: Literal["work", "log"] = "work"
    """What settling does: `work` ends the row, `log` keeps it."""
    keep_deletes_ms: int = limits.KEEP_DELETES_MS
    """How long a delete stays readable, so that followers learn of it."""
    retry_min_ms: int = 0
    """A message that failed n times is handed out again after n times so long; 0: at once."""
    retry_max_ms: int = 0
    """But not later than so long after its failure."""
    max_failures: int = 0
    """A message that failed so often is a dead letter; 0: never."""
    max_deliveries: int = 0
    """A message that was handed out so often is not handed out again; 0: always."""
    dead_letter: str = ""
    """Where dead letters go, as space/name; without it they are dropped."""
    delay_ms: int = 0
    """So long after it was published nobody gets a message that says nothing about that."""
    dedup_ms: int = bounds.DEDUP_MS
    """How long a de-duplication id is remembered; 0: none is taken."""
    dedup_by_body: bool = False
    """A message without an id has that of its body."""
    keep_ms: int = 0
    """Under `log`: rows that are older expire; 0: never."""
    keep_bytes: int = 0
    """Under `log`: the oldest rows expire while the others have so many bytes; 0: never."""
    keep_messages: int = 0
    """Under `log`: the oldest rows expire beyond so many; 0: never."""
    retain_max_ms: int = 0
    """A retaining cursor that is behind and has not moved for so long is dropped; 0: as usual."""
    retain_max_bytes: int = 0
    """A retaining cursor that holds back rows of more bytes is dropped; 0: as usual."""
    pin_max_bytes: int = 0
    """A pin that keeps dead rows of more bytes is dropped; 0: as usual."""
    compressed: Literal["", "zstd", "lz4"] = ""
    """How rows are compressed when they are sealed; empty: not at all."""
    ttl_ms: int = 0
    """Under `work`: what is not settled so long after it was published expires; 0: never."""
    dead_letter_expired: bool = False
    """What expires is a dead letter, and goes where those go."""
    order: Order = "none"
    """Who waits for whom. Fixed when the queue is made, but that `none` may become `fair`."""
    group_in_flight: int = 0
    """So many messages of a group are handed out and not ended, at most; 0: any number."""
    rate_us: int = 0
    """A message is handed out every so many microseconds, on average; 0: without a bound."""
    rate_burst: int = 0
    """So many may be handed out at once, after a pause."""
    group_rate_us: int = 0
    """As `rate_us`, of each group."""
    group_burst: int = 0
    delivery: Delivery = "messages"
    """What a lease call takes. Fixed when the queue is made."""
    partitions_min: int = 1
    partitions_max: int = bounds.PARTITIONS
    """Between these their number follows the load."""
    partition_age_ms: int = bounds.PARTITION_AGE_MS
    """Partitions that were not needed for so long go."""
    max_messages: int = 0
    """Under `work`: so many are there at most; 0: any number."""
    max_bytes: int = 0
    """Under `work`: so many bytes they have at most, as far as is known; 0: without a bound."""
    overflow: Overflow = "refuse"
    """What a publish does that does not fit: it is refused, or the oldest that wait are dropped."""
    notes: Notes = ()
    """What a front end keeps with the queue; the engine does not look at it."""
    max_in_flight: int = 0
    """So many are with workers at most, neither ended nor ready again; 0: as many as can be."""
    group_blocking: Blocking = "lease"
    """What messages in flight keep back of their group, in the order `group`."""
    message_bytes_max: int = 0
    """A durable subscription forwards no larger message to the queue; 0: without a bound."""

    def is_plain(self) -> bool:
        """Whether a publish without number, deletes, ids and turns needs no check."""
        return not (
            self.keyed
            or self.delay_ms
            or self.dedup_by_body
            or self.is_grouped
            or self.is_partitioned
            or self.is_bounded
        )

    def hands_out_in_order(self) -> bool:
        """Whether those that were never handed out come by their seqs, and nothing else counts."""
        return not (
            self.order != "none"
            or self.delivery != "messages"
            or self.rate_us
            or self.keyed
            or self.retention != "work"
        )

    @property
    def is_bounded(self) -> bool:
        """Whether the queue may be full."""
        return bool(self.max_messages or self.max_bytes)

    @property
    def is_grouped(self) -> bool:
        """Whether messages wait in groups, and not in the order of their seqs."""
        return self.order in ("group", "fair")

    @property
    def blocking(self) -> Literal["none", "lease", "message"]:
        """How messages in flight block their group; "none" if the order is not `group`."""
        return self.group_blocking if self.order == "group" else "none"

    @property
    def is_partitioned(self) -> bool:
        """Whether a lease call takes some of a partition, and locks it."""
        return self.delivery == "partitions"


class SpecPart(msgspec.Struct, frozen=True):
    """Those settings of a queue that were named; None says nothing about one."""

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
    """Those that are named; an empty text ends one."""
    max_in_flight: int | None = None
    group_blocking: Blocking | None = None
    message_bytes_max: int | None = None

    def onto(self, spec: QueueSpec) -> QueueSpec:
        """These settings, with what is not named as it is in `spec`."""
        named = msgspec.structs.asdict(self)
        named["notes"] = merge(spec.notes, self.notes)
        return msgspec.structs.replace(
            spec, **{name: value for name, value in named.items() if value is not None}
        )
