"""What the commands of a queue are answered with."""

from __future__ import annotations

from typing import Literal

import msgspec
from pyroaring import BitMap64

from millrace.core.model import LeaseId, Seq, ShardId
from millrace.core.place import Route
from millrace.errors import Refused


class Published(msgspec.Struct, frozen=True):
    """Where the rows are. A repeat that is no longer remembered has no seqs."""

    first: Seq | None
    count: int
    repeated: bool = False
    """Nothing was written now."""
    seqs: tuple[int, ...] = ()
    """Row by row, where some of several rows were repeats by their ids; else empty."""


class Leased(msgspec.Struct, frozen=True):
    """What a lease call handed out."""

    lease: LeaseId
    seqs: BitMap64
    deadline_ms: int
    counts: dict[int, tuple[int, int]]
    """(deliveries, failures) of the seqs for which they are not (1, 0)."""
    turns: tuple[BitMap64, ...] = ()
    """The seqs in the order in which they come to their turn; empty: in their own."""
    bounded: bool = False
    """There are none because as many are with workers as `max_in_flight` allows."""
    firsts: dict[int, int] = {}
    """When those seqs were handed out first that had been handed out before, as far as is known."""


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
    """The last boundary that the reader is known to have read up to: where a position within this
    snapshot begins. It is below `after` where an earlier snapshot was left in the middle."""
    claim: bytes = b""
    """The cursor's claim, under which it may be committed."""


class QueueRef(msgspec.Struct, frozen=True):
    """Where a queue is."""

    shards: tuple[ShardId, ...]
    made: bool
    route: Route = "key"
    ids: int = 0
    """The key of its messages' ids; 0: they have none."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of the messages that a settle, release or extend named, each judged alone."""

    done: BitMap64
    refused: dict[int, Refused]
    deadline_ms: int = 0


class Explanation(msgspec.Struct, frozen=True):
    """Where a message stands."""

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
    """The newest revision of its key, as long as it is known that a newer one replaced it: not
    before that is folded, nor after the row's bytes are gone."""
    session: int | None = None
    """The session that holds it."""
    not_before_ms: int | None = None
    """It is delayed at least so long, behind so many others that nobody looks until when. If there
    are neither times, so many are ready that it may be one of them."""
    first_ms: int = 0
    """When it was handed out first; 0: never, or that is not known."""
