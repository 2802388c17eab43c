"""A submitted command: its shard, size, wait deadline and the future of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from millrace.core.answers import Leased, ShardLeases, SnapshotRef
from millrace.core.commands import (
    ApplyTransaction,
    Command,
    Configure,
    CreateQueue,
    Delete,
    Discard,
    Extend,
    LeaseFromShards,
    LeaseMessages,
    MoveDeadLetters,
    OpenCursor,
    Pin,
    Publish,
    PublishStaged,
    Release,
    Replace,
    Settle,
    SnapshotShards,
    Stage,
    Unpin,
)
from millrace.core.decide import Answer
from millrace.core.format.block import Block
from millrace.core.model import NewMessage, ShardId
from millrace.core.session_commands import (
    CloseSession,
    GrantCredit,
    OpenSession,
    Receive,
    ResumeSession,
    SessionRef,
    SuspectSession,
)
from millrace.core.state.view import View
from millrace.core.topic_commands import CreateTopic, Forward, Parcel, Subscribe
from millrace.errors import MillraceError


class CommandRequest:
    """A command and the future of its answer."""

    __slots__ = (
        "command",
        "future",
        "grows",
        "is_plain",
        "shard",
        "size",
        "wait_ended",
        "wait_until",
    )

    def __init__(
        self,
        shard: ShardId,
        command: Command,
        future: asyncio.Future[object],
        *,
        wait_until: float = 0,
    ) -> None:
        self.shard = shard
        self.command = command
        self.future = future
        self.wait_until = wait_until
        """Deadline of the wait in event-loop time; the wall clock may be set."""
        self.wait_ended = False
        """True once a long poll has ended, perhaps at another shard."""
        if type(command) is Publish and type(command.rows) is tuple:
            # The fast path of a single message.
            self.size, has_deletes = _weigh(command.rows)
            self.grows = True
            self.is_plain = not (
                command.numbered or has_deletes or command.aside or command.ids or command.lives
            )
            """True for a publish without number, deletes, delays, priorities, TTLs or ids; see
            `QueueSpec.is_plain`."""
            if not self.is_plain:
                self.size += _extras(command)
        elif type(command) is LeaseMessages:
            self.size = _COMMAND_BYTES + _LEASED_BYTES * command.count * (
                2 if command.attempt else 1
            )
            self.grows = self.is_plain = False
        elif type(command) is Settle:
            self.size = _COMMAND_BYTES + _LEASED_BYTES * len(command.seqs)
            self.grows = self.is_plain = False
        else:
            self.size = estimate_record_bytes(command)
            self.grows = grows(command)
            self.is_plain = False

    def shards(self) -> tuple[ShardId, ...]:
        """Return the shards that may give it messages."""
        command = self.command
        if isinstance(command, LeaseFromShards):
            return command.shards
        if isinstance(command, SnapshotShards):
            return tuple(shard for shard, _ in command.parts)
        return (self.shard,)

    def answer(self, result: Answer | MillraceError) -> bool:
        """Deliver the result; return False if the caller has gone."""
        if self.future.done():
            return False
        if isinstance(result, MillraceError):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)
        return True

    def fail(self, error: MillraceError) -> None:
        """Fail with a copy of an error that is delivered to several callers."""
        self.answer(error.again())

    def shrink(self, size: int) -> bool:
        """Reduce the requested count to fit into `size` bytes; return False if the command has no
        count."""
        command = self.command
        if not isinstance(command, LeaseMessages | LeaseFromShards | Receive):
            return False
        cells = len(command.shards) if isinstance(command, LeaseFromShards) else 1
        count = (size - cells * _COMMAND_BYTES) // _LEASED_BYTES
        if count < 1:
            return False
        self.command = msgspec.structs.replace(command, count=count)
        self.size = estimate_record_bytes(self.command)
        return True

    def without_wait(self) -> CommandRequest:
        """Clear the wait deadline and return the request."""
        self.wait_until = 0
        return self


_COMMAND_BYTES = 256
"""Cells and batch header of a command without rows."""

_LEASED_BYTES = 16
"""A message in the cell of its lease and in that of its previous lease: its place in the sets, and
its counters."""


_ASIDE_BYTES = 96
"""A cell of deferred messages."""

_ID_BYTES = 112
"""The cell of a de-duplication id, and its place in the cell of its expiry time."""


_GROUPED_BYTES = 64
"""The cells of a new group and of its turn, if each message has another group."""

_REWRITTEN_BYTES = 1024
"""A cell of an existing group, rewritten with its content."""

_PARTED_BYTES = 32
"""The cell of a message id."""


def estimate_record_bytes(command: Command) -> int:
    """Estimate the bytes that a command adds to a WAL record."""
    match command:
        case LeaseMessages(count=count, attempt=attempt):
            return _COMMAND_BYTES + _LEASED_BYTES * count * (2 if attempt else 1)
        case Settle(seqs=seqs) | Release(seqs=seqs) | Extend(seqs=seqs) | Discard(seqs=seqs):
            return _COMMAND_BYTES + _LEASED_BYTES * len(seqs)
        case Publish(rows=Block() as block):
            return block.size() + _extras(command)
        case Publish(rows=tuple() as messages):
            return _weigh(messages)[0] + _extras(command)
        case Stage(rows=block):
            return block.size()
        case ApplyTransaction(parts=parts):
            return sum(estimate_record_bytes(part) for _, part in parts)
        case Receive(count=count):
            return _COMMAND_BYTES + _LEASED_BYTES * count
        case GrantCredit(credit=credit, drain=True):
            return _COMMAND_BYTES + _LEASED_BYTES * credit
        case Replace(message=message):
            return _COMMAND_BYTES + _weigh((message,))[0]
        case LeaseFromShards(shards=shards, count=count):
            return _COMMAND_BYTES * len(shards) + _LEASED_BYTES * count
        case SnapshotShards(parts=snapshots):
            return _COMMAND_BYTES * len(snapshots)
        case MoveDeadLetters(rows=rows):
            # The rows fitted when they were published, so that the note of their move must fit as
            # well.
            return _weigh(tuple(message for _, _, message in rows))[0]
        case Forward(parcels=parcels):
            return sum(map(_weigh_parcel, parcels))
        case Delete(seqs=seqs):
            return _COMMAND_BYTES + (_LEASED_BYTES + _ASIDE_BYTES) * len(seqs)
        case _:
            return _COMMAND_BYTES


def estimate_cell_bytes(shard: ShardId, command: Command, views: Mapping[ShardId, View]) -> int:
    """Estimate the bytes of cells that a queue's order or delivery adds for the rows of a command.

    Returns 0 for a queue whose view is not loaded; the first publish loads it.
    """
    match command:
        case Publish(rows=rows):
            view = views.get(shard)
            if view is None:
                return 0
            return _cells_of(view, rows.count if isinstance(rows, Block) else len(rows))
        case ApplyTransaction(parts=parts):
            return sum(estimate_cell_bytes(at, part, views) for at, part in parts)
        case Forward(parcels=parcels):
            topic = views.get(shard)
            subscriptions = {} if topic is None else topic.subscriptions
            return sum(
                _cells_of(
                    views.get(ShardId(subscriptions[parcel.subscription].queue)), parcel.rows.count
                )
                for parcel in parcels
                if parcel.rows is not None and parcel.subscription in subscriptions
            )
        case _:
            return 0


def _cells_of(view: View | None, count: int) -> int:
    if view is None:
        return 0
    if view.spec.is_grouped:
        return _REWRITTEN_BYTES + _GROUPED_BYTES * count
    return _COMMAND_BYTES + _PARTED_BYTES * count if view.spec.is_partitioned else 0


def _weigh_parcel(parcel: Parcel) -> int:
    size = parcel.rows.size() if parcel.rows is not None else 0
    return size + _ASIDE_BYTES * (len(parcel.aside) + len(parcel.lives))


def _extras(command: Publish) -> int:
    """Estimate the bytes of the cells of delays, priorities, TTLs and ids."""
    runs = len(command.aside) + len(command.lives)
    return _ASIDE_BYTES * runs + _ID_BYTES * len(command.ids)


def _weigh(messages: tuple[NewMessage, ...]) -> tuple[int, bool]:
    """Estimate the record bytes of messages, and return whether deletes are among them."""
    size = 16
    has_deletes = False
    for message in messages:
        size += len(message.key or b"") + 16
        if message.body is None:
            has_deletes = True
        else:
            size += len(message.body)
        for name, value in message.headers:
            size += len(name) + len(value) + 16
    return size, has_deletes


def grows(command: Command) -> bool:
    """Return True if the command takes room that it does not give back: refused on a full disk."""
    if type(command) is ApplyTransaction:
        return any(grows(part) for _, part in command.parts)
    return type(command) in _GROWING


_GROWING: frozenset[type] = frozenset(
    {
        Publish,
        PublishStaged,
        Stage,
        Replace,
        MoveDeadLetters,
        Forward,
        CreateQueue,
        CreateTopic,
        Subscribe,
        OpenCursor,
        OpenSession,
        Configure,
    }
)


def adds_messages(command: Command) -> bool:
    """Return True if the command adds messages or a place for them: refused below a watermark.

    Cursors, sessions and settings take next to no room, and restarted programs need them to work
    off the backlog.
    """
    if type(command) is ApplyTransaction:
        return any(adds_messages(part) for _, part in command.parts)
    return type(command) in _BRINGING


_BRINGING: frozenset[type] = frozenset(
    {Publish, PublishStaged, Stage, Replace, CreateQueue, CreateTopic}
)


def undo_commands(
    shard: ShardId, command: Command, result: object, history: bytes
) -> list[tuple[ShardId, Command]]:
    """Return the commands that give back the leases, pins or session of an answer nobody received.

    Sessions keep their deliveries, which are repeated. So are those of a lease call with an attempt
    id: the caller may have repeated the call and hold them already.
    """
    if isinstance(command, LeaseMessages) and command.attempt:
        return []
    if isinstance(result, Leased) and isinstance(command, Replace):
        # `Replace` has counted no delivery, so nothing is taken back.
        return [(shard, Release(result.lease, result.seqs, history))]
    if isinstance(result, Leased) and result.seqs:
        return [(shard, Release(result.lease, result.seqs, history, unseen=True))]
    if isinstance(result, ShardLeases):
        return [
            undo for at, part in result.parts for undo in undo_commands(at, command, part, history)
        ]
    if isinstance(result, SnapshotRef) and isinstance(command, Pin):
        return [(shard, Unpin(result.pin, result.history, result.index))]
    if isinstance(result, SessionRef):
        if isinstance(command, ResumeSession):
            return [(shard, SuspectSession(result.claim))]
        return [(shard, CloseSession(result.claim, seen=0))]
    if isinstance(command, ApplyTransaction) and isinstance(result, tuple):
        answered = zip(command.parts, result, strict=True)
        return [
            undo
            for (at, part), answer in answered
            if isinstance(part, Pin)
            for undo in undo_commands(at, part, answer, history)
        ]
    return []


def ignore_result(future: asyncio.Future[object]) -> None:
    """Mark the exception of a future as retrieved."""
    if not future.cancelled():
        future.exception()
