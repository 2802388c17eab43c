"""A request on its way through a host: a command, how long it may wait, and who is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from millrace.core.across_commands import LeaseAcross, LeasedAcross, SnapshotAcross
from millrace.core.answers import Leased, SnapshotRef
from millrace.core.block import Block
from millrace.core.commands import (
    Bury,
    Command,
    Configure,
    CreateQueue,
    Discard,
    Extend,
    Lease,
    OpenCursor,
    Pin,
    Publish,
    PublishStaged,
    Release,
    Settle,
    Stage,
    Transaction,
    Unpin,
)
from millrace.core.decide import Answer
from millrace.core.leased_commands import Replace
from millrace.core.model import Message, ShardId
from millrace.core.partition_commands import Delete
from millrace.core.session_commands import (
    CloseSession,
    GrantCredit,
    OpenSession,
    Receive,
    ResumeSession,
    SessionRef,
    SuspectSession,
)
from millrace.core.topic_commands import CreateTopic, Forward, Parcel, Subscribe
from millrace.core.view import View
from millrace.errors import MillraceError


class Request:
    """One command and the future of its answer."""

    __slots__ = (
        "command",
        "future",
        "grows",
        "is_given",
        "is_plain",
        "shard",
        "size",
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
        """By the loop's own time: clocks may be set."""
        self.is_given = False
        """It waited, perhaps at several shards, and waits no more."""
        if type(command) is Publish and type(command.rows) is tuple:
            # The way of a single message, which must cost little.
            self.size, has_deletes = _weigh(command.rows)
            self.grows = True
            self.is_plain = not (
                command.numbered or has_deletes or command.aside or command.ids or command.lives
            )
            """A publish without number, deletes, turns and ids: see `QueueSpec.is_plain`."""
            if not self.is_plain:
                self.size += _extras(command)
        elif type(command) is Lease:
            self.size = _COMMAND_BYTES + _LEASED_BYTES * command.count * (
                2 if command.attempt else 1
            )
            self.grows = self.is_plain = False
        elif type(command) is Settle:
            self.size = _COMMAND_BYTES + _LEASED_BYTES * len(command.seqs)
            self.grows = self.is_plain = False
        else:
            self.size = size_of(command)
            self.grows = grows(command)
            self.is_plain = False

    def shards(self) -> tuple[ShardId, ...]:
        """Where it may be given something."""
        command = self.command
        if isinstance(command, LeaseAcross):
            return command.shards
        if isinstance(command, SnapshotAcross):
            return tuple(shard for shard, _ in command.parts)
        return (self.shard,)

    def answer(self, result: Answer | MillraceError) -> bool:
        """Tell the caller; False if it no longer listens."""
        if self.future.done():
            return False
        if isinstance(result, MillraceError):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)
        return True

    def fail(self, error: MillraceError) -> None:
        """Tell the caller of an error that others are told of as well."""
        self.answer(error.again())

    def shrink(self, size: int) -> bool:
        """Ask for as much as fits into so many bytes; False if it asks for no number of things."""
        command = self.command
        if not isinstance(command, Lease | LeaseAcross | Receive):
            return False
        cells = len(command.shards) if isinstance(command, LeaseAcross) else 1
        count = (size - cells * _COMMAND_BYTES) // _LEASED_BYTES
        if count < 1:
            return False
        self.command = msgspec.structs.replace(command, count=count)
        self.size = size_of(self.command)
        return True

    def without_wait(self) -> Request:
        """The same request, to be answered as things are."""
        self.wait_until = 0
        return self


_COMMAND_BYTES = 256
"""Cells and batch of a command that has no rows."""

_LEASED_BYTES = 16
"""A message in the cell of its lease, and in that of its lease before: its place in the sets, and
what was counted of it."""


_ASIDE_BYTES = 96
"""A cell of messages that wait apart."""

_ID_BYTES = 112
"""The cell of a de-duplication id, and its place in the cell that names when it goes."""


_GROUPED_BYTES = 64
"""The cells of a new group and of its turn, where each message is of another one."""

_REWRITTEN_BYTES = 1024
"""A cell of a group that is there already, and is written anew with what was in it."""

_PARTED_BYTES = 32
"""The cell of a message's id."""


def size_of(command: Command) -> int:
    """About how many bytes the command adds to a record."""
    match command:
        case Lease(count=count, attempt=attempt):
            return _COMMAND_BYTES + _LEASED_BYTES * count * (2 if attempt else 1)
        case Settle(seqs=seqs) | Release(seqs=seqs) | Extend(seqs=seqs) | Discard(seqs=seqs):
            return _COMMAND_BYTES + _LEASED_BYTES * len(seqs)
        case Publish(rows=Block() as block):
            return block.size() + _extras(command)
        case Publish(rows=tuple() as messages):
            return _weigh(messages)[0] + _extras(command)
        case Stage(rows=block):
            return block.size()
        case Transaction(parts=parts):
            return sum(size_of(part) for _, part in parts)
        case Receive(count=count):
            return _COMMAND_BYTES + _LEASED_BYTES * count
        case GrantCredit(credit=credit, drain=True):
            return _COMMAND_BYTES + _LEASED_BYTES * credit
        case Replace(message=message):
            return _COMMAND_BYTES + _weigh((message,))[0]
        case LeaseAcross(shards=shards, count=count):
            return _COMMAND_BYTES * len(shards) + _LEASED_BYTES * count
        case SnapshotAcross(parts=snapshots):
            return _COMMAND_BYTES * len(snapshots)
        case Bury(rows=rows):
            # What was published fits: that it is written down as moved must not be too much.
            return _weigh(tuple(message for _, _, message in rows))[0]
        case Forward(parcels=parcels):
            return sum(map(_weigh_parcel, parcels))
        case Delete(seqs=seqs):
            return _COMMAND_BYTES + (_LEASED_BYTES + _ASIDE_BYTES) * len(seqs)
        case _:
            return _COMMAND_BYTES


def size_of_cells(shard: ShardId, command: Command, views: Mapping[ShardId, View]) -> int:
    """About how many bytes the rows have in cells that their queue's order or delivery asks for.

    It is known of queues whose views are at hand; the first publish to another one loads that.
    """
    match command:
        case Publish(rows=rows):
            view = views.get(shard)
            if view is None:
                return 0
            return _cells_of(view, rows.count if isinstance(rows, Block) else len(rows))
        case Transaction(parts=parts):
            return sum(size_of_cells(at, part, views) for at, part in parts)
        case Forward(parcels=parcels):
            topic = views.get(shard)
            known = {} if topic is None else topic.subscriptions
            return sum(
                _cells_of(views.get(ShardId(known[one.subscription].queue)), one.rows.count)
                for one in parcels
                if one.rows is not None and one.subscription in known
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
    """About how many bytes the rows have in cells."""
    runs = len(command.aside) + len(command.lives)
    return _ASIDE_BYTES * runs + _ID_BYTES * len(command.ids)


def _weigh(messages: tuple[Message, ...]) -> tuple[int, bool]:
    """About how many bytes the messages add to a record, and whether deletes are among them."""
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
    """Whether the command asks for room that it does not give back: refused on a full disk."""
    if type(command) is Transaction:
        return any(grows(part) for _, part in command.parts)
    return type(command) in _GROWING


_GROWING: frozenset[type] = frozenset(
    {
        Publish,
        PublishStaged,
        Stage,
        Replace,
        Bury,
        Forward,
        CreateQueue,
        CreateTopic,
        Subscribe,
        OpenCursor,
        OpenSession,
        Configure,
    }
)


def brings(command: Command) -> bool:
    """Whether the command brings messages, or a queue for them: refused while little room is left.

    Cursors, sessions and settings take next to none, and whoever is started again needs them to
    work on what is there.
    """
    if type(command) is Transaction:
        return any(brings(part) for _, part in command.parts)
    return type(command) in _BRINGING


_BRINGING: frozenset[type] = frozenset(
    {Publish, PublishStaged, Stage, Replace, CreateQueue, CreateTopic}
)


def undo_of(
    shard: ShardId, command: Command, result: object, history: bytes
) -> list[tuple[ShardId, Command]]:
    """What gives back what an answer that nobody heard has handed out: leases, pins, a session.

    What a session was handed it holds: it is told again. So is who names an attempt, by making the
    call again; it may have done so already, and hold what it was told then.
    """
    if isinstance(command, Lease) and command.attempt:
        return []
    if isinstance(result, Leased) and isinstance(command, Replace):
        # Of the deliveries that it counts, none is this one.
        return [(shard, Release(result.lease, result.seqs, history))]
    if isinstance(result, Leased) and result.seqs:
        return [(shard, Release(result.lease, result.seqs, history, unseen=True))]
    if isinstance(result, LeasedAcross):
        return [undo for at, part in result.parts for undo in undo_of(at, command, part, history)]
    if isinstance(result, SnapshotRef) and isinstance(command, Pin):
        return [(shard, Unpin(result.pin, result.history, result.index))]
    if isinstance(result, SessionRef):
        if isinstance(command, ResumeSession):
            return [(shard, SuspectSession(result.claim))]
        return [(shard, CloseSession(result.claim, seen=0))]
    if isinstance(command, Transaction) and isinstance(result, tuple):
        answered = zip(command.parts, result, strict=True)
        return [
            undo
            for (at, part), answer in answered
            if isinstance(part, Pin)
            for undo in undo_of(at, part, answer, history)
        ]
    return []


def ignore(future: asyncio.Future[object]) -> None:
    """Nobody else takes notice of what became of it."""
    if not future.cancelled():
        future.exception()
