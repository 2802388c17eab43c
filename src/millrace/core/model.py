"""The nouns of a queue, as frozen values.

Cells are what a shard remembers besides its rows. They are kept as bytes by the store, which does
not look into them, and as these values by the decider. Their fields are positional on disk
(`docs/formats/cell.md`): append, never reorder.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Literal, NewType

import msgspec

from millrace.core import place
from millrace.core.group_cells import GroupCell, GroupedCell, RingCell, TurnCell, group_of
from millrace.core.idcells import AttemptCell, DedupCell, ExpiryCell
from millrace.core.partition_cells import IdCell, PartitionCell, SlicesCell
from millrace.core.quarantine_commands import QuarantineCell
from millrace.core.spec import QueueSpec as QueueSpec
from millrace.core.stage_cells import RunsCell, StageCell
from millrace.core.topic_cells import AwaitedCell, SubscriptionCell, TopicCell

Seq = NewType("Seq", int)
"""Number of a message within its shard, from 1; 0 means "before the first"."""

Index = NewType("Index", int)
"""Number of a batch within its shard, from 1."""

ShardId = NewType("ShardId", int)
"""Number of a shard; never used twice, so that it is the shard's incarnation too."""

LeaseId = NewType("LeaseId", int)
"""Number of a lease call within its shard, from 1; the version that a receipt names."""

PinId = NewType("PinId", int)
"""Number of a pin within its shard, from 1."""

GroupId = NewType("GroupId", int)
"""Number of a commit group on its node."""

Epoch = NewType("Epoch", int)
"""Number of a group's decider; only ever rises."""

Millis = NewType("Millis", int)
"""Milliseconds since 1970, as the decider stamps them: never falling within a shard."""

History = NewType("History", bytes)
"""UUID (16 bytes) of an unbroken sequence of batches."""

CATALOG = ShardId(0)
"""The shard that holds the names of a group's queues."""

NEVER_MS = 1 << 62
"""The deadline of a lease that ends with its session, whenever that is."""

Headers = tuple[tuple[str, bytes], ...]
"""Names and values, in order; duplicates are allowed."""


class Message(msgspec.Struct, frozen=True):
    """What a producer writes. Without a body it deletes its key."""

    body: bytes | None
    key: bytes | None = None
    headers: Headers = ()


class Row(msgspec.Struct, frozen=True):
    """A message at its place."""

    seq: int
    time_ms: int
    body: bytes | None
    key: bytes | None
    headers: Headers

    def size(self) -> int:
        """Bytes of body, key and headers."""
        pairs = sum(len(name.encode()) + len(value) for name, value in self.headers)
        return len(self.body or b"") + len(self.key or b"") + pairs

    @property
    def group(self) -> bytes:
        """Whom it takes turns with, where the queue's order asks for it."""
        return group_of(self.key, self.headers)


class Doom(IntEnum):
    """Why a message is a dead letter. Numbers are part of the format."""

    FAILURES = 1
    DELIVERIES = 2
    DISCARDED = 3
    EXPIRED = 4
    LENGTH = 5


class Death(IntEnum):
    """Why a row is no longer live. Numbers are part of the format."""

    SETTLED = 1
    SUPERSEDED = 2
    EXPIRED = 3
    DEAD_LETTERED = 4
    DROPPED = 5
    PURGED = 6


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


WINDOWED = (Kind.DUE, Kind.READY, Kind.RING, Kind.BUCKET)
"""Kinds with more cells than memory should hold: a view knows the first ones alone."""

ASKED = (Kind.TURN, Kind.GROUP, Kind.DEDUP, Kind.EXPIRY, Kind.ID, Kind.RUNS)
"""Kinds that a view does not hold: they are asked for by key, or the first ones in order."""

OF_AN_ERA = (*WINDOWED, Kind.TURN, Kind.GROUP, Kind.ID)
"""Kinds whose keys begin with the era: what a purge has made meaningless is dropped in steps."""

VIEWED = tuple(kind for kind in Kind if kind not in WINDOWED and kind not in ASKED)
"""Kinds whose cells a view holds, all of them."""


class Pointers(msgspec.Struct, frozen=True, array_like=True):
    """Where a shard's decider goes on."""

    next: int = 1
    """The first seq that no worker was ever given."""
    lease: int = 0
    """The newest lease id."""
    pin: int = 0
    """The newest pin id."""
    cursor: int = 0
    """The newest cursor id."""
    floor: int = 0
    """The purge floor: a cursor behind it may have missed a delete and must start over."""
    aside: int = 0
    """The highest seq that was put aside in this era; 0: none was."""
    era: int = 0
    """The last seq of the purge that began the era: cells of those put aside before name others."""
    expires: int = 0
    """1: there may be cells of `Kind.EXPIRY`."""
    gaps: int = 0
    """The highest seq that ended before a worker was given it: up to there rows are looked at."""
    turn: int = 0
    """The newest turn of a group."""
    paid_us: int = 0
    """The queue's rate allows what was handed out so far by this time."""
    front: int = 0
    """Turns of groups before this one are over."""
    forgotten: int = 0
    """De-duplication ids of messages up to this seq no longer count: a purge forgot them."""


class LeaseCell(msgspec.Struct, frozen=True, array_like=True):
    """All that one lease call handed out and that is still of interest.

    Each message that was delivered and not ended is in `open` or `freed` of exactly one lease:
    that of its latest delivery. The other sets answer late receipts exactly.
    """

    deadline_ms: int
    open: bytes
    """Seqs held by the worker; past the deadline they are ready again, but the receipt holds."""
    freed: bytes = b""
    """Seqs that the worker gave back: ready again, the receipt is stale."""
    settled: bytes = b""
    overtaken: bytes = b""
    """Seqs that a later lease call got."""
    superseded: bytes = b""
    ended_ms: int = 0
    """When nothing was left in `open` and `freed`; from then on it is only remembered."""
    counts: dict[int, tuple[int, int]] = {}
    """(deliveries, failures) of the seqs for which they are not (1, 0)."""
    deadlines: dict[int, int] = {}
    """Of seqs that were extended apart from the rest; of those in `freed`, when they are ready."""
    index: int = 0
    """The batch that made it: receipts of histories that are not shared up to here mean another."""
    doomed: dict[int, int] = {}
    """Seq → `Doom`: dead letters that are not yet where dead letters go. Nobody gets them."""
    buried: bytes = b""
    """Seqs that were dead letters, and are gone."""
    session: int = 0
    """The session that was handed them, or 0."""
    first: int = 0
    """The delivery number of its first message; those of the others follow."""
    handed: bytes = b""
    """All that the session was handed by this call, whatever became of it since."""
    order: tuple[int, ...] = ()
    """The same in the order of their delivery numbers, where that is not that of the seqs."""
    overdue: bytes = b""
    """Those in `open` and `freed` whose time to live is over: they end when they come back."""
    groups: dict[int, int] = {}
    """The groups of seqs in `open` and `freed`, where the queue's order asks for them."""
    span_ms: int = 0
    """So long before `deadline_ms` it was made; 0: that is not known."""
    firsts: dict[int, int] = {}
    """When those seqs were handed out first that had been handed out before, as far as is known."""
    discarded: bytes = b""
    """Seqs that the worker discarded: a release of one of them is no repeat, and is refused."""


class SessionCell(msgspec.Struct, frozen=True, array_like=True):
    """A consumer that messages are handed to as they come. What it holds stands in its leases."""

    index: int
    """The batch that made it, by which claims of another history are judged."""
    claim: int
    """How often it was opened and resumed: whoever did so last speaks for it."""
    epoch: int
    """The decider that knows who speaks for it."""
    credit: int
    """How many it may hold at once, or (without `refill`) how many it may still be handed."""
    next: int = 0
    """The next delivery number."""
    refill: bool = True
    """Whether settling gives credit back."""
    lease_ms: int = 0
    """How long it holds a message; 0: as long as it lasts."""
    suspect_ms: int = 0
    """How long it keeps its messages while nobody speaks for it."""
    suspected_ms: int = 0
    """Since when nobody does, or 0."""
    cancelled: bool = False
    """It is handed nothing more, and goes when it holds nothing."""
    name: str = ""


class ProducerCell(msgspec.Struct, frozen=True, array_like=True):
    """What makes a producer's repeats harmless."""

    mode: Literal["dense", "rising", "range"]
    last: int
    time_ms: int
    recent: tuple[tuple[int, int, int], ...] = ()
    """(number, first seq, count) of the newest publishes, oldest first."""
    uptos: tuple[int, ...] = ()
    """Of a range over several places: how far each has come; `last` is their sum."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A follower's place: exact across takeovers, because it names its history and snapshot."""

    history: bytes
    seq: int
    snapshot_start: int
    snapshot_end: int


class CursorCell(msgspec.Struct, frozen=True, array_like=True):
    """A follower's durable position."""

    id: int
    retain: bool
    position: Position
    moved_ms: int
    pin: int = 0
    """The pin that it reads, or 0."""
    dropped: bool = False
    """It retained for too long and was let go: its next read is refused."""
    vector: int = 0
    torn: bool = False
    """Of several shards: the number of its newest snapshot, and whether this pin of it went."""
    claim: bytes = b""
    """Names the latest follower that opened it: only that one may commit."""


class PinCell(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot that must stay readable."""

    index: int
    """Its own batch: what that batch left is what the pin shows."""
    boundary: int
    floor: int
    """The purge floor as of the pin, by which its reader is judged."""
    deadline_ms: int
    cursor: str = ""
    retain: bool = False
    """It also shows the settled rows that are kept for retaining cursors."""
    made_ms: int = 0


class DeletesCell(msgspec.Struct, frozen=True, array_like=True):
    """The deletes that were published within one second; they die together."""

    seqs: bytes


class AsideCell(msgspec.Struct, frozen=True, array_like=True):
    """Messages that were put aside, and come to their turn together."""

    seqs: bytes
    """Empty: the one that the key ends with."""
    priority: int
    groups: tuple[int, ...] = ()
    """The group of each, in the order of seqs, where the queue's order asks for them."""


class WeightCell(msgspec.Struct, frozen=True, array_like=True):
    """How much the rows of a region weigh: those up to the seq that is the cell's key."""

    after: int
    """The region begins after this seq."""
    before: int
    """Bytes of all rows that were published before the region."""
    upto: int
    """Bytes of all rows up to its end."""


class TakeoverCell(msgspec.Struct, frozen=True, array_like=True):
    """One line of the takeover table: where a history ended, as far as it is shared."""

    history: bytes
    index: int
    seq: int


class QueueCell(msgspec.Struct, frozen=True, array_like=True):
    """A name in the catalog: the shards in their order, and how messages find theirs."""

    shards: tuple[int, ...]
    route: place.Route = "key"
    ids: int = 0
    """The key of its messages' ids; 0: they have none."""


class CatalogCell(msgspec.Struct, frozen=True, array_like=True):
    """What the catalog counts."""

    shard: int
    """The newest shard id."""
    secret: bytes
    """The key of all receipts: a fact of the cluster, so that any node can judge them."""


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
    | AsideCell
    | DedupCell
    | SessionCell
    | TopicCell
    | SubscriptionCell
    | ExpiryCell
    | AttemptCell
    | WeightCell
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
    Kind.DUE: AsideCell,
    Kind.READY: AsideCell,
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
    Kind.WEIGHT: WeightCell,
    Kind.ID: IdCell,
    Kind.RUNS: RunsCell,
    Kind.QUARANTINE: QuarantineCell,
    Kind.AWAITED: AwaitedCell,
}


class Start(Enum):
    """Where a new cursor begins, besides a seq or a time."""

    BEGINNING = "beginning"
    END = "end"
