"""What may be asked of an engine in another process: commands, rows and facts.

Numbers are part of the format (`docs/formats/wire.md`): append, never reorder.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.codec import decode_cell, encode_cell
from millrace.core.commands import Command
from millrace.core.fold import ShardMeta
from millrace.core.model import Cell, Kind, LeaseId, ShardId
from millrace.core.session_commands import Claim
from millrace.core.topic_cells import SubscriptionCell
from millrace.decoding import msgpack_decoder
from millrace.errors import Corrupt
from millrace.meter import Gauges
from millrace.rpc.answers import (
    ANSWERS,
    QUEUE_REF,
    SPEC,
    TOPIC_CELL,
)
from millrace.rpc.commands import (
    CLAIM,
    COMMANDS,
    HISTORY,
    SHARD,
)
from millrace.rpc.failures import FAILURE
from millrace.rpc.fast_codecs import PROOF
from millrace.rpc.field_codecs import (
    Choice,
    Converted,
    Flag,
    Form,
    Many,
    Name,
    Optional,
    Plain,
    Record,
    Seqs,
    Shape,
    Table,
    Text,
    Whole,
    wrong,
)
from millrace.rpc.frames import Blobs, Pieces
from millrace.rpc.rows import Batch, RowList

_PATH_BYTES_MAX = 4096
CELL_KINDS = {"cursor": Kind.CURSOR, "stage": Kind.STAGE, "partition": Kind.PARTITION}
"""The kinds of cells that may be read: others hold what is nobody's affair, the secret too."""


class Ask(msgspec.Struct, frozen=True):
    """See `Engine.ask` and `Engine.transact`."""

    shard: ShardId
    wait_ms: int
    command: Command


class Tell(msgspec.Struct, frozen=True):
    """See `Engine.tell`; nothing is answered."""

    shard: ShardId
    command: Command


class ReadRows(msgspec.Struct, frozen=True):
    """See `Engine.rows`."""

    shard: ShardId
    seqs: BitMap64
    size: int


class ReadLeased(msgspec.Struct, frozen=True):
    """See `Engine.rows`; of messages that a lease call holds."""

    shard: ShardId
    seqs: BitMap64
    size: int
    lease: LeaseId
    history: bytes


class ReadBatches(msgspec.Struct, frozen=True):
    """See `Engine.batches`; a stream."""

    shard: ShardId
    after: int
    upto: int
    pin: int | None
    retain: bool


class Peek(msgspec.Struct, frozen=True):
    """See `Engine.peek`."""

    shard: ShardId
    after: int
    upto: int | None
    count: int


class ReadCells(msgspec.Struct, frozen=True):
    """See `Engine.cells`."""

    shard: ShardId
    kind: str


class FindNumber(msgspec.Struct, frozen=True):
    """See `Engine.producer_number`."""

    shard: ShardId
    producer: str


class FindQueue(msgspec.Struct, frozen=True):
    """See `Engine.find_queue`."""

    space: str
    name: str


class ListQueues(msgspec.Struct, frozen=True):
    """See `Engine.queue_names`."""

    space: str


class FindTopic(msgspec.Struct, frozen=True):
    """See `Engine.find_topic`."""

    space: str
    name: str


class ListTopics(msgspec.Struct, frozen=True):
    """See `Engine.topic_names`."""

    space: str


class ListSubscriptions(msgspec.Struct, frozen=True):
    """See `Engine.subscriptions`."""

    shard: ShardId


class ReadTopic(msgspec.Struct, frozen=True):
    """See `Engine.topic_cell`."""

    shard: ShardId


class Arrive(msgspec.Struct, frozen=True):
    """See `Engine.arrived`."""

    shard: ShardId
    first: int
    count: int


class ListTrouble(msgspec.Struct, frozen=True):
    """See `Engine.trouble`."""

    shard: ShardId


class ReadSpec(msgspec.Struct, frozen=True):
    """See `Engine.spec`."""

    shard: ShardId


class ReadMeta(msgspec.Struct, frozen=True):
    """See `Engine.meta`."""

    shard: ShardId


class FindSeq(msgspec.Struct, frozen=True):
    """See `Engine.seq_at`."""

    shard: ShardId
    time_ms: int


class FindName(msgspec.Struct, frozen=True):
    """See `Engine.name_of`."""

    shard: ShardId


class BackUp(msgspec.Struct, frozen=True):
    """See `Millrace.backup`: into a folder of the machine on which the engine runs."""

    into: str
    follow: bool


class ReadBackup(msgspec.Struct, frozen=True):
    """See `Care.backing_up`."""


class Unfollow(msgspec.Struct, frozen=True):
    """See `Millrace.unfollow`."""


class Repair(msgspec.Struct, frozen=True):
    """See `Millrace.repair`: of these shards; an empty path: nothing is exported."""

    shards: tuple[ShardId, ...]
    export: str
    drop: bool


class ReadHealth(msgspec.Struct, frozen=True):
    """See `Millrace.health`."""


class ListSpaces(msgspec.Struct, frozen=True):
    """See `Engine.spaces`."""


class ReadGauges(msgspec.Struct, frozen=True):
    """What the engine has counted, and how large it is."""


class Speak(msgspec.Struct, frozen=True):
    """See `Engine.speak`; nothing is answered."""

    shard: ShardId
    claim: Claim


class Cancel(msgspec.Struct, frozen=True):
    """Nobody waits for this call any more."""

    id: int


class More(msgspec.Struct, frozen=True):
    """The reader of a stream has taken one batch."""

    id: int


Call = (
    Ask
    | Tell
    | ReadRows
    | ReadLeased
    | ReadBatches
    | Peek
    | ReadCells
    | FindNumber
    | FindQueue
    | ListQueues
    | FindTopic
    | ListTopics
    | ListSubscriptions
    | ReadTopic
    | Arrive
    | ListTrouble
    | ReadSpec
    | ReadMeta
    | FindSeq
    | FindName
    | BackUp
    | ReadBackup
    | Unfollow
    | Repair
    | ReadHealth
    | ListSpaces
    | ReadGauges
    | Cancel
    | More
    | Speak
)


class Named(msgspec.Struct, frozen=True):
    """Whose shard it is."""

    kind: str
    """`queue`, `topic` or `catalog`."""
    space: str
    name: str
    shards: tuple[ShardId, ...]


class BackupFacts(NamedTuple):
    """What is told of a backup that was made."""

    path: str
    first_index: int
    last_index: int
    time_ms: int
    bytes: int


# --- Their shapes ------------------------------------------------------------------------------


class Cells:
    """Cells of one kind, by their names."""

    def pack(self, value: object, blobs: Blobs) -> list[object]:
        found = cast("tuple[Kind, dict[str, Cell]]", value)
        kind, cells = found
        return [int(kind), [[name, encode_cell(cell)] for name, cell in cells.items()]]

    def unpack(self, raw: object, field: str, blobs: Pieces) -> dict[str, Cell]:
        kind, cells = cast("tuple[int, list[tuple[str, bytes]]]", raw)
        try:
            return {name: decode_cell(Kind(kind), data) for name, data in cells}
        except Corrupt as error:
            raise wrong(raw, field, "cells") from error


class Packed:
    """A positional struct as its own bytes."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        self._decoder = msgpack_decoder(kind)

    def pack(self, value: object, blobs: Blobs) -> bytes:
        return msgspec.msgpack.encode(value)

    def unpack(self, raw: object, field: str, blobs: Pieces) -> object:
        if type(raw) is not bytes:
            raise wrong(raw, field, "bytes")
        try:
            return self._decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise wrong(raw, field, "what it should be") from error


class FateShape(Plain):
    """A seq, or a word."""

    def unpack(self, raw: object, field: str, blobs: Pieces) -> int | str:
        if type(raw) is int or type(raw) is str:
            return raw
        raise wrong(raw, field, "what became of a message")


class Time:
    """A time, or none, in milliseconds."""

    def pack(self, value: object, blobs: Blobs) -> int | None:
        time = cast("datetime | None", value)
        return None if time is None else round(time.timestamp() * 1000)

    def unpack(self, raw: object, field: str, blobs: Pieces) -> datetime | None:
        return None if type(raw) is not int else datetime.fromtimestamp(raw / 1000, UTC)


_NUMBER = Whole()
_NAME = Name()
_TOPIC = Name(most=limits.TOPIC_NAME_CHARS_MAX)
_FLAG = Flag()
_LONG = Text(_PATH_BYTES_MAX)


def _names(of: Name) -> Shape:
    return Converted(
        Many(of, limits.QUEUES_MAX),
        lambda names: names,
        lambda names: list(cast("tuple[str, ...]", names)),
    )


_NAMES = _names(_NAME)
_NONE = Optional(_NUMBER)
_PATH = Converted(_LONG, str, lambda text: Path(cast("str", text)))
_HEALTH = Record(
    Optional(_LONG),
    _NUMBER,
    Time(),
    Many(_LONG, limits.QUEUES_MAX),
    Optional(_PATH),
    _NUMBER,
    _FLAG,
    Optional(_LONG),
)
_NAMED = Form(
    Named,
    Choice("queue", "topic", "catalog"),
    Name(needed=False),
    Name(needed=False, most=limits.TOPIC_NAME_CHARS_MAX),
    Many(SHARD, limits.SHARDS_MAX),
)


class Entry(NamedTuple):
    """How a kind of call and its answer stand in a frame."""

    number: int
    form: Form
    answer: Shape


_FORMS: tuple[tuple[int, Form, Shape], ...] = (
    (1, Form(Ask, SHARD, Whole(0, limits.LEASE_WAIT_MS_MAX), COMMANDS), ANSWERS),
    (2, Form(Tell, SHARD, COMMANDS), _NONE),
    (3, Form(ReadRows, SHARD, Seqs(), Whole(1, limits.LEASE_BYTES_MAX)), RowList()),
    (4, Form(ReadBatches, SHARD, _NUMBER, _NUMBER, Optional(_NUMBER), _FLAG), Batch()),
    (
        5,
        Form(Peek, SHARD, _NUMBER, Optional(_NUMBER), Whole(1, limits.PEEK_MESSAGES_MAX)),
        RowList(),
    ),
    (6, Form(ReadCells, SHARD, Choice(*CELL_KINDS)), Cells()),
    (7, Form(FindNumber, SHARD, _NAME), _NUMBER),
    (8, Form(FindQueue, _NAME, _NAME), Optional(QUEUE_REF)),
    (9, Form(ListQueues, _NAME), _NAMES),
    (10, Form(FindTopic, _NAME, _TOPIC), Optional(SHARD)),
    (11, Form(ListTopics, _NAME), _names(_TOPIC)),
    (
        12,
        Form(ListSubscriptions, SHARD),
        Table(_NUMBER, Packed(SubscriptionCell), limits.SUBSCRIPTIONS_MAX),
    ),
    (13, Form(ReadTopic, SHARD), TOPIC_CELL),
    (
        14,
        Form(Arrive, SHARD, Whole(1), Whole(1, limits.PUBLISH_MESSAGES_MAX)),
        Table(
            _NAME,
            Converted(
                Many(FateShape(), limits.PUBLISH_MESSAGES_MAX),
                lambda fates: fates,
                lambda fates: list(cast("tuple[object, ...]", fates)),
            ),
            limits.SUBSCRIPTIONS_MAX,
        ),
    ),
    (15, Form(ListTrouble, SHARD), Table(_NUMBER, FAILURE, limits.SUBSCRIPTIONS_MAX)),
    (16, Form(ReadSpec, SHARD), SPEC),
    (17, Form(ReadMeta, SHARD), Packed(ShardMeta)),
    (18, Form(FindSeq, SHARD, _NUMBER), _NUMBER),
    (19, Form(FindName, SHARD), Optional(_NAMED)),
    (20, Form(BackUp, _LONG, _FLAG), Record(_LONG, _NUMBER, _NUMBER, _NUMBER, _NUMBER)),
    (21, Form(Unfollow), _FLAG),
    (22, Form(ReadHealth), _HEALTH),
    (23, Form(Cancel, _NUMBER), _NONE),
    (24, Form(More, _NUMBER), _NONE),
    (25, Form(ListSpaces), _NAMES),
    (26, Form(ReadGauges), Packed(Gauges)),
    (27, Form(Speak, SHARD, CLAIM), _NONE),
    (
        28,
        Form(ReadLeased, SHARD, Seqs(), Whole(1, limits.LEASE_BYTES_MAX), PROOF, HISTORY),
        RowList(),
    ),
    (29, Form(ReadBackup), Record(_NUMBER, _NUMBER)),
    (
        30,
        Form(Repair, Many(SHARD, limits.SHARDS_MAX, least=1), _LONG, _FLAG),
        Record(_NUMBER, _NUMBER, _NUMBER, _FLAG),
    ),
)
CALLS = {form.kind: Entry(number, form, answer) for number, form, answer in _FORMS}
BY_NUMBER = {entry.number: entry for entry in CALLS.values()}
