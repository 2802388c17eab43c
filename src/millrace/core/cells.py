"""State records of a shard: its whole state besides the rows.

The store keeps cells as opaque bytes; the decider works with these values. Their fields are
positional on disk (`docs/formats/cell.md`): append, never reorder.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Literal

import msgspec

from millrace.core.model import CursorPosition, Route
from millrace.core.notes import Notes
from millrace.core.spec import QueueSpec

_EXPIRY_KEY = struct.Struct(">QQL")


class Kind(IntEnum):
    """The kinds of cells. Numbers are part of the format."""

    SPEC = 1
    POINTERS = 2
    LEASE = 3
    PRODUCER = 4
    CURSOR = 5
    PIN = 6
    STAGE = 7
    DELETES = 8
    TAKEOVER = 9
    QUEUE = 10
    CATALOG = 11
    DUE = 12
    READY = 13
    GROUP = 14
    RING = 15
    TURN = 16
    BUCKET = 17
    DEDUP = 18
    ATTEMPT = 19
    EXPIRY = 20
    SESSION = 21
    TOPIC = 22
    SUBSCRIPTION = 23
    PARTITION = 24
    WEIGHT = 25
    ID = 26
    RUNS = 27
    QUARANTINE = 28
    AWAITED = 29
    SLICES = 30


WINDOW_KINDS = (Kind.DUE, Kind.READY, Kind.RING, Kind.BUCKET)
"""Kinds with more cells than memory should hold: a view knows only the first ones."""

LOOKUP_KINDS = (Kind.TURN, Kind.GROUP, Kind.DEDUP, Kind.EXPIRY, Kind.ID, Kind.RUNS)
"""Kinds that a view does not hold: they are read by key, or the first ones in order."""

ERA_KINDS = (*WINDOW_KINDS, Kind.TURN, Kind.GROUP, Kind.ID)
"""Kinds whose keys begin with the era: cells of eras before a purge are garbage, which is
collected in steps."""

VIEW_KINDS = tuple(kind for kind in Kind if kind not in WINDOW_KINDS and kind not in LOOKUP_KINDS)
"""Kinds whose cells a view holds completely."""


class Pointers(msgspec.Struct, frozen=True, array_like=True):
    """Counters and watermarks of a shard's decider."""

    next: int = 1
    """The first seq that was never delivered in the order of seqs."""
    lease: int = 0
    """The newest lease id."""
    pin: int = 0
    """The newest pin id."""
    cursor: int = 0
    """The newest cursor id."""
    floor: int = 0
    """The purge floor: a cursor behind it may have missed a delete and must start over."""
    aside: int = 0
    """The highest deferred seq of this era; 0: none was deferred."""
    era: int = 0
    """The last seq of the purge that began the era; cells of earlier eras name purged messages."""
    expires: int = 0
    """1: there may be cells of kind EXPIRY."""
    gaps: int = 0
    """The highest seq that ended before its first delivery: rows up to it are scanned for gaps."""
    turn: int = 0
    """The newest turn of a group."""
    paid_us: int = 0
    """Token bucket of the queue's rate: deliveries so far are paid for up to this time."""
    front: int = 0
    """All group turns before this one are used up."""
    forgotten: int = 0
    """Deduplication ids of messages up to this seq are forgotten, by a purge."""


class LeaseCell(msgspec.Struct, frozen=True, array_like=True):
    """The state of one lease call.

    Each message that was delivered and not ended is in `open` or `freed` of exactly one lease: that
    of its latest delivery. The other sets answer late receipts exactly.
    """

    deadline_ms: int
    open: bytes
    """Seqs held by the worker; past the deadline they are ready again, but the receipt stays
    valid."""
    freed: bytes = b""
    """Seqs that the worker released: ready again, the receipt is stale."""
    settled: bytes = b""
    overtaken: bytes = b""
    """Seqs that a later lease call received."""
    superseded: bytes = b""
    ended_ms: int = 0
    """Time at which `open` and `freed` became empty; afterwards the lease is only remembered."""
    counts: dict[int, tuple[int, int]] = {}
    """(deliveries, failures) of the seqs with other counts than (1, 0)."""
    deadlines: dict[int, int] = {}
    """Deadlines of seqs that were extended separately; for seqs in `freed`, the end of their
    delay."""
    index: int = 0
    """The batch that created it: receipts of a history that does not share this batch mean
    another lease."""
    doomed: dict[int, int] = {}
    """Seq → `DeadLetterReason`: dead letters that are not moved yet. They are never delivered."""
    buried: bytes = b""
    """Seqs that were dead letters and are moved or dropped."""
    session: int = 0
    """The session that received them, or 0."""
    first: int = 0
    """The delivery number of its first message; the others follow in order."""
    handed: bytes = b""
    """All seqs that this call delivered to the session, whatever happened to them since."""
    order: tuple[int, ...] = ()
    """The same in the order of delivery numbers, if that differs from the order of seqs."""
    overdue: bytes = b""
    """Seqs in `open` and `freed` whose TTL has expired: they end when they are released."""
    groups: dict[int, int] = {}
    """Group numbers of the seqs in `open` and `freed`, if the queue has groups."""
    span_ms: int = 0
    """Lease duration: `deadline_ms` minus the time of the call; 0: unknown."""
    firsts: dict[int, int] = {}
    """Time of the first delivery of redelivered seqs, as far as known."""
    discarded: bytes = b""
    """Seqs that the worker discarded: a later release of one of them is refused, not repeated."""


class SessionCell(msgspec.Struct, frozen=True, array_like=True):
    """A consumer session, to which messages are pushed. Its messages in flight are in its
    leases."""

    index: int
    """The batch that created it; used to validate claims of another history."""
    claim: int
    """Number of opens and resumes; only the newest claim may use the session."""
    epoch: int
    """The decider that knows the connection of the session."""
    credit: int
    """Messages that it may hold at once, or (without `refill`) deliveries that it may still get."""
    next: int = 0
    """The next delivery number."""
    refill: bool = True
    """True if settling gives credit back."""
    lease_ms: int = 0
    """Lease time of each message; 0: as long as the session lasts."""
    suspect_ms: int = 0
    """Timeout of a lost session, after which its messages are released."""
    suspected_ms: int = 0
    """Time since which its connection is lost, or 0."""
    cancelled: bool = False
    """It gets no more deliveries, and ends when it holds nothing."""
    name: str = ""


class ProducerCell(msgspec.Struct, frozen=True, array_like=True):
    """The producer state that makes repeated publishes idempotent."""

    mode: Literal["dense", "rising", "range"]
    last: int
    time_ms: int
    recent: tuple[tuple[int, int, int], ...] = ()
    """(number, first seq, count) of the newest publishes, oldest first."""
    uptos: tuple[int, ...] = ()
    """Of a range over several places: the progress in each; `last` is their sum."""


class CursorCell(msgspec.Struct, frozen=True, array_like=True):
    """The durable position of a follower."""

    id: int
    retain: bool
    position: CursorPosition
    moved_ms: int
    pin: int = 0
    """The pin of its snapshot, or 0."""
    dropped: bool = False
    """It retained rows for too long and was dropped: its next read is refused."""
    vector: int = 0
    torn: bool = False
    """With several shards: the number of its newest snapshot; and whether its pin of that was
    lost."""
    claim: bytes = b""
    """The claim (fencing token) of its latest follower: only that one may commit."""


class PinCell(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot that must stay readable."""

    index: int
    """Its own batch: the pin shows the state after that batch."""
    boundary: int
    floor: int
    """The purge floor at the time of the pin; its reader is validated against it."""
    deadline_ms: int
    cursor: str = ""
    retain: bool = False
    """It also shows the settled rows that are kept for retaining cursors."""
    made_ms: int = 0


class DeletesCell(msgspec.Struct, frozen=True, array_like=True):
    """The live deletes that were published within one second; they expire together."""

    seqs: bytes


class DeferredCell(msgspec.Struct, frozen=True, array_like=True):
    """Deferred messages that become ready together."""

    seqs: bytes
    """Packed seqs; empty: the single seq at the end of the key."""
    priority: int
    groups: tuple[int, ...] = ()
    """The group of each message, in the order of seqs, if the queue has groups."""


class RowSizesCell(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of the rows in a region of seqs, which ends at the seq in the cell's key."""

    after: int
    """The region begins after this seq."""
    before: int
    """Bytes of all rows that were published before the region."""
    upto: int
    """Bytes of all rows up to its end."""


class TakeoverCell(msgspec.Struct, frozen=True, array_like=True):
    """A line of the takeover table: the end of an earlier history, as far as it is shared."""

    history: bytes
    index: int
    seq: int


class QueueCell(msgspec.Struct, frozen=True, array_like=True):
    """A name in the catalog: the shards in their order, and the routing of messages to them."""

    shards: tuple[int, ...]
    route: Route = "key"
    ids: int = 0
    """The key that maps seqs to message ids; 0: the queue has no ids."""
    placed_by: str = ""
    """The name, as `space/name`, whose hash places the queue in a commit group; empty: its own. It
    stays when the queue of that name is deleted."""


class CatalogCell(msgspec.Struct, frozen=True, array_like=True):
    """Counters of the catalog."""

    shard: int
    """The newest shard id."""
    secret: bytes
    """The signing key of all receipts, shared by the cluster, so that any node can verify them."""


# --- Groups ---


class TurnCell(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The waiting messages of a group, in delivery order."""

    seqs: tuple[int, ...]
    head: int = 0
    """Number of the first further cell of kind GROUP, which follows these seqs."""
    tail: int = 0
    """Number of the next further cell."""
    paid_us: int = 0
    """Token bucket of the group's rate: deliveries so far are paid for up to this time."""
    due_ms: int = 0
    """Time in the key of its cell of kind BUCKET, while it waits for its rate or is remembered
    for it."""


class GroupCell(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive waiting messages of a group."""

    seqs: tuple[int, ...]


class RingCell(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A page of the ring of ready groups: groups with consecutive turns."""

    groups: tuple[int | None, ...]
    """Group numbers, from the turn in the key on; None: that turn is used up. A cell of kind
    BUCKET holds only the group that waits for its rate."""


GroupedCell = TurnCell | GroupCell | RingCell
"""The cells that store groups."""


# --- Deduplication, attempt ids and expiry ---


class DedupCell(msgspec.Struct, frozen=True, array_like=True):
    """A used deduplication id: another message with it is a repeat of the first one."""

    seq: int
    until_ms: int
    """End of the deduplication window."""


class AttemptCell(msgspec.Struct, frozen=True, array_like=True):
    """The answer of a lease call that may be repeated."""

    lease: int
    deadline_ms: int
    """Deadline in the answer; a lease with another one by now was extended."""
    time_ms: int
    turns: tuple[bytes, ...] = ()
    """Packed sets of seqs in delivery order; empty: ascending."""


class ExpiryCell(msgspec.Struct, frozen=True, array_like=True):
    """Ids and messages that expire at the time in the cell's key."""

    ids: tuple[bytes, ...] = ()
    """Keys of cells of kind DEDUP; an id that was used again since stays."""
    seqs: bytes = b""
    """Messages whose TTL expires."""


def expiry_key(due_ms: int, index: int, at: int) -> bytes:
    """Return the key of an expiry cell; `at` counts the cells of a batch with the same time."""
    return _EXPIRY_KEY.pack(due_ms, index, at)


def expiry_of(key: bytes) -> int:
    """Return the time in a key of kind EXPIRY."""
    return int(_EXPIRY_KEY.unpack(key)[0])


# --- Partitions ---


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """A partition: a slice of all message ids."""

    served: int = 0
    """Its last turn; the least recently served partition goes first."""
    leases: tuple[int, ...] = ()
    """The lease calls that lock it, while they hold any of its messages."""


class SlicesCell(msgspec.Struct, frozen=True, array_like=True):
    """A page of partitions with consecutive numbers."""

    slices: tuple[Slice, ...]


class PartitionCell(msgspec.Struct, frozen=True, array_like=True):
    """The partitions of a queue and their counters."""

    key: int
    """The key that maps seqs to message ids."""
    slices: tuple[Slice, ...] = ()
    """In folders of earlier versions: all partitions, which are equal; otherwise empty, since
    pages have them."""
    waiting: int = 0
    """Messages that were never delivered."""
    turn: int = 0
    """The newest turn."""
    resized: int = 0
    """The turn of the last split or merge."""
    peak: int = 0
    """Highest number of partitions locked at the same time since `since_ms`."""
    since_ms: int = 0
    count: int = 0
    """Number of partitions, if pages have them."""
    base: int = 0
    """Number of equal partitions at creation; see `partition_state.py`."""
    first: int = 0
    """No undelivered message has a seq below this one."""

    @property
    def size(self) -> int:
        """Number of partitions."""
        return self.count or len(self.slices)

    @property
    def root(self) -> int:
        """Number of equal partitions at creation."""
        return self.base or len(self.slices)


class IdCell(msgspec.Struct, frozen=True, array_like=True):
    """The seq of a message that has not ended; the key is its id."""

    seq: int


# --- Stages ---


class StageCell(msgspec.Struct, frozen=True, array_like=True):
    """Rows that are written but not visible yet."""

    rows: int
    bytes: int
    time_ms: int
    runs: int = 0
    """Number of cells of kind RUNS that belong to this stage."""
    calls: int = 0
    """The newest number of a call."""


class RunsCell(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a stage with delays, priorities or TTLs other than the queue's."""

    aside: tuple[tuple[int, int, int, int | None], ...] = ()
    """Row number within the stage, number of rows, priority, and delay (None: that of the
    queue)."""
    lives: tuple[tuple[int, int, int], ...] = ()
    """Row number within the stage, number of rows, and TTL."""


# --- Topics ---


class TopicCell(msgspec.Struct, frozen=True, array_like=True):
    """A topic: in the catalog under its name, and again in its own shard under the empty key."""

    shard: int
    max_lag: int
    """Limit of rows that wait for the slowest subscription; at the limit, publishes are refused."""
    notes: Notes = ()
    """Notes of a front end about the topic."""


class SubscriptionCell(msgspec.Struct, frozen=True, array_like=True):
    """A subscription of a topic, with its progress. Its number is never reused within a history,
    and comes from the pointer `cursor`."""

    name: str
    queue: int
    """The queue's first shard, which differs after the queue was deleted and created again. 0:
    there is no queue of that name at present, which only a durable subscription allows."""
    target: str
    """The queue as space/name."""
    filter: str
    """The filter as `filters.text` writes it; empty: everything is forwarded."""
    history: bytes
    """The history in which it was created."""
    since: int
    """The topic's last seq at creation: the subscription gets all later rows."""
    passed: int
    """Rows up to this one are in the queue, or were filtered."""
    forwarded: int = 0
    filtered: int = 0
    moved_ms: int = 0
    notes: Notes = ()
    """Notes of a front end about the subscription."""
    durable: bool = False
    """It outlives its queue, and forwards to the next one of the name."""
    dead_letter: str = ""
    """As space/name, the dead-letter queue of a durable subscription; empty: rows are dropped."""
    dead_lettered: int = 0
    dropped: int = 0
    """Rows that passed the filter while there was no queue, or were too large for it, and went
    to the dead-letter queue, or were dropped."""
    queue_notes: Notes = ()
    """Notes that a queue of this name gets when it is created."""

    @property
    def is_unbound(self) -> bool:
        """True if it waits for its queue to be created."""
        return self.durable and not self.queue


class AwaitedCell(msgspec.Struct, frozen=True, array_like=True):
    """A subscription that waits for the creation of its queue, in the catalog under the queue's
    name."""

    topic: int
    """The topic's shard."""
    number: int
    """The number of the subscription."""


def awaited_key(target: str, cell: AwaitedCell) -> bytes:
    """Return the key of the cell; `target`: the queue as space/name."""
    numbers = cell.topic.to_bytes(8, "big") + cell.number.to_bytes(8, "big")
    return target.encode() + b"\0" + numbers


def awaited_name(key: bytes) -> str:
    """Return the queue in a key, as space/name."""
    return key[:-17].decode()


# --- Quarantine ---


class QuarantineCell(msgspec.Struct, frozen=True, array_like=True):
    """The reason of a quarantine. Its key is empty, or the first seq of a range of unreadable rows.

    Fields are positional on disk: append, never reorder.
    """

    since_ms: int
    reason: str
    last: int = 0
    """The last of the unreadable rows; 0 in the cell with the empty key."""
    shard: int = 0
    """The shard with the first damage; 0 in the cells that name rows."""


# --- Union of all cells ---


Cell = (
    QueueSpec
    | Pointers
    | LeaseCell
    | ProducerCell
    | CursorCell
    | PinCell
    | StageCell
    | DeletesCell
    | TakeoverCell
    | QueueCell
    | CatalogCell
    | DeferredCell
    | DedupCell
    | SessionCell
    | TopicCell
    | SubscriptionCell
    | ExpiryCell
    | AttemptCell
    | RowSizesCell
    | GroupedCell
    | PartitionCell
    | SlicesCell
    | IdCell
    | RunsCell
    | QuarantineCell
    | AwaitedCell
)


CELL_TYPES: dict[Kind, type[Cell]] = {
    Kind.SPEC: QueueSpec,
    Kind.POINTERS: Pointers,
    Kind.LEASE: LeaseCell,
    Kind.PRODUCER: ProducerCell,
    Kind.CURSOR: CursorCell,
    Kind.PIN: PinCell,
    Kind.STAGE: StageCell,
    Kind.DELETES: DeletesCell,
    Kind.TAKEOVER: TakeoverCell,
    Kind.QUEUE: QueueCell,
    Kind.CATALOG: CatalogCell,
    Kind.DUE: DeferredCell,
    Kind.READY: DeferredCell,
    Kind.GROUP: GroupCell,
    Kind.RING: RingCell,
    Kind.TURN: TurnCell,
    Kind.BUCKET: RingCell,
    Kind.DEDUP: DedupCell,
    Kind.SESSION: SessionCell,
    Kind.TOPIC: TopicCell,
    Kind.SUBSCRIPTION: SubscriptionCell,
    Kind.ATTEMPT: AttemptCell,
    Kind.EXPIRY: ExpiryCell,
    Kind.PARTITION: PartitionCell,
    Kind.SLICES: SlicesCell,
    Kind.WEIGHT: RowSizesCell,
    Kind.ID: IdCell,
    Kind.RUNS: RunsCell,
    Kind.QUARANTINE: QuarantineCell,
    Kind.AWAITED: AwaitedCell,
}
