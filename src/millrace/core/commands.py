"""What may be asked of a shard; `answers` says what comes back.

Names, sizes and types were checked where the command was made (`check.py`); what depends on the
shard's state is checked in `decide`.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.across_commands import LeaseAcross, SnapshotAcross
from millrace.core.block import Block
from millrace.core.holder import ListHolders
from millrace.core.leased_commands import Life, Replace
from millrace.core.model import (
    Kind,
    LeaseId,
    Message,
    Position,
    QueueSpec,
    Seq,
    ShardId,
    Start,
)
from millrace.core.notes import Most
from millrace.core.partition_commands import Delete
from millrace.core.place import Route
from millrace.core.quarantine_commands import EndQuarantine, Mend, Quarantine
from millrace.core.session_commands import (
    CloseSession,
    GrantCredit,
    OpenSession,
    Receive,
    ResumeSession,
    SuspectSession,
)
from millrace.core.spec import SpecPart as SpecPart
from millrace.core.topic_commands import (
    ConfigureSubscription,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Forward,
    Subscribe,
    Unsubscribe,
)

ProducerMode = Literal["dense", "rising", "range"]


class Numbered(msgspec.Struct, frozen=True):
    """The producer's name and number that make a publish idempotent.

    `range`: `number` is the end of a range of the producer's own source and `after` its start.
    """

    producer: str
    number: int
    mode: ProducerMode = "dense"
    after: int = 0
    spans: tuple[tuple[int, int], ...] = ()
    """A range over several places, such as the shards of a source: (after, upto) of each. `after`
    and `number` are the sums then."""


# --- Commands of a queue's shard ---------------------------------------------------------------


class Aside(msgspec.Struct, frozen=True):
    """Rows of a publish that do not wait in the order of their seqs."""

    at: int
    """The first one's place within the publish, from 0."""
    count: int
    priority: int = limits.PRIORITY_DEFAULT
    delay_ms: int | None = None
    """None: as the queue says."""


class Publish(msgspec.Struct, frozen=True):
    """Append rows, all or nothing. Answer: `Published`."""

    rows: Block | tuple[Message, ...]
    numbered: Numbered | None = None
    aside: tuple[Aside, ...] = ()
    """Rising, and apart; of rows that are not named the queue's settings decide."""
    ids: tuple[str | None, ...] = ()
    """De-duplication ids, row by row; empty: none has one."""
    by_body: bool = False
    """Where the queue says so, a row without an id has that of its body. Not so of what is moved
    between queues."""
    lives: tuple[Life, ...] = ()
    """Rising, and apart: rows with a time to live of their own. The queue's may be shorter."""


class Lease(msgspec.Struct, frozen=True):
    """Hand out up to `count` messages for `lease_ms`. Answer: `Leased`, perhaps empty."""

    count: int
    lease_ms: int
    attempt: str = ""
    """The same one again is answered as the first time, while that holds; empty: none."""
    together: bool = False
    """In the orders of groups: as many of one group as there are, before another one gives any."""


class Settle(msgspec.Struct, frozen=True):
    """These messages of one lease call are done. Answer: `Outcome`."""

    lease: LeaseId
    seqs: BitMap64
    history: bytes
    on_time: bool = False
    """Those whose deadline is over are refused (`Late`), although the receipt holds."""
    any_delivery: bool = False
    """Messages that a later lease call received are settled too, as by its receipt. Not allowed in
    a transaction."""


class Release(msgspec.Struct, frozen=True):
    """Give these messages of one lease call back. Answer: `Outcome`."""

    lease: LeaseId
    seqs: BitMap64
    history: bytes
    failed: bool = False
    """Counts as a failure (a reject, a crash), not as a polite return."""
    delay_ms: int = 0
    """Nobody gets them before so much time has passed."""
    unseen: bool = False
    """Nobody has seen them: the delivery does not count."""
    on_time: bool = False
    """As for `Settle`."""


class Discard(msgspec.Struct, frozen=True):
    """These messages of one lease call are dead letters. Answer: `Outcome`."""

    lease: LeaseId
    seqs: BitMap64
    history: bytes


class Extend(msgspec.Struct, frozen=True):
    """Hold these messages of one lease call for `lease_ms` from now. Answer: `Outcome`.

    0: their time is over, as if it had run out.
    """

    lease: LeaseId
    seqs: BitMap64
    history: bytes
    lease_ms: int
    on_time: bool = False
    """As for `Settle`."""
    most_ms: int = 0
    """They are refused (`TooLarge`) where they would be held for longer since they were handed out;
    0: as long as is asked for."""
    any_delivery: bool = False
    """As for `Settle`."""


class Bury(msgspec.Struct, frozen=True):
    """Move dead letters to where they go; these are their bodies. Answer: how many went."""

    rows: tuple[tuple[int, int, Message], ...]
    """Seq, time of the publish and message; those that are no longer doomed are left out."""


class Purge(msgspec.Struct, frozen=True):
    """End every row that is there now. Answer: the last seq that went."""

    forgets_ids: bool = False
    """A message with a de-duplication id that was used before is no repeat."""


class Rewind(msgspec.Struct, frozen=True):
    """Have workers work a `log` queue again from here on. Answer: the first seq that they get."""

    start: Start | int
    """A `Start`, or the first seq to be handed out."""


class Configure(msgspec.Struct, frozen=True):
    """Replace the queue's settings, or those that are named. Answer: the spec."""

    spec: QueueSpec | SpecPart
    most: Most | None = None
    """The bound of notes with which it is refused, if they change."""


class Explain(msgspec.Struct, frozen=True):
    """Why is this message not to be had? Answer: `Explanation`."""

    seq: Seq
    group: bytes | None = None
    """The message's group, if it is known to the one who asks."""


class OpenCursor(msgspec.Struct, frozen=True):
    """Find or make a cursor. Answer: `CursorCell`."""

    name: str
    start: Start | int | Position
    """Of a new one: a `Start`, or the first seq to be read. At a position it goes on from there,
    also where it is there already and stands elsewhere."""
    retain: bool
    claims: bool = False
    """The caller follows by it from now on: followers that opened it before are fenced."""
    cursor: int = 0
    """Only the cursor with this id is opened, and none is made; 0: any."""


class NextSnapshot(msgspec.Struct, frozen=True):
    """Pin what lies after the cursor. Answer: `SnapshotRef`, or None where nothing does."""

    name: str
    cursor: int
    after: int
    """How far the reader has read, perhaps without committing it."""
    pin_ms: int
    history: bytes = b""
    """The history of `after`, if it may have changed since: of another one it says nothing."""
    claim: bytes = b""
    """The claim that the caller was given when it opened the cursor."""
    claims: bool = False
    """The caller has no claim, and takes one with the snapshot."""


class CommitCursor(msgspec.Struct, frozen=True):
    """Move a cursor; at the end of its snapshot the pin goes. Answer: `CursorCell`."""

    name: str
    cursor: int
    position: Position
    claim: bytes = b""
    """As for `NextSnapshot`."""


class ResetCursor(msgspec.Struct, frozen=True):
    """Begin anew at another place. Answer: `CursorCell`."""

    name: str
    start: Start | int | Position
    claims: bool = False
    """As for `OpenCursor`."""


class Locate(msgspec.Struct, frozen=True):
    """Where does a follower go on? Answer: `Position`, in the present history.

    One with a lower seq: what was read after that was taken back.
    """

    position: Position | None
    """None: one that has read everything so far."""


class AwaitCursor(msgspec.Struct, frozen=True):
    """Has a cursor committed all up to a position? Answer: True, or None: not yet."""

    name: str
    position: Position


class DeleteCursor(msgspec.Struct, frozen=True):
    """Forget a cursor. Answer: whether there was one."""

    name: str


class Pin(msgspec.Struct, frozen=True):
    """Keep the shard as of now readable. Answer: `SnapshotRef`."""

    pin_ms: int


class Unpin(msgspec.Struct, frozen=True):
    """Let a pin go. Answer: whether it was there."""

    pin: int
    history: bytes
    index: int
    """The pin's own batch, in that history: after a takeover its number may be another pin's."""
    cursor: str = ""
    """The cursor that stops reading it; empty: it is nobody's but the caller's."""
    claim: bytes = b""
    """As for `NextSnapshot`."""


class Stage(msgspec.Struct, frozen=True):
    """Write rows that nobody sees yet. Answer: rows of the stage so far."""

    stage: str
    rows: Block
    aside: tuple[Aside, ...] = ()
    """As those of a publish, and the lives too."""
    lives: tuple[Life, ...] = ()
    number: int = 0
    """Counts the calls of the stage from 1 on, so that a repeat changes nothing; 0: it has none."""


class PublishStaged(msgspec.Struct, frozen=True):
    """Make stages visible at once, in this order. Answer: `Published`."""

    stages: tuple[str, ...]
    """There may be none: nothing came of what the number stands for."""
    numbered: Numbered | None = None


class DropStage(msgspec.Struct, frozen=True):
    """Forget a stage and its rows. Answer: whether there was one."""

    stage: str


class Tick(msgspec.Struct, frozen=True):
    """Time passes: drop what is too old. Answer: None, or True if more is due than fits a batch."""


# --- Commands of the catalog -------------------------------------------------------------------


class Found(msgspec.Struct, frozen=True):
    """Begin a catalog. Answer: `CatalogCell`."""

    secret: bytes


class CreateQueue(msgspec.Struct, frozen=True):
    """Find or make a queue. Answer: `QueueRef`; with other settings than the stored: refused.

    Of a part of the settings only those that are named must be the stored ones.
    """

    space: str
    name: str
    spec: QueueSpec | SpecPart
    shards: int | None = None
    """How many shards it has; None: one, or as many as it has."""
    route: Route | None = None


class DeleteQueue(msgspec.Struct, frozen=True):
    """End a queue with all that it holds. Answer: whether there was one."""

    space: str
    name: str


class Transaction(msgspec.Struct, frozen=True):
    """Several commands at once, all or nothing, within one commit group. Answer: their answers."""

    parts: tuple[tuple[ShardId, Part], ...]


Wide = (
    Purge
    | Rewind
    | Configure
    | OpenCursor
    | ResetCursor
    | DeleteCursor
    | Locate
    | Pin
    | Stage
    | DropStage
)
"""What is asked of every shard of a queue at once, and of each of them nothing else."""

Part = Publish | Settle | Release | Extend | Discard | CommitCursor | Unpin | PublishStaged | Wide
"""What a transaction may hold."""

ShardCommand = (
    Part
    | Lease
    | Replace
    | Bury
    | Delete
    | Explain
    | ListHolders
    | NextSnapshot
    | AwaitCursor
    | Subscribe
    | ConfigureSubscription
    | Unsubscribe
    | Forward
    | Tick
    | Quarantine
    | Mend
    | EndQuarantine
)
SessionCommand = OpenSession | ResumeSession | Receive | GrantCredit | SuspectSession | CloseSession
CatalogCommand = Found | CreateQueue | DeleteQueue | CreateTopic | ConfigureTopic | DeleteTopic
Across = LeaseAcross | SnapshotAcross
"""What is asked of all shards of a queue, and answered for all of them together."""

Command = ShardCommand | SessionCommand | CatalogCommand | Transaction | Across


class Need(msgspec.Struct, frozen=True):
    """What `decide` must know from the store before it can go on; nothing was decided yet."""

    shard: ShardId
    keys: tuple[bytes, ...] = ()
    """Their newest live seqs."""
    hidden: tuple[int, int] | None = None
    """The rows within [low, high] that no worker gets."""
    stages: tuple[str, ...] = ()
    """Keys and deletes of these stages ..."""
    grouped: bool = False
    """... and the groups of their rows."""
    rows: tuple[int, ...] = ()
    """How these rows stand."""
    cells: tuple[Kind, bytes, int] | None = None
    """Of a kind, the first so many cells from a key on."""
    points: tuple[tuple[Kind, bytes], ...] = ()
    """These cells, of kinds of which a view holds nothing."""
    ended: tuple[tuple[int, int], ...] = ()
    """Of the rows within each [low, high], those that are dead, or settled and kept."""
    dead: tuple[tuple[int, int], ...] = ()
    """Of the rows within each [low, high], those that are dead; pins may still show them."""
    older_ms: int | None = None
    """The first row that is not older than this."""
    held: tuple[int, ...] = ()
    """The dead rows that these pins keep."""
    live: bool = False
    """How many rows are live or kept."""
    outlived: tuple[int, int, int] | None = None
    """After a seq, the messages from before a time: so many of them."""


class Held(msgspec.Struct, frozen=True):
    """Rows of a part of the seqs that nobody but a pin, and those beside it, still sees."""

    low: int
    high: int
    rows: int


class Outlived(msgspec.Struct, frozen=True):
    """Messages that are there and were published before a time: the first ones after a seq."""

    seqs: BitMap64
    upto: int
    """Up to here these are all."""
    next_ms: int | None
    """None of those after it was published before then; None: there are none."""


class StageFacts(msgspec.Struct, frozen=True):
    """What the store knows of a stage."""

    keys: list[bytes | None]
    deletes: list[int]
    groups: list[int] = []
    """The number of each row's group, where it was asked for."""


class RowFacts(msgspec.Struct, frozen=True):
    """What the store knows of a row."""

    live: bool
    delete: bool = False
    kept: bool = False
    superseded_by: int = 0
    """The newest revision of its key, where a newer one is known to have ended the row."""
    aside: bool = False
    """It was put aside when it was published."""
