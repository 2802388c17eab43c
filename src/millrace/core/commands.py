"""Commands of a shard, of the catalog and of transactions; `answers.py` has their results.

Names, sizes and types were validated where the command was made (`validate.py`); everything that
depends on the shard's state is validated in `decide`. Commands of sessions and topics are in
`session_commands.py` and `topic_commands.py`.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.format.block import Block
from millrace.core.model import (
    CursorPosition,
    LeaseId,
    NewMessage,
    Route,
    Seq,
    ShardId,
    StartPoint,
)
from millrace.core.notes import NotesLimit
from millrace.core.session_commands import (
    CloseSession,
    GrantCredit,
    OpenSession,
    Receive,
    ResumeSession,
    SuspectSession,
)
from millrace.core.spec import QueueSpec
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


class ProducerNumber(msgspec.Struct, frozen=True):
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


class RowSchedule(msgspec.Struct, frozen=True):
    """Rows of a publish with a priority or delay of their own."""

    at: int
    """The first row's number within the publish, from 0."""
    count: int
    priority: int = limits.PRIORITY_DEFAULT
    delay_ms: int | None = None
    """None: the queue's delay."""


class RowTtl(msgspec.Struct, frozen=True):
    """Rows of a publish with a TTL of their own."""

    at: int
    count: int
    ttl_ms: int


class Publish(msgspec.Struct, frozen=True):
    """Append rows, all or nothing. Answer: `PublishResult`."""

    rows: Block | tuple[NewMessage, ...]
    numbered: ProducerNumber | None = None
    aside: tuple[RowSchedule, ...] = ()
    """Ascending runs that do not overlap; all other rows follow the queue's settings."""
    ids: tuple[str | None, ...] = ()
    """Deduplication ids, row by row; empty: none."""
    by_body: bool = False
    """Rows without an id are deduplicated by body, if the queue says so. False for messages that
    are moved between queues."""
    lives: tuple[RowTtl, ...] = ()
    """Ascending runs that do not overlap: rows with a TTL of their own. The queue's TTL may be
    shorter."""


class LeaseMessages(msgspec.Struct, frozen=True):
    """Lease up to `count` messages for `lease_ms`. Answer: `Leased`, perhaps empty."""

    count: int
    lease_ms: int
    attempt: str = ""
    """Attempt id for idempotent retries: the same id gets the same answer while that is valid;
    empty: none."""
    together: bool = False
    """In the orders of groups: take all deliverable messages of one group before another one
    gives any."""


class Settle(msgspec.Struct, frozen=True):
    """Settle (acknowledge) messages of one lease call. Answer: `Outcome`."""

    lease: LeaseId
    seqs: BitMap64
    history: bytes
    on_time: bool = False
    """Refuse messages whose deadline has passed (`Late`), although the receipt is valid."""
    any_delivery: bool = False
    """Also settle messages that a later lease call received, as by its receipt. Not allowed in a
    transaction."""


class Release(msgspec.Struct, frozen=True):
    """Release messages of one lease call for redelivery. Answer: `Outcome`."""

    lease: LeaseId
    seqs: BitMap64
    history: bytes
    failed: bool = False
    """It counts as a failure (a reject, a crash), not as a voluntary return."""
    delay_ms: int = 0
    """Delay until the messages can be leased again."""
    unseen: bool = False
    """No consumer has seen them: the delivery does not count."""
    on_time: bool = False
    """As for `Settle`."""


class Discard(msgspec.Struct, frozen=True):
    """Make dead letters of messages of one lease call. Answer: `Outcome`."""

    lease: LeaseId
    seqs: BitMap64
    history: bytes


class Extend(msgspec.Struct, frozen=True):
    """Move the deadline of these messages to `lease_ms` from now. Answer: `Outcome`.

    0: the lease expires at once.
    """

    lease: LeaseId
    seqs: BitMap64
    history: bytes
    lease_ms: int
    on_time: bool = False
    """As for `Settle`."""
    most_ms: int = 0
    """Refuse (`TooLarge`) if the total lease time since delivery would exceed this; 0: no limit."""
    any_delivery: bool = False
    """As for `Settle`."""


class MoveDeadLetters(msgspec.Struct, frozen=True):
    """Move dead letters, whose bodies these are, to the dead-letter queue. Answer: how many
    moved."""

    rows: tuple[tuple[int, int, NewMessage], ...]
    """(seq, publish time, message); messages that are no longer dead letters are skipped."""


class Purge(msgspec.Struct, frozen=True):
    """End all present rows. Answer: the last seq that ended."""

    forgets_ids: bool = False
    """Deduplication ids are forgotten: a message with a used id is accepted."""


class Rewind(msgspec.Struct, frozen=True):
    """Deliver the rows of a `log` queue again from here on. Answer: the first seq to deliver."""

    start: StartPoint | int
    """A `StartPoint`, or the first seq to deliver again."""


class Configure(msgspec.Struct, frozen=True):
    """Replace all settings of the queue, or the given ones. Answer: the spec."""

    spec: QueueSpec | SpecPart
    most: NotesLimit | None = None
    """A bound on the number of notes; the command is refused if its changes exceed it."""


class Explain(msgspec.Struct, frozen=True):
    """Explain the state of a message. Answer: `Explanation`."""

    seq: Seq
    group: bytes | None = None
    """The message's group, if the caller knows it."""


class OpenCursor(msgspec.Struct, frozen=True):
    """Create a cursor if it is missing. Answer: `CursorCell`."""

    name: str
    start: StartPoint | int | CursorPosition
    """Of a new cursor: a `StartPoint`, or the first seq to read. A position moves an existing
    cursor as well."""
    retain: bool
    claims: bool = False
    """The caller becomes the cursor's follower: earlier followers are fenced off."""
    cursor: int = 0
    """Open only the cursor with this id, and create none; 0: any."""


class NextSnapshot(msgspec.Struct, frozen=True):
    """Pin the rows after the cursor. Answer: `SnapshotRef`, or None if there are none."""

    name: str
    cursor: int
    after: int
    """The seq up to which the reader has read, perhaps without committing it."""
    pin_ms: int
    history: bytes = b""
    """The history of `after`, if it may have changed since: under another one `after` is
    ignored."""
    claim: bytes = b""
    """The claim that the caller got when it opened the cursor."""
    claims: bool = False
    """The caller has no claim, and takes one with the snapshot."""


class CommitCursor(msgspec.Struct, frozen=True):
    """Move a cursor; at the end of its snapshot the pin is removed. Answer: `CursorCell`."""

    name: str
    cursor: int
    position: CursorPosition
    claim: bytes = b""
    """As for `NextSnapshot`."""


class ResetCursor(msgspec.Struct, frozen=True):
    """Move a cursor to any place, forward or back. Answer: `CursorCell`."""

    name: str
    start: StartPoint | int | CursorPosition
    claims: bool = False
    """As for `OpenCursor`."""


class Locate(msgspec.Struct, frozen=True):
    """Translate a position to the present history. Answer: `CursorPosition`.

    If its seq is lower, the rows that the follower has read after it were rolled back.
    """

    position: CursorPosition | None
    """None: a follower that has read everything so far."""


class AwaitCursor(msgspec.Struct, frozen=True):
    """Check whether a cursor has committed all up to a position. Answer: True, or None: not yet."""

    name: str
    position: CursorPosition


class DeleteCursor(msgspec.Struct, frozen=True):
    """Delete a cursor. Answer: whether there was one."""

    name: str


class Pin(msgspec.Struct, frozen=True):
    """Keep the present state of the shard readable. Answer: `SnapshotRef`."""

    pin_ms: int


class Unpin(msgspec.Struct, frozen=True):
    """Remove a pin. Answer: whether it existed."""

    pin: int
    history: bytes
    index: int
    """The pin's own batch, in that history: after a takeover its number may be another pin's."""
    cursor: str = ""
    """The cursor that stops reading it; empty: only the caller uses it."""
    claim: bytes = b""
    """As for `NextSnapshot`."""


class Stage(msgspec.Struct, frozen=True):
    """Write invisible rows to a stage. Answer: number of rows of the stage so far."""

    stage: str
    rows: Block
    aside: tuple[RowSchedule, ...] = ()
    """Priorities and delays of rows, as those of a publish."""
    lives: tuple[RowTtl, ...] = ()
    number: int = 0
    """Number of the call within the stage, from 1 on, so that a repeat changes nothing; 0: none."""


class PublishStaged(msgspec.Struct, frozen=True):
    """Make stages visible at once, in this order. Answer: `PublishResult`."""

    stages: tuple[str, ...]
    """Empty: the producer's range had no rows, and only its number advances."""
    numbered: ProducerNumber | None = None


class DropStage(msgspec.Struct, frozen=True):
    """Delete a stage and its rows. Answer: whether there was one."""

    stage: str


class Tick(msgspec.Struct, frozen=True):
    """Expire and collect whatever is due. Answer: None, or True if more is due than fits a
    batch."""


# --- Commands of the catalog -------------------------------------------------------------------


class InitCatalog(msgspec.Struct, frozen=True):
    """Initialize a catalog. Answer: `CatalogCell`."""

    secret: bytes


class CreateQueue(msgspec.Struct, frozen=True):
    """Create a queue if it is missing. Answer: `QueueRef`; refused if the stored settings differ.

    With a part of the settings, only the given ones must equal the stored ones.
    """

    space: str
    name: str
    spec: QueueSpec | SpecPart
    shards: int | None = None
    """Number of shards; None: one, or those of the existing queue."""
    route: Route | None = None
    beside: str = ""
    """Another queue, as `space/name`, in whose commit group this one is placed."""


class DeleteQueue(msgspec.Struct, frozen=True):
    """Delete a queue and all its state. Answer: whether there was one."""

    space: str
    name: str


class ApplyTransaction(msgspec.Struct, frozen=True):
    """Run several commands, all or nothing, within one commit group. Answer: their answers."""

    parts: tuple[tuple[ShardId, Part], ...]


class Replace(msgspec.Struct, frozen=True):
    """Settle a message of a lease call, and publish and lease its successor. Answer: `Leased`."""

    lease: LeaseId
    seqs: BitMap64
    """The single message."""
    history: bytes
    message: NewMessage
    lease_ms: int


class Delete(msgspec.Struct, frozen=True):
    """End these messages by id, leased or not. Answer: how many there were."""

    seqs: BitMap64


class Quarantine(msgspec.Struct, frozen=True):
    """Quarantine the queue or topic of this shard, because these rows cannot be read.

    Answer: whether any of them is still live or pinned. If not, nothing is changed.
    """

    first: int
    last: int
    reason: str


class Mend(msgspec.Struct, frozen=True):
    """End the unreadable rows within these ranges. Answer: how many were ended.

    Only a quarantined shard accepts it.
    """

    ranges: tuple[tuple[int, int], ...]


class EndQuarantine(msgspec.Struct, frozen=True):
    """End the quarantine, as every row can be read again. Answer: whether there was one."""


class ListHolders(msgspec.Struct, frozen=True):
    """List the pins, cursors and dead letters that keep rows. Answer: `Holders`."""


class LeaseFromShards(msgspec.Struct, frozen=True):
    """Lease messages of all shards of a queue, least recently served shards first.

    Answer: `ShardLeases`, perhaps empty.
    """

    shards: tuple[ShardId, ...]
    count: int
    lease_ms: int


class SnapshotShards(msgspec.Struct, frozen=True):
    """Pin the rows after a cursor on all shards of a queue, in one entry.

    Answer: `MultiShardSnapshot`, or None if there are no rows.
    """

    parts: tuple[tuple[ShardId, NextSnapshot], ...]


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
"""Commands that are sent to every shard of a queue, and whose effect is the same on each."""

Part = Publish | Settle | Release | Extend | Discard | CommitCursor | Unpin | PublishStaged | Wide
"""Commands that a transaction may contain."""

ShardCommand = (
    Part
    | LeaseMessages
    | Replace
    | MoveDeadLetters
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
CatalogCommand = (
    InitCatalog | CreateQueue | DeleteQueue | CreateTopic | ConfigureTopic | DeleteTopic
)
MultiShardCommand = LeaseFromShards | SnapshotShards
"""Commands with one answer for all shards of a queue."""

Command = ShardCommand | SessionCommand | CatalogCommand | ApplyTransaction | MultiShardCommand
