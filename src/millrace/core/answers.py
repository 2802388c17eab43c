"""Results of the commands in `commands.py`."""

from __future__ import annotations

from typing import Literal

import msgspec
from pyroaring import BitMap64

from millrace.core.model import LeaseId, Route, Seq, ShardId
from millrace.errors import Refused


class PublishResult(msgspec.Struct, frozen=True):
    """The seqs of published rows. A repeat whose first publish was forgotten has no seqs."""

    first: Seq | None
    count: int
    repeated: bool = False
    """True: a repeat; nothing was written now."""
    seqs: tuple[int, ...] = ()
    """Seqs row by row, if some of several rows were repeats by their ids; else empty."""


class Leased(msgspec.Struct, frozen=True):
    """The messages of a lease call."""

    lease: LeaseId
    seqs: BitMap64
    deadline_ms: int
    counts: dict[int, tuple[int, int]]
    """(deliveries, failures) of the seqs with other counts than (1, 0)."""
    turns: tuple[BitMap64, ...] = ()
    """The seqs in delivery order; empty: ascending."""
    bounded: bool = False
    """The lease is empty because `max_in_flight` is reached."""
    firsts: dict[int, int] = {}
    """Time of the first delivery of redelivered seqs, as far as known."""


class SnapshotRef(msgspec.Struct):
    """A pinned snapshot, and the range of it that its reader has not read.

    Index and boundary are those of the pin's own batch, and are set when it ends.
    """

    pin: int
    history: bytes
    after: int
    retain: bool
    index: int = 0
    boundary: int = 0
    start: int = 0
    """The last boundary that the reader is known to have read: the start of positions within
    this snapshot. It is below `after` if an earlier snapshot was left in the middle."""
    claim: bytes = b""
    """The cursor's claim, with which it may be committed."""


class QueueRef(msgspec.Struct, frozen=True):
    """The shards and the routing of a queue."""

    shards: tuple[ShardId, ...]
    made: bool
    route: Route = "key"
    ids: int = 0
    """The key that maps seqs to message ids; 0: the queue has no ids."""
    placed_by: str = ""
    """The name, as `space/name`, that places the queue in a commit group; empty: its own."""


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a settle, release or extend, message by message."""

    done: BitMap64
    refused: dict[int, Refused]
    deadline_ms: int = 0


class Explanation(msgspec.Struct, frozen=True):
    """The state of a message."""

    seq: Seq
    state: Literal[
        "ready",
        "leased",
        "returned",
        "delayed",
        "blocked",
        "limited",
        "doomed",
        "settled",
        "delete",
        "dead",
        "unknown",
    ]
    lease: LeaseId | None = None
    until_ms: int | None = None
    deliveries: int = 0
    failures: int = 0
    superseded_by: Seq | None = None
    """The newest revision of its key, if a newer one is known to have replaced it: known after
    that is folded, and until the row's bytes are deleted."""
    session: int | None = None
    """The session that holds it."""
    not_before_ms: int | None = None
    """Earliest end of the delay of a message that is too far back in the delay queue to know its
    exact time. If both times are None, the message may be one of the many that are ready."""
    first_ms: int = 0
    """Time of the first delivery; 0: never delivered, or unknown."""


class ShardLeases(msgspec.Struct, frozen=True):
    """The leases of a call on several shards, in the order in which the shards were served."""

    parts: tuple[tuple[ShardId, Leased], ...]
    bounded: bool = False
    """The lease is empty, and on at least one shard because `max_in_flight` is reached."""


class MultiShardSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of all shards of a queue, in their order, taken at one moment."""

    number: int
    """The cursor's own count of snapshots."""
    refs: tuple[SnapshotRef, ...]
    """Without a pin for shards that have nothing left to read."""


class Holder(msgspec.Struct, frozen=True):
    """A pin, cursor or set of dead letters that keeps rows from garbage collection."""

    kind: Literal["pin", "cursor", "dead letters"]
    name: str
    """Name of the cursor, or of the cursor that reads the pin."""
    seq: int
    """The pin's boundary, the cursor's seq, or the first of the dead letters."""
    rows: int
    """The dead rows that a pin keeps; the rows that a cursor has not read."""
    bytes: int
    """Approximate size of these rows."""
    age_ms: int
    """Time since the pin was made, or since the cursor moved."""
    pin: int = 0
    dropped: bool = False
    """The cursor held back too much and was dropped; it holds nothing any more."""


class Holders(msgspec.Struct, frozen=True):
    """The rows of a queue, its counters, and the holders that keep rows from garbage collection."""

    first: int
    """No row before this seq is left, except for pins."""
    wanted: int
    """First seq that would be left, by the limits of number and bytes, if nobody held rows back."""
    held: tuple[Holder, ...]
    in_flight: int = 0
    """Messages under a running lease (`explain` reports "leased"). Released messages and
    messages with an expired lease are not counted, because other workers can receive them."""
    held_by_workers: int = 0
    """Messages in flight, and released messages whose retry delay has not expired."""
    delayed: int = 0
    """Undelivered messages whose delay has not expired; of very many, the first ones only."""
